"""Training that is interrupted and goes on ends where an undisturbed run ends."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import bactrian as bt
from bactrian.estimators.saving import ModelFileError
from bactrian.experiments.announcements.generator import make_announcements
from bactrian.runs.checkpoints import Checkpoint, learn_in_segments
from bactrian.runs.compare_runs import compare_runs
from bactrian.runs.fitted_run import FittedRun
from bactrian.runs.folders import RunFolder
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.runs.training import interrupted_run, new_run, train
from bactrian.text import parse_seminar, write_columns


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours may catch it."""


def write_data(path, n=4):
    documents = [parse_seminar(made.tagged) for made in make_announcements(n, seed=3)]
    write_columns(path, [document.replace(text=None, starts=None, stops=None) for document in documents])


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.conll"
    write_data(path)
    return path


def settings_for(path, **options):
    model = options.pop("model", "skip-chain")
    return RunSettings.of(
        with_defaults(
            {
                "train": [str(path)],
                "model": model,
                "features": {"ngrams": 0, "window": 1},
                "options": options,
                "checkpoint_every": 7,
                "report": False,
            }
        )
    )


def killed_at(iteration):
    def follow(progress):
        if progress.iteration >= iteration:
            raise Killed

    return follow


LEARNERS = [
    {"method": "cccp", "max_iterations": 60},
    {"method": "cccp-empirical", "max_iterations": 60},
    {"method": "camel0"},
    {"method": "piecewise"},
    {"method": "lbp"},
    {"method": "exact", "model": "chain"},
    {"method": "piecewise", "l1": 0.2},
]


@pytest.mark.parametrize("options", LEARNERS, ids=lambda options: "-".join(map(str, options.values())))
def test_two_interruptions_change_nothing(options, train_file, tmp_path):
    settings = settings_for(train_file, tolerance=1e-4, **options)
    whole = train(new_run(tmp_path / "whole", settings))
    path = tmp_path / "broken"
    with pytest.raises(Killed):
        train(new_run(path, settings), killed_at(9))
    assert not (path / "model.safetensors").exists()
    assert Checkpoint.read(path / "checkpoint.safetensors").iterations == 7
    with pytest.raises(Killed):
        train(interrupted_run(path), killed_at(24))
    (path / ".model.safetensors.0123.part").write_text("the draft of a killed process")
    broken = train(interrupted_run(path))
    assert not list(path.glob(".*"))
    weights = [FittedRun.load(run.folder).estimator.weights_ for run in (whole, broken)]
    np.testing.assert_array_equal(weights[0], weights[1])
    for key in ("status", "objective", "iterations", "outer_iterations", "evaluations", "moment_gap", "violation"):
        assert whole.metrics[key] == broken.metrics[key], key
    traces = [[(p.iteration, p.outer, p.objective) for p in run.folder.read_history()[0]] for run in (whole, broken)]
    assert traces[0] == traces[1]
    assert [i for i, _, _ in traces[0]] == list(range(1, len(traces[0]) + 1))


def test_patience_keeps_the_best_weights_across_interruptions(train_file, tmp_path):
    write_data(tmp_path / "dev.conll", 5)
    usual = settings_for(train_file, model="chain", prior_variance=1e4, tolerance=1e-6).as_dict()
    settings = RunSettings.of({**usual, "dev": str(tmp_path / "dev.conll"), "patience": 3})
    whole = train(new_run(tmp_path / "whole", settings))
    looks = whole.metrics["held_out"]
    best = min(looks, key=lambda look: look["log_loss"])
    assert (whole.metrics["status"], whole.converged) == ("HELD_OUT", True)
    assert looks[-1]["iteration"] - best["iteration"] == 15
    assert whole.metrics["iterations"] == looks[-1]["iteration"]
    cut = train(
        new_run(tmp_path / "cut", RunSettings.of(usual)), lambda progress: progress.iteration >= best["iteration"]
    )
    with pytest.raises(Killed):
        train(new_run(tmp_path / "broken", settings), killed_at(best["iteration"] + 8))
    broken = train(interrupted_run(tmp_path / "broken"))
    assert broken.metrics["held_out"] == looks
    kept, *others = (FittedRun.load(run.folder).estimator.weights_ for run in (whole, cut, broken))
    for other in others:
        np.testing.assert_array_equal(kept, other)
    assert train(interrupted_run(tmp_path / "whole")).metrics["held_out"] == looks  # done: nothing is learned again


def test_segments_reach_the_optimum_of_a_single_run(train_file, tmp_path):
    """Dropping what the optimiser remembers changes the path, not the end."""
    options = {"method": "camel0", "tolerance": 1e-8}
    cut = train(new_run(tmp_path / "cut", settings_for(train_file, **options)))
    values = settings_for(train_file, **options).as_dict()
    whole = train(new_run(tmp_path / "whole", RunSettings.of({**values, "checkpoint_every": 0})))
    assert cut.converged
    assert whole.converged
    assert not list((tmp_path / "whole").glob("checkpoint*"))
    one, other = (FittedRun.load(run.folder).estimator.weights_ for run in (cut, whole))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_limit_keeps_everything_and_can_be_raised(train_file, tmp_path):
    settings = settings_for(train_file, method="piecewise", max_iterations=10)
    short = train(new_run(tmp_path / "run", settings))
    assert not short.converged
    assert short.metrics["status"] == "ITERATION_LIMIT"
    assert Checkpoint.read(short.folder.checkpoint).iterations == 10
    still = train(interrupted_run(tmp_path / "run"))
    assert still.metrics["iterations"] == 10
    done = train(interrupted_run(tmp_path / "run", max_iterations=1000))
    assert done.converged
    assert not done.folder.checkpoint.exists()
    assert train(interrupted_run(tmp_path / "run")).metrics == json.loads(done.folder.metrics.read_text())


def test_a_polite_stop_keeps_the_model(train_file, tmp_path):
    settings = settings_for(train_file, method="piecewise")
    stopped = train(new_run(tmp_path / "run", settings), lambda progress: progress.iteration >= 9)
    assert stopped.metrics["status"] == "STOPPED"
    assert FittedRun.load(stopped.folder).estimator.weights_.any()
    whole = train(new_run(tmp_path / "whole", settings))
    done = train(interrupted_run(tmp_path / "run"))
    one, other = (FittedRun.load(run.folder).estimator.weights_ for run in (whole, done))
    np.testing.assert_array_equal(one, other)


def test_changed_data_are_refused(tmp_path):
    path = tmp_path / "train.conll"
    write_data(path, 2)
    with pytest.raises(Killed):
        train(new_run(tmp_path / "run", settings_for(path, method="piecewise")), killed_at(8))
    path.write_text(path.read_text() + "\nmore O\n")
    with pytest.raises(ValueError, match="has changed since the run began"):
        train(interrupted_run(tmp_path / "run"))
    path.unlink()
    with pytest.raises(ValueError, match="no such file"):
        train(interrupted_run(tmp_path / "run"))


def test_a_damaged_checkpoint_is_refused(train_file, tmp_path):
    with pytest.raises(Killed):
        train(new_run(tmp_path / "run", settings_for(train_file, method="piecewise")), killed_at(8))
    checkpoint = RunFolder(tmp_path / "run").checkpoint
    content = bytearray(checkpoint.read_bytes())
    content[-9] ^= 1
    checkpoint.write_bytes(bytes(content))
    with pytest.raises(ModelFileError, match="damaged"):
        train(interrupted_run(tmp_path / "run"))


def test_bad_settings_leave_nothing_behind(train_file, tmp_path):
    values = settings_for(train_file).as_dict()
    values["options"] = {**values["options"], "transition_tables": "round"}
    with pytest.raises(ValueError, match="round"):
        train(new_run(tmp_path / "run", RunSettings.of(values)))
    assert not list(tmp_path.iterdir())


def test_time_limits_are_shared_by_segments():
    graph = bt.grid_graph(3, 3, 2)
    model = bt.LogLinearModel(graph, [None] * 9 + [np.eye(4)] * 12)
    data = bt.Samples(model, np.random.default_rng(0).integers(2, size=(40, 9)))
    saved = []
    limits = {"max_iterations": 100, "max_seconds": 0.0, "tolerance": 1e-9}
    with pytest.warns(bt.ConvergenceWarning, match="time limit"):
        solution = learn_in_segments(data, "cccp", every=1, save=saved.append, **limits)
    assert solution.status is bt.Status.TIME_LIMIT
    assert saved[-1].weights.tolist() == solution.weights.tolist()


# --- real processes ---


def command(*arguments):
    return [sys.executable, "-c", "from bactrian.cli import main; main()", *map(str, arguments)]


def arguments_for(train_file, path):
    options = ["--model", "skip-chain", "--method", "cccp", "--tolerance", "1e-7", "--checkpoint-every", "5"]
    return ["train", train_file, *options, "--max-iterations", "400", "--no-report", "-o", path]


def start(arguments):
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A process that was started in the background ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def weights_of(path):
    return FittedRun.load(RunFolder(path)).estimator.weights_


def wait_for(process, path, seconds=120.0):
    end = time.monotonic() + seconds
    while process.poll() is None and not path.exists() and time.monotonic() < end:
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_stops_politely_and_says_how_to_go_on(train_file, tmp_path):
    path = tmp_path / "run"
    process = start(arguments_for(train_file, path))
    wait_for(process, path / "checkpoint.safetensors")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert b"continue with: bactrian train --resume" in err
    assert b"Traceback" not in err
    assert weights_of(path).any()


def test_an_interrupted_run_says_so(train_file, tmp_path):
    trained = train(new_run(tmp_path / "run", settings_for(train_file, method="piecewise")), lambda progress: True)
    assert not trained.converged
    assert trained.metrics["status_in_words"] == "interrupted"
    (entry,) = compare_runs([FittedRun.load(trained.folder)]).entries
    assert entry.training.status == "interrupted"
