"""Learning and inference for discrete Markov and conditional random fields with loops.

The public names are imported on first use, so ``import bactrian`` itself costs next to nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AttainmentWarning",
    "Camel",
    "ClusterGraph",
    "ContradictionWarning",
    "ConvergenceWarning",
    "CountingNumbers",
    "Decoding",
    "Diagnosis",
    "Finding",
    "GraphCRF",
    "GraphData",
    "GridCRF",
    "InferenceResult",
    "Instance",
    "LabelModel",
    "Likelihood",
    "LinearChainCRF",
    "LogLinearModel",
    "Marginal",
    "MarkovRandomField",
    "Moments",
    "MultiLabelCRF",
    "PackedFolder",
    "Progress",
    "ProgressLines",
    "PseudoLikelihood",
    "PseudoMoments",
    "Samples",
    "SkipChainCRF",
    "Solution",
    "Status",
    "UnifiedScaling",
    "__version__",
    "chain_graph",
    "compare",
    "decode",
    "diagnose",
    "flat_scorer",
    "grid_graph",
    "infer",
    "junction_tree_graph",
    "learn",
    "region_graph",
    "register_entropy",
    "register_learner",
    "skip_chain_graph",
]

if TYPE_CHECKING:
    from bactrian.camel.camel import Camel
    from bactrian.camel.entropy import CountingNumbers, register_entropy
    from bactrian.engines.files import PackedFolder
    from bactrian.estimators.graph_crf import GraphCRF
    from bactrian.estimators.grid_crf import GridCRF
    from bactrian.estimators.label_model import LabelModel
    from bactrian.estimators.labellings import flat_scorer
    from bactrian.estimators.markov_random_field import MarkovRandomField
    from bactrian.estimators.multi_label_crf import MultiLabelCRF
    from bactrian.estimators.refits import compare
    from bactrian.estimators.sequences import LinearChainCRF, SkipChainCRF
    from bactrian.graphs.graph import ClusterGraph, chain_graph, grid_graph, junction_tree_graph, skip_chain_graph
    from bactrian.graphs.graph_data import GraphData
    from bactrian.graphs.loglinear import Instance, LogLinearModel, Moments, Samples
    from bactrian.graphs.regions import region_graph
    from bactrian.inference.decode import Decoding, decode
    from bactrian.inference.infer import infer
    from bactrian.inference.result import InferenceResult
    from bactrian.learners.diagnostics import diagnose
    from bactrian.learners.findings import Diagnosis, Finding
    from bactrian.learners.full_tables import PseudoMoments, UnifiedScaling
    from bactrian.learners.learn import learn, register_learner
    from bactrian.learners.likelihood import Likelihood
    from bactrian.learners.pseudolikelihood import PseudoLikelihood
    from bactrian.margins.fit import ContradictionWarning
    from bactrian.margins.given import Marginal
    from bactrian.solvers.solution import (
        AttainmentWarning,
        ConvergenceWarning,
        Progress,
        ProgressLines,
        Solution,
        Status,
    )
else:
    # Hidden from type checkers, for which every unknown attribute would otherwise exist.
    _NAMES = {
        "camel.camel": "Camel",
        "camel.entropy": "CountingNumbers register_entropy",
        "engines.files": "PackedFolder",
        "estimators.graph_crf": "GraphCRF",
        "estimators.grid_crf": "GridCRF",
        "estimators.label_model": "LabelModel",
        "estimators.labellings": "flat_scorer",
        "estimators.markov_random_field": "MarkovRandomField",
        "estimators.multi_label_crf": "MultiLabelCRF",
        "estimators.sequences": "LinearChainCRF SkipChainCRF",
        "estimators.refits": "compare",
        "graphs.graph": "ClusterGraph chain_graph grid_graph junction_tree_graph skip_chain_graph",
        "graphs.graph_data": "GraphData",
        "graphs.loglinear": "Instance LogLinearModel Moments Samples",
        "graphs.regions": "region_graph",
        "inference.decode": "Decoding decode",
        "inference.infer": "infer",
        "inference.result": "InferenceResult",
        "learners.diagnostics": "diagnose",
        "learners.findings": "Diagnosis Finding",
        "learners.full_tables": "PseudoMoments UnifiedScaling",
        "learners.learn": "learn register_learner",
        "learners.likelihood": "Likelihood",
        "learners.pseudolikelihood": "PseudoLikelihood",
        "margins.fit": "ContradictionWarning",
        "margins.given": "Marginal",
        "solvers.solution": "AttainmentWarning ConvergenceWarning Progress ProgressLines Solution Status",
    }
    _MODULES = {name: f"bactrian.{module}" for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name):
        """Import the module of a public name and keep the name here (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        """List the public names, imported or not."""
        return sorted({*globals(), *__all__})
