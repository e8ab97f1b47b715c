"""The PyTorch engine under the name that users import: :mod:`bactrian.engines.torch`."""

from bactrian.engines.torch import (
    CRF,
    CamelLoss,
    DeviceMemoryError,
    GraphBatch,
    GraphMarginals,
    Marginals,
    infer,
    learn,
)

__all__ = ["CRF", "CamelLoss", "DeviceMemoryError", "GraphBatch", "GraphMarginals", "Marginals", "infer", "learn"]
