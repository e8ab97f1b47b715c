"""A layer that turns a network's scores into a conditional random field: loss, marginals, most probable labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bactrian.engines.torch.chains import Chains, best_labels, chain_counts, chain_value
from bactrian.errors import ArgumentError, ArgumentTypeError

STRUCTURES = ("chain",)
REDUCTIONS = ("mean", "sum", "none")
#: What :meth:`CRF.decode` has where the mask is off.
PADDING = -100


class Last(NamedTuple):
    """How inference went in the last call of a layer."""

    residual: float  #: largest change of a belief, or disagreement, that was left; 0 where inference is exact
    sweeps: int
    converged: bool


class CRF(torch.nn.Module):
    """A conditional random field on top of a network, which gives the scores of labels; the layer owns the rest.

    On chains, (B, T, K), everything is exact, parameters are called as in pytorch-crf, and its ``state_dict`` loads.

    Parameters
    ----------
    n_labels : int
        K.
    structure : {"chain"}
        Which labels depend on each other directly.
    method : {"convex"}
        Entropy of learning, which marginals and decoding share; exact on chains.
    constraints : (K, K) bools, or three of them, optional
        Which label (column) may follow which (row); with (K,) bools for the first and the last label as in
        :func:`bactrian.text.allowed_transitions`. Observed labels that they forbid raise an error.
    class_weights : (K,), optional
        The loss of a sequence counts as much as these say of its known labels, on average.

    Attributes
    ----------
    transitions, start_transitions, end_transitions : Parameter
        Scores (K, K) of a label (column) after another (row), of the first, and of the last label; -inf forbids.
    last : Last
        How inference went in the last call.

    Notes
    -----
    Scores of -inf forbid a label. Sums are float32 at least, whatever the type of the scores, also under autocast. All
    results may be differentiated, but for :meth:`decode`, and the loss and the marginals twice.

    Examples
    --------
    >>> import torch
    >>> from bactrian.torch import CRF
    >>> crf = CRF(3)
    >>> scores, labels = torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long)
    >>> crf.loss(scores, labels).backward()
    >>> crf.marginals(scores).shape, crf.decode(scores).shape
    (torch.Size([2, 4, 3]), torch.Size([2, 4]))
    >>> crf
    CRF(3 labels, structure='chain', method='convex', exact)
    """

    def __init__(
        self,
        n_labels: int,
        structure: str = "chain",
        method: str = "convex",
        constraints: Any = None,
        *,
        class_weights: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(n_labels, bool) or not isinstance(n_labels, int) or n_labels < 1:
            raise ArgumentError("n_labels", f"must be a whole number, at least 1, found {n_labels!r}")
        if structure not in STRUCTURES:
            raise ArgumentError("structure", f"must be one of {', '.join(STRUCTURES)}, found {structure!r}")
        self.n_labels, self.structure, self.method = n_labels, structure, method
        self.start_transitions = torch.nn.Parameter(torch.empty(n_labels))
        self.end_transitions = torch.nn.Parameter(torch.empty(n_labels))
        self.transitions = torch.nn.Parameter(torch.empty(n_labels, n_labels))
        self.reset_parameters()
        weights = None if class_weights is None else torch.as_tensor(class_weights, dtype=torch.float32)
        if weights is not None and (weights.shape != (n_labels,) or not bool((weights >= 0).all())):
            raise ArgumentError("class_weights", f"must be {n_labels} numbers that are not negative")
        self.register_buffer("_class_weights", weights, persistent=False)
        for name, allowed in zip(("between", "first", "last"), self._checked_constraints(constraints), strict=True):
            self.register_buffer(f"_allowed_{name}", allowed, persistent=False)
        self.last = Last(float("nan"), 0, converged=False)

    def reset_parameters(self) -> None:
        """Draw all scores of the layer from -0.1 to 0.1."""
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """What ``repr`` has in brackets."""
        words = [f"{self.n_labels} labels", f"structure={self.structure!r}", f"method={self.method!r}", "exact"]
        if self._allowed_between is not None:
            words.append(f"{int(self._allowed_between.sum())} of {self.n_labels**2} transitions allowed")
        return ", ".join(words)

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """The loss, for those who call the layer, such as ``DistributedDataParallel``."""
        return self.loss(*arguments, **options)

    def loss(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Negative log-likelihood of the labels.

        Parameters
        ----------
        scores : (B, T, K)
            Scores of labels; -inf forbids one.
        labels : (B, T) ints
            Observed labels. Where one is ``ignore_index`` it is not known, and summed over: the likelihood is that of
            the labels that are known.
        mask : (B, T) bools, optional
            Which tokens are there; those on both sides of a gap are neighbours.
        ignore_index : int
            Stands for a label that is not known.
        reduction : {"mean", "sum", "none"}
            Over sequences.
        weights : (B,), optional
            The loss of each sequence counts so much; the mean still divides by their number.
        """
        if reduction not in REDUCTIONS:
            raise ArgumentError("reduction", f"must be one of {', '.join(REDUCTIONS)}, found {reduction!r}")
        inputs = self._inputs(scores, mask)
        if labels.shape != scores.shape[:2] or labels.is_floating_point():
            wanted = tuple(scores.shape[:2])
            raise ArgumentError("labels", f"must be integers of shape {wanted}, found {tuple(labels.shape)}")
        found = chain_value(*inputs, mask, labels, ignore_index)
        if self._class_weights is not None:
            known = labels != ignore_index if mask is None else mask.bool() & (labels != ignore_index)
            each = self._class_weights[torch.where(known, labels, 0)] * known
            found = found * (each.sum(1) / known.sum(1).clamp_min(1))
        if weights is not None:
            found = found * weights
        if reduction == "none":
            return found
        return found.sum() if reduction == "sum" else found.mean()

    def log_partition(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,) log of the sum of exp(score) over all labellings."""
        return chain_value(*self._inputs(scores, mask), mask, None, 0)

    def marginals(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, K) probabilities of labels, 0 where the mask is off."""
        inputs = self._inputs(scores, mask)
        return chain_counts(inputs[0].new_ones(len(scores)), *inputs, mask, None, 0)[0]

    @torch.no_grad()
    def decode(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T) the most probable labelling (Viterbi's algorithm), -100 where the mask is off."""
        chains = Chains.of(*self._inputs(scores, mask), mask)
        found = chains.steps.padded(best_labels(chains))
        return found if mask is None else found.masked_fill(~mask.bool(), PADDING)

    def _inputs(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores, transitions, and those at the start and at the end, of one type."""
        if scores.ndim != 3 or scores.shape[2] != self.n_labels or scores.shape[1] < 1:
            raise ArgumentError("scores", f"must have shape (B, T, {self.n_labels}), found {tuple(scores.shape)}")
        if not scores.is_floating_point():
            raise ArgumentTypeError("scores", f"must be floating-point numbers, found {scores.dtype}")
        if mask is not None and mask.shape != scores.shape[:2]:
            raise ArgumentError("mask", f"must have shape {tuple(scores.shape[:2])}, found {tuple(mask.shape)}")
        wide = torch.promote_types(torch.promote_types(scores.dtype, self.transitions.dtype), torch.float32)
        tables = [self.transitions, self.start_transitions, self.end_transitions]
        if self._allowed_between is not None:
            allowed = (self._allowed_between, self._allowed_first, self._allowed_last)
            tables = [part.masked_fill(~may, -torch.inf) for part, may in zip(tables, allowed, strict=True)]
        self.last = Last(0.0, 1, converged=True)
        between, first, last = (part.to(wide) for part in tables)
        return scores.to(wide), between, first, last

    def _checked_constraints(self, constraints: Any) -> tuple[Tensor | None, ...]:
        """What may follow what, begin and end."""
        if constraints is None:
            return None, None, None
        k = self.n_labels
        parts = constraints if isinstance(constraints, tuple) else (constraints, [True] * k, [True] * k)
        allowed = tuple(torch.as_tensor(part) for part in parts)
        if [part.shape for part in allowed] != [(k, k), (k,), (k,)] or any(p.dtype != torch.bool for p in allowed):
            raise ArgumentError("constraints", f"must be bools of shape ({k}, {k}), or also two of shape ({k},)")
        return allowed
