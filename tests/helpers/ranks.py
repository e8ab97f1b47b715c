"""Ranks for tests: problems cut among them, ranks that are threads of this process, and a program for launchers.

As a program (``mpirun -n 2 python tests/helpers/ranks.py KIND TASKS CUT FOLDER [LEARNER ...]``) every rank makes its
own part of the problem, does the tasks and writes what it found to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bactrian as bt
from bactrian.parallel import Communicator

Graph = tuple[Any, Any, Any]  # inputs, edges, labels

#: Every learner that is a sum over instances, several of CAMEL's settings included.
LEARNERS: dict[str, Any] = {
    **{name: name for name in ("piecewise", "camel0", "cccp", "cccp-empirical")},
    "convex directly": bt.Camel(entropy="convex"),
    "trw directly": bt.Camel(entropy="trw"),
    "folded": bt.Camel(fold=True),
    "plain": bt.Camel(tight=True),
    "joint": bt.Camel(entropy="clusters", solver="joint"),
    "tightened": bt.Camel(tighten=2),
    **{name: name for name in ("exact", "lbp", "trw", "convex", "pseudolikelihood", "piecewise-pseudolikelihood")},
}
#: Of each learner that is not asked for 1e-10: the joint solver's gap is one of multipliers as well, and takes long.
TOLERANCES = {"joint": 1e-8}
#: Those that try models made by hand.
BY_HAND = ["camel0", "cccp", "folded", "exact", "lbp", "trw", "pseudolikelihood"]
STRONGLY_CONVEX = {"prior_variance": 1.0, "max_iterations": 100_000, "n_threads": 1}


# --- problems ---


def problem(n_loopy: int = 7) -> list[Graph]:
    """A pair of nodes, two chains of different lengths, then graphs with loops."""
    rng = np.random.default_rng(8)
    shapes = [(2, [(0, 1)]), (5, [(v, v + 1) for v in range(4)]), (7, [(v, v + 1) for v in range(6)])]
    for _ in range(n_loopy):
        n = int(rng.integers(5, 8))
        chords = [(a, b) for a in range(n) for b in range(a + 2, n) if rng.random() < 0.2]
        shapes.append((n, [*((v, v + 1) for v in range(n - 1)), (0, n - 1), *(c for c in chords if c != (0, n - 1))]))
    graphs = []
    for n, edges in shapes:
        labels = np.sort(rng.integers(0, 3, size=n))
        inputs = np.column_stack([np.eye(3)[labels] + rng.normal(size=(n, 3)), np.ones(n)])
        graphs.append((inputs, np.array(edges), labels))
    return graphs


def cut(graphs: list[Graph], size: int, how: str) -> list[list[Graph]]:
    """Parts of the problem for so many ranks.

    ``dealt`` like cards; ``uneven``: the first rank has the pair alone, of three or more the second the trees, others
    the rest; ``trees``: the first rank has the pair and the trees.
    """
    if how == "dealt" or size == 1:
        return [graphs[rank::size] for rank in range(size)]
    first = [graphs[:1], graphs[1:3]] if how == "uneven" and size > 2 else [graphs[: 1 if how == "uneven" else 3]]
    rest = graphs[sum(map(len, first)) :]
    n = size - len(first)
    return [*first, *(rest[rank::n] for rank in range(n))]


def packed(graphs: list[Graph], n_inputs: int | None = None) -> bt.GraphData:
    """The data of some graphs."""
    counts = [len(inputs) for inputs, _, _ in graphs]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    inputs = np.concatenate([inputs for inputs, _, _ in graphs])
    edges = np.concatenate([edges + offset for (_, edges, _), offset in zip(graphs, offsets[:-1], strict=True)])
    labels = np.concatenate([labels for _, _, labels in graphs])
    return bt.GraphData(inputs[:, :n_inputs], edges, n_labels=3, labels=labels, node_counts=counts)


def by_hand(graphs: list[Graph]) -> list[bt.Instance]:
    """Instances with models of their own: a third of them with a cluster of three variables."""
    instances = []
    for inputs, edges, labels in graphs:
        n = len(inputs)
        clusters: list[tuple[int, ...]] = [*map(tuple, edges.tolist()), *((v,) for v in range(n))]
        clusters += [(0, 2, 4)] if n % 3 == 0 else []
        features = []
        for scope in clusters:
            table = np.zeros((3 ** len(scope), 6))
            if len(scope) == 1:
                table[:, :4] = np.array([1.0, 0.0, -1.0])[:, None] * inputs[scope[0]]
            else:
                states = np.indices((3,) * len(scope)).reshape(len(scope), -1)
                table[:, 2 + len(scope)] = np.ptp(states, axis=0)
            features.append(table)
        model = bt.LogLinearModel(bt.ClusterGraph([3] * n, clusters), features)
        instances.append(bt.Instance(model, labels))
    return instances


# --- what a rank does ---


def learn(data: Any, name: str, communicator: Communicator | None = None, **options: Any) -> bt.Solution:
    """Learn to the accuracy that the comparison with one process needs."""
    tolerance = TOLERANCES.get(name, 1e-10)
    return bt.learn(
        data, LEARNERS[name], communicator=communicator, **{**STRONGLY_CONVEX, "tolerance": tolerance, **options}
    )


def described(solution: bt.Solution) -> dict[str, Any]:
    """What ranks are compared by; numbers survive JSON to the last bit."""
    return {
        "weights": solution.weights.tolist(),
        "objective": solution.objective,
        "status": solution.status.name,
        "iterations": sum(record.iterations for record in solution.history),
        "evaluations": solution.evaluations,
    }


def task_learners(communicator: Communicator, how: str, names: list[str]) -> dict[str, Any]:
    """All given learners in turn."""
    data = packed(cut(problem(), communicator.size, how)[communicator.rank])
    return {name: described(learn(data, name, communicator)) for name in names}


def task_by_hand(communicator: Communicator, how: str, _: list[str]) -> dict[str, Any]:
    """Some learners on models made by hand."""
    data = by_hand(cut(problem(), communicator.size, how)[communicator.rank])
    return {name: described(learn(data, name, communicator)) for name in BY_HAND}


def stop_at(iteration: int, communicator: Communicator, name: str, how: str = "dealt") -> tuple[bt.Solution, list[int]]:
    """The last rank's callback wants to stop; the solution, and the iterations that this rank's callback saw."""
    data = packed(cut(problem(), communicator.size, how)[communicator.rank])
    seen: list[int] = []

    def follow(progress: bt.Progress) -> bool:
        seen.append(progress.iteration)
        return communicator.rank == communicator.size - 1 and progress.iteration == iteration

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        return learn(data, name, communicator, callback=follow), seen


def task_stopping(communicator: Communicator, how: str, _: list[str]) -> dict[str, Any]:
    """The last rank's callback, and its clock, stop all."""
    found = {}
    for name in ("camel0", "cccp", "joint", "lbp"):
        solution, seen = stop_at(4, communicator, name, how)
        found[f"callback, {name}"] = {**described(solution), "seen": seen}
    data = packed(cut(problem(), communicator.size, how)[communicator.rank])
    impatient = 0.0 if communicator.rank == communicator.size - 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        found["clock"] = described(learn(data, "cccp", communicator, max_seconds=impatient))
    return found


def task_refusals(communicator: Communicator, how: str, _: list[str]) -> dict[str, Any]:
    """What ranks cannot share is refused on every one of them; afterwards they can go on."""
    part = cut(problem(), communicator.size, how)[communicator.rank]
    found = {}
    for name, data, method in (
        ("weights", packed(part, n_inputs=3 if communicator.rank else 4), "cccp"),
        ("ups", packed(part), "ups"),
        ("pseudo-moments", packed(part), "pseudo-moments"),
    ):
        try:
            bt.learn(data, method, communicator=communicator)
            found[name] = "not refused"
        except ValueError as problem_found:
            found[name] = str(problem_found)
    return {"refused": found, "afterwards": described(learn(packed(part), "piecewise", communicator))}


def task_sums(communicator: Communicator, _how: str, _: list[str]) -> dict[str, Any]:
    """Sums of arrays of several lengths, as bytes."""
    rng = np.random.default_rng(communicator.rank)
    found = {}
    for n in (0, 1, 7, 1000, 300_001):
        values = rng.normal(size=n)
        communicator.add_up(values)
        found[str(n)] = values.tobytes().hex() if n <= 1000 else [float(values.sum()), values[-1].hex()]
    return {"sums": found, "rank": communicator.rank, "size": communicator.size, "kind": type(communicator).__name__}


TASKS: dict[str, Callable[[Communicator, str, list[str]], dict[str, Any]]] = {
    "learners": task_learners,
    "by-hand": task_by_hand,
    "stopping": task_stopping,
    "refusals": task_refusals,
    "sums": task_sums,
}


# --- ranks that are threads ---


class Meeting:
    """Where threads add up what they bring."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60.0)
        self.brought: list[Any] = [None] * size


class ThreadRank:
    """A rank that is a thread; counts its sums and remembers their lengths."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size
        self.lengths: list[int] = []

    def add_up(self, values: Any) -> None:
        """See :class:`Communicator`."""
        assert values.dtype == np.float64
        assert values.flags.c_contiguous
        self.lengths.append(values.size)
        meeting = self._meeting
        meeting.brought[self.rank] = values.copy()
        meeting.barrier.wait()
        assert len({part.shape for part in meeting.brought}) == 1, "ranks add up arrays of different lengths"
        values[:] = sum(meeting.brought[1:], start=meeting.brought[0].copy())
        meeting.barrier.wait()


def together(size: int, function: Callable[[ThreadRank], Any]) -> list[Any]:
    """What ``function`` returns on each of so many ranks."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadRank(meeting, rank))
        except BaseException as failure:  # noqa: BLE001  (handed on below)
            failures.append(failure)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((f for f in failures if not isinstance(f, threading.BrokenBarrierError)), failures[0])
    return results


# --- the program ---


def main() -> None:
    """Do the task and write what was found; a failure ends all ranks."""
    kind, tasks, how, folder, *names = sys.argv[1:]
    if kind == "mpi":
        from bactrian.parallel.launched import MPICommunicator

        communicator: Any = MPICommunicator()
    else:
        from bactrian.parallel.launched import launched

        communicator = launched()
    warnings.simplefilter("error")
    try:
        found = {task: TASKS[task](communicator, how, names) for task in tasks.split(",")}
        (Path(folder) / f"{communicator.rank}.json").write_text(json.dumps(found))
    except BaseException:  # noqa: BLE001  (said, and passed on as a status)
        traceback.print_exc()
        sys.stderr.flush()
        communicator.give_up(1)


if __name__ == "__main__":
    main()
