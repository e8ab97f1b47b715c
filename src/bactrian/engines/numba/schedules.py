"""Schedules of message passing: sequential sweeps and parallel updates, instance by instance.

Both repeat the star update of :mod:`.stars`. A sequential sweep updates hub after hub, each from the
newest messages, forward and backward in turn. A parallel update computes the messages of all clusters from the same
old multipliers, then all multipliers from those (the flooding schedule). Damping mixes a part of the old multipliers,
in log space, into the new ones.

The state of an instance outlives a call, so that a caller may run a few sweeps, look at the clock, and go on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.flooding import (
    LinearMessages,
    all_messages,
    load_instance,
    pair_messages,
    store_instance,
    update_all_hubs,
    update_hubs,
)
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.pairs import load_messages, new_linear, store_messages, sweep_linear
from bactrian.engines.numba.stars import sweep_hubs
from bactrian.engines.numba.tables import Beliefs, Numbers, Tables, new_scratch

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
def _is_pairwise(layout: Layout, numbers: Numbers, instance: int) -> bool:
    """Whether all clusters are pairs whose tables' exponentials were taken with their own numbers."""
    cluster_rows, cluster_table = layout.cluster_rows, layout.cluster_table
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        if cluster_rows[cluster] == 0 or numbers.table[cluster_table[cluster]] != numbers.cluster[cluster]:
            return False
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _record(
    layout: Layout, progress: SweepProgress, instance: int, residual: float, sweeps: int, tolerance: float
) -> None:
    """Note the outcome of ``sweeps`` sweeps."""
    hubs = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    progress.iterations[instance] += sweeps
    progress.updates[instance] += sweeps * (layout.hub_links[hubs[1]] - layout.hub_links[hubs[0]])
    progress.residual[instance] = residual
    if residual == np.inf:
        progress.status[instance] = CONTRADICTION
    elif residual <= tolerance:
        progress.status[instance] = CONVERGED


@njit(cache=True, nogil=True, error_model="numpy")
def record_sweeps(
    layout: Layout, progress: SweepProgress, beliefs: Beliefs, running: Bools, first: int, last: int,
    tolerance: float,
) -> None:  # fmt: skip
    """Note the sweeps of running instances that the fastest path has done; they rest until the next call.

    A tree is done after as many sweeps as are exact for it.
    """
    for instance in range(first, last):
        if running[instance] and beliefs.done[instance]:
            _record(layout, progress, instance, beliefs.residual[instance], beliefs.sweeps[instance], tolerance)
            exact = progress.exact_sweeps[instance]
            if exact > 0 and progress.iterations[instance] >= exact:
                progress.status[instance] = CONVERGED
                progress.residual[instance] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def run_parallel(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    incoming: Floats,
    linear: LinearMessages,
    progress: SweepProgress,
    first: int,
    last: int,
    tolerance: float,
    max_sweeps: int,
) -> None:
    """Up to ``max_sweeps`` parallel updates of each instance of ``first:last`` that is still running."""
    scratch = new_scratch(layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        damping = progress.damping[instance]
        fast = damping == 0.0 and load_instance(layout, tables, numbers, multipliers, linear, instance)
        sweeps, residual = 0, np.inf
        while fast and sweeps < max_sweeps and residual > tolerance and not (sweeps > 0 and progress.late[0]):
            fast = pair_messages(layout, tables, linear, instance)
            residual = update_hubs(layout, linear, instance, scratch.belief) if fast else np.nan
            fast = fast and not math.isnan(residual)
            sweeps += 1
        if fast:
            store_instance(layout, linear, multipliers, instance)
        else:
            sweeps, residual = 0, np.inf
        while not fast and sweeps < max_sweeps and residual > tolerance and not (sweeps > 0 and progress.late[0]):
            all_messages(layout, tables, numbers, multipliers, instance, incoming, scratch)
            residual = update_all_hubs(
                layout, tables, numbers, multipliers, hub_log, incoming, instance, damping, scratch.belief
            )
            sweeps += 1
            if residual == np.inf:
                break
        _record(layout, progress, instance, residual, sweeps, tolerance)


@njit(cache=True, nogil=True, error_model="numpy")
def run_sequential(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    progress: SweepProgress,
    first: int,
    last: int,
    tolerance: float,
    max_sweeps: int,
) -> None:
    """Up to ``max_sweeps`` sweeps, backward and forward in turn, of each instance that is still running."""
    scratch = new_scratch(layout, first, last)
    linear = new_linear(layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        damping = progress.damping[instance]
        begun, exact = progress.iterations[instance], progress.exact_sweeps[instance]
        limit = min(max_sweeps, exact - begun) if exact > begun else max_sweeps
        sweeps, residual = 0, np.inf
        fast = damping == 0.0 and _is_pairwise(layout, numbers, instance)
        fast = fast and load_messages(layout, tables, numbers, multipliers, instance, linear)
        while fast and sweeps < limit and residual > tolerance and not (sweeps > 0 and progress.late[0]):
            backward = (begun + sweeps) % 2 == 0
            residual = sweep_linear(layout, tables, numbers, hub_log, instance, backward, linear)
            sweeps += 1
            fast = not math.isnan(residual)
        if fast:
            store_messages(layout, numbers, multipliers, instance, linear)
        else:
            sweeps, residual = 0, np.inf
        while not fast and sweeps < limit and residual > tolerance and not (sweeps > 0 and progress.late[0]):
            residual = sweep_hubs(
                layout, tables, numbers, multipliers, hub_log, instance, (begun + sweeps) % 2 == 0, damping,
                scratch.scores, scratch.small, scratch.product, scratch.star,
            )  # fmt: skip
            sweeps += 1
            if residual == np.inf:
                break
        if residual < np.inf and begun + sweeps == exact:
            residual = 0.0
        _record(layout, progress, instance, residual, sweeps, tolerance)
