"""The PyTorch engine under the name that users import: :mod:`bactrian.engines.torch`."""

from bactrian.engines.torch import (
    CamelLoss,
    DeviceMemoryError,
    GraphBatch,
    GraphMarginals,
    Marginals,
    infer,
    learn,
)

__all__ = ["CamelLoss", "DeviceMemoryError", "GraphBatch", "GraphMarginals", "Marginals", "infer", "learn"]
