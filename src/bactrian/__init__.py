"""Learning and inference for discrete Markov and conditional random fields with loops.

The public names are imported on first use, so ``import bactrian`` itself costs next to nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Camel",
    "ClusterGraph",
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
    "Likelihood",
    "LinearChainCRF",
    "LogLinearModel",
    "MarkovRandomField",
    "PackedFolder",
    "Progress",
    "PseudoLikelihood",
    "PseudoMoments",
    "Samples",
    "SkipChainCRF",
    "Solution",
    "Status",
    "UnifiedScaling",
    "__version__",
    "chain_graph",
    "decode",
    "diagnose",
    "grid_graph",
    "infer",
    "junction_tree_graph",
    "learn",
    "skip_chain_graph",
]

if TYPE_CHECKING:
    from bactrian.clusters.builders import chain_graph, grid_graph, junction_tree_graph, skip_chain_graph
    from bactrian.clusters.graph import ClusterGraph
    from bactrian.clusters.packed_folder import PackedFolder
    from bactrian.estimators.graph_crf import GraphCRF
    from bactrian.estimators.grid_crf import GridCRF
    from bactrian.estimators.markov_random_field import MarkovRandomField
    from bactrian.estimators.sequences import LinearChainCRF, SkipChainCRF
    from bactrian.inference.decode import Decoding, decode
    from bactrian.inference.infer import infer
    from bactrian.inference.result import InferenceResult
    from bactrian.learning.camel import Camel
    from bactrian.learning.diagnostics import Diagnosis, Finding, diagnose
    from bactrian.learning.learn import learn
    from bactrian.learning.likelihood import Likelihood
    from bactrian.learning.moments import PseudoMoments
    from bactrian.learning.pseudolikelihood import PseudoLikelihood
    from bactrian.learning.scaling import UnifiedScaling
    from bactrian.model.graph_data import GraphData
    from bactrian.model.loglinear import Instance, LogLinearModel, Samples
    from bactrian.objective.entropy import CountingNumbers
    from bactrian.solvers.solution import ConvergenceWarning, Progress, Solution, Status
else:
    # Hidden from type checkers, for which every unknown attribute would otherwise exist.
    _MODULES = {
        "Camel": "bactrian.learning.camel",
        "ClusterGraph": "bactrian.clusters.graph",
        "ConvergenceWarning": "bactrian.solvers.solution",
        "CountingNumbers": "bactrian.objective.entropy",
        "Decoding": "bactrian.inference.decode",
        "Diagnosis": "bactrian.learning.diagnostics",
        "Finding": "bactrian.learning.diagnostics",
        "GraphCRF": "bactrian.estimators.graph_crf",
        "GraphData": "bactrian.model.graph_data",
        "GridCRF": "bactrian.estimators.grid_crf",
        "InferenceResult": "bactrian.inference.result",
        "Instance": "bactrian.model.loglinear",
        "Likelihood": "bactrian.learning.likelihood",
        "LinearChainCRF": "bactrian.estimators.sequences",
        "LogLinearModel": "bactrian.model.loglinear",
        "MarkovRandomField": "bactrian.estimators.markov_random_field",
        "PackedFolder": "bactrian.clusters.packed_folder",
        "Progress": "bactrian.solvers.solution",
        "PseudoLikelihood": "bactrian.learning.pseudolikelihood",
        "PseudoMoments": "bactrian.learning.moments",
        "Samples": "bactrian.model.loglinear",
        "SkipChainCRF": "bactrian.estimators.sequences",
        "Solution": "bactrian.solvers.solution",
        "Status": "bactrian.solvers.solution",
        "UnifiedScaling": "bactrian.learning.scaling",
        "chain_graph": "bactrian.clusters.builders",
        "decode": "bactrian.inference.decode",
        "diagnose": "bactrian.learning.diagnostics",
        "grid_graph": "bactrian.clusters.builders",
        "infer": "bactrian.inference.infer",
        "junction_tree_graph": "bactrian.clusters.builders",
        "learn": "bactrian.learning.learn",
        "skip_chain_graph": "bactrian.clusters.builders",
    }

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
