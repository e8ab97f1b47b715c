"""The PyTorch engine: learning and inference on a GPU, and CAMEL as a loss on top of any network.

Needs the extra ``torch`` (``pip install bactrian[torch]``); nothing else in bactrian imports it.

- :func:`learn` and :func:`infer` take a :class:`bactrian.GraphData` and work on ``device="cuda"`` or ``"cpu"``;
- :class:`CamelLoss` is a ``torch.nn.Module`` that takes node and edge scores from a network.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "bactrian.torch needs PyTorch, which is not installed: pip install 'bactrian[torch]'", name="torch"
    ) from error

from bactrian.engines.torch.batch import GraphBatch
from bactrian.engines.torch.infer import GraphMarginals, infer
from bactrian.engines.torch.learn import learn
from bactrian.engines.torch.loss import CamelLoss, Marginals
from bactrian.engines.torch.memory import DeviceMemoryError

__all__ = ["CamelLoss", "DeviceMemoryError", "GraphBatch", "GraphMarginals", "Marginals", "infer", "learn"]
