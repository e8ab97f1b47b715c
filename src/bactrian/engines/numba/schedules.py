"""Schedules of message passing: sequential sweeps and parallel updates, instance by instance.

Both repeat the star update, of :mod:`.linear` where that is safe, and of :mod:`.stars`. A sequential sweep updates hub
after hub, each from the newest messages, forward and backward in turn. A parallel update computes the messages of all
clusters from the same old multipliers, then all multipliers from those (the flooding schedule). Damping, in log space,
mixes a part of the old multipliers into the new ones.

The state of an instance outlives a call, so that a caller may run a few sweeps, look at the clock, and go on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import inner, njit
from bactrian.engines.numba.linear import Linear, load, store_logs, update_pairs_together
from bactrian.engines.numba.stars import sweep_hubs, update_hubs_together
from bactrian.engines.numba.tables import Limits, Passing, new_scratch
from bactrian.engines.numba.vectors import States

RUNNING, CONVERGED, CONTRADICTION = 0, 1, 2


class SweepProgress(NamedTuple):
    """Where each of ``M`` instances stands."""

    status: NDArray[np.int8]  #: (M,) RUNNING, CONVERGED or CONTRADICTION (some hub has no possible state)
    iterations: Ints  #: (M,) sweeps, or equivalent sweeps
    updates: Ints  #: (M,) messages computed
    residual: Floats  #: (M,) largest change of a marginal in the last sweep
    damping: Floats  #: (M,) part of the old multipliers that stays
    exact_sweeps: Ints  #: (M,) sequential sweeps that are exact (two, on a tree), or 0
    late: Bools  #: (1,) time is up: no more sweeps, but one


@njit(cache=True, nogil=True, error_model="numpy")
def run_sequential(part: Passing, limits: Limits, progress: SweepProgress, first: int, last: int) -> None:
    """Sweeps in log space, backward and forward in turn, of each instance of ``first:last`` that is still running.

    Those that are ``done`` in linear space are left as they are.
    """
    beliefs = part.beliefs
    scratch = new_scratch(part.layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING or beliefs.done[instance]:
            continue
        begun, exact = progress.iterations[instance], progress.exact_sweeps[instance]
        sweeps, residual = 0, np.inf
        limit = min(limits.max_sweeps, exact - begun) if exact > begun else limits.max_sweeps
        while sweeps < limit and residual > limits.tolerance and not (sweeps > 0 and progress.late[0]):
            backward = (begun + sweeps) % 2 == 0
            residual = sweep_hubs(part, instance, backward, progress.damping[instance], scratch)
            sweeps += 1
            if residual == np.inf:
                break
        beliefs.sweeps[instance], beliefs.residual[instance] = sweeps, residual


class ParallelMessages(NamedTuple):
    """Messages of all instances, for updates that do not go hub by hub."""

    outgoing: Floats  #: (n_link_states,) u
    incoming: Floats  #: (n_link_states,) m, or log m
    psi: Floats  #: (n_hub_states,) exp(theta_v), largest entry 1
    belief: Floats  #: (n_hub_states,) b
    pairwise: Bools  #: (M,) whether linear space can be tried
    in_use: Bools  #: (M,) kept in linear space between calls, by the residual schedule


@inner(allocates=True)
def of_instance(part: Passing, kept: ParallelMessages, instance: int, widest: int) -> Linear:
    """An instance's messages in linear space, with scales of 0; its hubs have at most ``widest`` states."""
    layout = part.layout
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.link_offset[layout.hub_links[begin]], layout.link_offset[layout.hub_links[end]]
    hubs = slice(layout.hub_offset[begin], layout.hub_offset[end])
    return Linear(
        part.tables.exp_entries,
        part.tables.exp_transposed,
        kept.outgoing[first:last],
        np.zeros(layout.hub_links[end] - layout.hub_links[begin]),
        kept.psi[hubs],
        kept.belief[hubs],
        kept.incoming[first:last],
        np.ones(widest),
        np.ones(widest),
        np.zeros(widest),
        np.zeros(widest),
        np.empty(0),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def run_parallel(
    part: Passing, limits: Limits, kept: ParallelMessages, progress: SweepProgress, first: int, last: int,
    states: States,
) -> None:  # fmt: skip
    """Parallel updates of each instance of ``first:last`` that is still running."""
    scratch = new_scratch(part.layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        damping = progress.damping[instance]
        linear = of_instance(part, kept, instance, scratch.small.size)
        fast = damping == 0.0 and kept.pairwise[instance] and load(part, linear, instance, False, states)
        linear.scale[:] = 0.0
        sweeps, residual = 0, np.inf
        while (
            fast
            and sweeps < limits.max_sweeps
            and residual > limits.tolerance
            and not (sweeps > 0 and progress.late[0])
        ):
            residual = update_pairs_together(part, linear, instance, states)
            sweeps += 1
            fast = not math.isnan(residual)
        if not (fast and store_logs(part, linear, instance, True, states)):
            sweeps, residual = 0, np.inf
            while sweeps < limits.max_sweeps and residual > limits.tolerance and not (sweeps > 0 and progress.late[0]):
                residual = update_hubs_together(part, instance, damping, kept.incoming, scratch)
                sweeps += 1
                if residual == np.inf:
                    break
        part.beliefs.sweeps[instance], part.beliefs.residual[instance] = sweeps, residual
