"""Counting numbers of nodes: what stays in the concave part, and what is linearised.

Edges count 1 throughout, so a node's numbers follow from its degree d; see :mod:`bactrian.camel.entropy` and
:mod:`bactrian.camel.entropy`, whose numbers for pairwise graphs these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ENTROPIES = ("clusters", "bethe", "folded", "convex", "total")


@dataclass(frozen=True)
class NodeNumbers:
    """Counting numbers of nodes."""

    hub: Tensor  #: (N,) kept number kappa
    linearised: Tensor  #: (N,) number of times the node's entropy is subtracted through its linearisation

    @property
    def relinearises(self) -> bool:
        """Whether anything is left to linearise."""
        return bool(self.linearised.any())

    def to(self, device: Any) -> NodeNumbers:
        """The same on another device."""
        return NodeNumbers(self.hub.to(device), self.linearised.to(device))


def node_numbers(degree: Tensor, entropy: str, *, own: bool) -> NodeNumbers:
    """Numbers under ``entropy``; ``own`` says whether node scores are clusters of their own.

    ``clusters``: 1 or 0, nothing linearised. ``bethe``: the same kept, the rest of 1 - d linearised. ``convex``:
    max(1 - d, -d / 2), the provably concave part. ``folded``: that kept, the rest of 1 - d linearised. ``total``:
    1 - d, with which star updates are belief propagation.
    """
    d = degree.to(torch.float64)
    kept = torch.ones_like(d) if own else (d == 0.0).to(torch.float64)
    nothing = torch.zeros_like(d)
    if entropy == "clusters":
        return NodeNumbers(kept, nothing)
    if entropy == "bethe":
        return NodeNumbers(kept, kept - (1.0 - d))
    concave = torch.maximum(1.0 - d, -0.5 * d)
    if entropy == "folded":
        return NodeNumbers(concave, concave - (1.0 - d))
    if entropy == "convex":
        return NodeNumbers(concave, nothing)
    if entropy == "total":
        return NodeNumbers(1.0 - d, nothing)
    raise ValueError(f"entropy must be one of {', '.join(ENTROPIES)}, found {entropy!r}")
