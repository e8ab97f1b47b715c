"""Matched inference: the entropy that a learner used, used again for prediction.

Weights learned under an approximate entropy make up for its errors, and mean little under another: CAMEL(0) counts the
entropy of every cluster in full, so its weights are too strong for belief propagation by about the number of clusters
around a node (Wainwright, JMLR 7, 2006, has the theory: with the same approximation on both sides errors cancel).
"""

from __future__ import annotations

from typing import Any

from bactrian.camel.camel import Camel
from bactrian.learners.learn import METHODS, Learner
from bactrian.learners.likelihood import Likelihood


def matched_inference(method: str | Learner) -> tuple[str, dict[str, Any]]:
    """Method of :func:`bactrian.infer`, and its options, with the entropy of a learner.

    Piecewise training and CAMEL(0) have the clusters-only entropy, tree-reweighted and convex learners their own;
    exact likelihood is matched by exact inference, and all others (Bethe's entropy, pseudo-likelihoods, scaling and
    pseudo-moments) by residual belief propagation.

    >>> matched_inference("camel0")
    ('convex', {'counting_numbers': 'clusters'})
    >>> matched_inference("cccp")
    ('rbp', {})
    """
    learner = METHODS[method] if isinstance(method, str) else method
    if isinstance(learner, Camel):
        if learner.entropy == "clusters":
            return "convex", {"counting_numbers": "clusters"}
        if isinstance(learner.entropy, str):
            return {"bethe": "rbp"}.get(learner.entropy, learner.entropy), {}
        return "convex", {"counting_numbers": learner.entropy}
    if isinstance(learner, Likelihood):
        return {"lbp": "rbp"}.get(learner.inference, learner.inference), {}
    return "rbp", {}
