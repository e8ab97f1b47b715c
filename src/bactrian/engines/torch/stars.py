"""Star updates of pairwise graphs with plain tensors.

The maths is that of :mod:`bactrian.engines.numba.stars` with kappa_a = 1 for every edge: with E = exp(theta_a), d the
multipliers of a link and u = exp(d) at the other end of its edge,

    m = E'u,    log b = (theta_v + sum_l log m_l) / (kappa_v + degree),    d_l = log b - log m_l

A constant added to the multipliers of a link changes neither beliefs nor D, so u is normalised to sum 1. The product
is then at least the smallest entry of E / K, and linear space is safe as long as the range of the table is moderate;
tables of a wider range are handled in log space. Messages are held and passed in ``dtype``.
"""

from __future__ import annotations

import math
import time
from functools import partial

import torch
from torch import Tensor

from bactrian.camel.dual import larger
from bactrian.engines.torch.evaluation import StarValues, evaluate
from bactrian.engines.torch.kernels import can_update, tables_at_once, update_stars
from bactrian.engines.torch.star_state import StarState

#: Change of a belief below which messages of a precision only move within rounding.
FINEST = {torch.float64: 1e-12, torch.float32: 1e-5}
#: Rounds of sweeps, each sharper than the last, after which what disagreement is left counts as rounding.
_ROUNDS = 4
#: Sweeps between looks at whether damping is needed, the part of the residual that says so, and the most of it.
_TAME_SWEEPS, _SLOW, _MOST_DAMPING = 16, 0.999, 0.9


class Stars(StarState):
    """Sweeps of star updates over a :class:`StarState`, and its evaluation; on a GPU from recordings."""

    def _incoming(self, first: int, last: int) -> Tensor:
        """log m of links ``first:last``, up to a constant a link."""
        rows = self.multipliers.index_select(0, self.structure.partner[first:last])
        if self.wide:
            return self._log_products(torch.log_softmax(rows, 1), first, last)
        rows = torch.softmax(rows, 1)
        if self.structure.own_tables:
            return torch.bmm(rows[:, None, :], self._oriented[first:last])[:, 0].log_()
        kinds = self._oriented.shape[0]
        if kinds == 1:
            return (rows @ self._oriented[0]).log_()
        products = rows @ self._oriented.transpose(0, 1).reshape(self.n_labels, -1)
        chosen = self.structure.kind[first:last, None, None].expand(-1, 1, self.n_labels)
        return products.view(-1, kinds, self.n_labels).gather(1, chosen)[:, 0].log_()

    def _log_products(self, rows: Tensor, first: int, last: int) -> Tensor:
        block = tables_at_once(self.n_labels)
        parts = []
        for start in range(first, last, block):
            stop = min(last, start + block)
            own = self.structure.own_tables
            tables = self._log_tables[start:stop] if own else self._log_tables[self.structure.kind[start:stop]]
            parts.append(torch.logsumexp(rows[start - first : stop - first, :, None] + tables, 1))
        return torch.cat(parts) if parts else rows

    def sweep(self, damping: float = 0.0) -> Tensor:
        """Star updates of all nodes, colour after colour; returns the largest change of a belief, as a tensor."""
        self.swept = True
        if not self.records or self.wide or damping > 0.0:
            self._sweep(damping)
        else:
            self._recorded("sweep", self._sweep)
        return self._change

    def _sweep(self, damping: float = 0.0) -> None:
        s = self.structure
        if can_update(self._change.device, self.n_labels) and not self.wide and damping == 0.0:
            self._sweep_in_kernels()
            return
        self._change.zero_()
        for c in range(s.n_colours):
            nodes, links = slice(*s.colour_nodes[c : c + 2]), slice(*s.colour_links[c : c + 2])
            incoming = self._incoming(links.start, links.stop)
            total = torch.segment_reduce(incoming, "sum", offsets=self._offsets[c], axis=0, unsafe=True)
            total += self._low_scores[nodes]
            total *= self._inverse_divisor[nodes]
            log_belief = torch.log_softmax(total, 1)
            belief = log_belief.exp()
            torch.maximum(self._change, (belief - self.star_belief[nodes]).abs_().max(), out=self._change)
            self.star_belief[nodes] = belief
            self.star_log[nodes] = log_belief
            new = self.star_log.index_select(0, s.link_node[links])
            if damping > 0.0:
                new -= incoming
                self.multipliers[links] = new.lerp_(self.multipliers[links], damping)
            else:
                torch.sub(new, incoming, out=self.multipliers[links])

    def _sweep_in_kernels(self) -> None:
        s = self.structure
        for first, last in zip(s.colour_nodes, s.colour_nodes[1:], strict=False):
            update_stars(
                slice(first, last),
                self.multipliers,
                s.partner,
                None if s.own_tables else s.kind,
                s.pointer,
                self._low_scores,
                self._inverse_divisor,
                self._oriented,
                self.star_log,
                self.star_belief,
                self._changes,
            )
        if s.n_nodes:
            torch.amax(self._changes, 0, out=self._change)

    def solve(
        self, *, tolerance: float, max_sweeps: int, damping: float = 0.0, deadline: float = math.inf
    ) -> tuple[StarValues, int, float]:
        """Sweep until no belief changes, and no edge disagrees with its nodes, by more than ``tolerance``; evaluate.

        Returns the evaluation, the number of sweeps and the residual: 0 where no sweep was asked for. No sweep begins
        after ``deadline``, by :func:`time.perf_counter`.
        """
        tolerance = target = max(tolerance, FINEST[self.dtype])
        sweeps, change = 0, math.inf
        for _ in range(_ROUNDS):
            while sweeps < max_sweeps and time.perf_counter() < deadline:
                change = float(self.sweep(damping))
                sweeps += 1
                if not change > target:
                    break
            values = self.evaluate()
            residual = larger(change, float(values.violation)) if max_sweeps else 0.0
            if not residual > tolerance or sweeps >= max_sweeps or time.perf_counter() >= deadline:
                break
            target *= 0.1
        return values, sweeps, residual

    def evaluate(self) -> StarValues:
        """D, its derivatives by the scores, and the violation, at the multipliers as they are.

        On a GPU the next evaluation overwrites what this one returns.
        """
        if not self.records or self.wide or not self.consistency:
            return evaluate(self)
        return self._recorded(f"evaluate {'after' if self.swept else 'before'} sweeps", partial(evaluate, self))


def settle(
    stars: Stars, tolerance: float, max_sweeps: int, *, damping: float = 0.0, tame: bool = False
) -> tuple[StarValues, int, float]:
    """Sweep to ``tolerance`` as :meth:`Stars.solve` does, with ``tame`` damped more where the residual does not fall.

    With negative numbers of nodes undamped updates may oscillate.
    """
    done, before = 0, math.inf
    while True:
        limit = min(_TAME_SWEEPS, max_sweeps - done) if tame else max_sweeps
        values, sweeps, residual = stars.solve(tolerance=tolerance, max_sweeps=limit, damping=damping)
        done += sweeps
        if not residual > max(tolerance, FINEST[stars.dtype]) or done >= max_sweeps:
            return values, done, residual
        if residual > _SLOW * before:
            damping = min(0.5 + 0.5 * damping, _MOST_DAMPING)
        before = min(before, residual)
