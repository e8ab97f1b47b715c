"""The PyTorch engine: learning and inference on a GPU, and CAMEL as a loss on top of any network.

Needs PyTorch, the extra ``torch``; nothing else in bactrian imports it.

- :func:`learn` and :func:`infer` take a :class:`bactrian.GraphData` and work on ``device="cuda"`` or ``"cpu"``;
- :class:`CRF` is a ``torch.nn.Module`` that owns its tables and takes node scores from a network: exact in chains
  (:mod:`.chains`), by message passing in grids and graphs (:mod:`.graphs`); :class:`CamelLoss` takes edge scores, too.

Which route an evaluation takes
-------------------------------
What :func:`learn` adds to learning on the CPU are these parts of the data: the dual, the solver over the weights, the
outer loop, limits, statuses and certificates are those of :mod:`bactrian.camel`, with vectors on the device.

All three make scores, sweep the multipliers of a :class:`.stars.Stars` (:meth:`.stars.Stars.solve`, colour
after colour of a :class:`.structure.Structure`) and evaluate D with its derivatives (:func:`.stars.evaluate`).
They differ in

- **where scores come from**: weights times inputs (:class:`.parts.DeviceScores`) for ``learn`` and ``infer``, a network
  for ``CamelLoss``;
- **where the data is** (``parts``): in one part, which stays on the device; with ``chunk=`` in several, moved there in
  turn with their multipliers;
- **how a sweep is made**: by one Triton kernel per colour (``kernels``) on a GPU with Triton, for up to 32 labels,
  without damping; by plain tensors otherwise;
- **linear or log space**: messages are products in linear space while no table has a range above 300 nats (40 for
  float32). Beyond, ``wide`` is set, and plain tensors in log space do the sweeps and the evaluation. Where every edge
  has a table of its own, the evaluation is in log space in any case;
- **how it is launched**: on a GPU, ``learn`` and ``infer`` with one part start recorded launches
  (:class:`.stars.Recording`): of scores and moments where clusters must agree, and of sweeps and evaluations in
  linear space without damping. ``CRF`` records whole calls whose shape comes again. All else launches anew each time.

Messages are float64 or, with ``dtype="float32"``, single precision; evaluations are float64 in any case.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "bactrian.torch needs PyTorch, which is not installed: pip install torch", name="torch"
    ) from error

from bactrian.engines.torch.batch import GraphBatch
from bactrian.engines.torch.crf import CRF
from bactrian.engines.torch.device import DeviceMemoryError
from bactrian.engines.torch.infer import GraphMarginals, infer
from bactrian.engines.torch.learn import learn
from bactrian.engines.torch.loss import CamelLoss, Marginals

__all__ = ["CRF", "CamelLoss", "DeviceMemoryError", "GraphBatch", "GraphMarginals", "Marginals", "infer", "learn"]
