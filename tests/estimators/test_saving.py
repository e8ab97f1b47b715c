"""Saved models: a round trip keeps everything, and no other file loads."""

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tampering import mutated, rewritten

import bactrian as bt
from bactrian.estimators import saving
from bactrian.estimators.saving import ModelFileError, SavedModel, read_saved, write_saved

X = np.random.default_rng(0).integers(0, 2, size=(60, 3))


@pytest.fixture(scope="module")
def field():
    return bt.MarkovRandomField([(0, 1), (1, 2)], prior_variance=2.0, method=bt.Camel(fold=True), seed=4).fit(X)


@pytest.fixture
def saved(field, tmp_path):
    path = tmp_path / "field.safetensors"
    field.save(path)
    return path


def assert_same(one, other):
    assert one.get_params() == other.get_params()
    for name in ("weights_", "edges_", "cardinalities_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    assert one.tables_ == other.tables_
    assert one.n_features_in_ == other.n_features_in_
    for name in ("status", "objective", "moment_gap", "violation", "method", "seconds", "evaluations"):
        np.testing.assert_equal(getattr(one.solution_, name), getattr(other.solution_, name))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"edges": "grid", "shape": (1, 3), "tables": "shared", "method": "exact"},
        {"tables": "potts", "method": "pseudolikelihood", "cardinalities": (2, 2, 2), "prior_variance": None},
        {"edges": np.array([[0, 2]]), "l1": 0.1, "max_seconds": np.inf, "tolerance": np.float64(1e-5), "n_threads": 1},
        {"edges": [(0, 2)], "method": bt.Likelihood(inference="lbp"), "cardinalities": np.array([2, 2, 2])},
    ],
)
def test_round_trip(tmp_path, options):
    field = bt.MarkovRandomField(**options).fit(X)
    path = tmp_path / "field.safetensors"
    field.save(path)
    loaded = bt.MarkovRandomField.load(path)
    for name, value in field.get_params().items():
        np.testing.assert_equal(loaded.get_params()[name], value)
    np.testing.assert_array_equal(loaded.weights_, field.weights_)
    np.testing.assert_array_equal(loaded.score_samples(X), field.score_samples(X))
    np.testing.assert_array_equal(loaded.sample(9), field.sample(9))
    assert os.listdir(tmp_path) == ["field.safetensors"]
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_parameters_changed_after_the_fit(field, tmp_path):
    path = tmp_path / "field.safetensors"
    other = bt.MarkovRandomField([(0, 1), (1, 2)], tables="potts").fit(X)
    other.set_params(tables="full", edges="complete").save(path)
    loaded = bt.MarkovRandomField.load(path)
    assert loaded.tables == "full"
    np.testing.assert_array_equal(loaded.score_samples(X), other.score_samples(X))


def test_learning_goes_on_from_a_file(field, saved):
    loaded = bt.MarkovRandomField.load(saved).set_params(warm_start=True)
    loaded.fit(X)
    assert loaded.solution_.evaluations < field.solution_.evaluations
    np.testing.assert_allclose(loaded.weights_, field.weights_, atol=1e-3)


def test_loaded_arrays_can_be_changed(saved):
    loaded = bt.MarkovRandomField.load(saved)
    loaded.weights_[0] = 1.0
    loaded.edges_[0, 0] = 0


def test_any_program_can_read_the_arrays(field, saved):
    np.testing.assert_array_equal(safetensors.numpy.load_file(saved)["weights"], field.weights_)


def test_a_learner_of_the_users_own_is_refused_and_nothing_written(field, saved):
    class Own:
        name = "own"

        def learn(self, data, settings, workers):
            return bt.Camel().learn(data, settings, workers)

    before = saved.read_bytes()
    other = bt.MarkovRandomField(method=Own()).fit(X)
    with pytest.raises(ValueError, match=r"params\.method is a Own, which cannot be saved"):
        other.save(saved)
    assert saved.read_bytes() == before


def test_a_failed_write_leaves_the_old_file(field, saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(saving.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        field.save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


# --- files that must not load ---


def test_rewriting_without_a_change_loads(field, saved):
    rewritten(saved, lambda document, header: None)
    assert_same(bt.MarkovRandomField.load(saved), field)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, h: d.update(format_version=2, library_version="9.0"), "written by bactrian 9.0.*upgrade"),
        (lambda d, h: d.update(format_version="1"), "expected a positive integer"),
        (lambda d, h: d.update(format="other"), "the format is 'other'"),
        (lambda d, h: d.update({"class": "os.system"}), "holds a 'os.system', expected a MarkovRandomField"),
        (lambda d, h: d.update(params=None), "lacks parts of a model"),
        (lambda d, h: d["params"].pop("edges"), "its parameters are"),
        (lambda d, h: d["params"].update(more=1), "its parameters are"),
        (lambda d, h: d["params"].update(edges={"array": "nothing"}), "unknown kind 'array'"),
        (lambda d, h: d["params"].update(method={"learner": "Popen", "settings": {}}), "unknown kind 'learner'"),
        (lambda d, h: d["params"]["method"]["settings"].update(entropy="odd"), "settings of Camel are not valid"),
        (lambda d, h: d["params"]["method"]["settings"].update(odd=1), "settings of Camel are not valid"),
        (lambda d, h: d["params"].update(edges={"items": [[1.5, 2]]}), "a damaged dict"),
        (lambda d, h: d["params"].update(edges={"items": [[1]]}), "a damaged dict"),
        (lambda d, h: d["params"].update(edges={"words": [1]}), "a damaged array of strings"),
        (lambda d, h: d["attributes"].update(status="FINE"), "does not describe a valid model"),
        (lambda d, h: d["attributes"].pop("tables"), "does not describe a valid model"),
        (lambda d, h: d["attributes"].update(tables="potts"), "weights, which do not fit its tables"),
        (lambda d, h: h.update(weights=h.pop("edges"), edges=h.pop("weights")), "not a flat array"),
        (lambda d, h: h["weights"].update(dtype="BF16"), "no dtype of F64, I64, U8"),
        (lambda d, h: h["weights"].update(data_offsets=[0, 1]), "cannot be read"),
        (lambda d, h: h["weights"].update(shape=[2**62, 2**62]), "cannot be read"),
        (lambda d, h: h.pop("weights"), "cannot be read"),
    ],
)
def test_forged_files_are_refused(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(ModelFileError, match=message) as caught:
        bt.MarkovRandomField.load(saved)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"\xff" * 8,
        b"\xff" * 100,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (6).to_bytes(8, "little") + b"\xff\xfe{}  ",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        b"\x80\x04\x95" + b"pickle, perhaps" * 9,
        safetensors.numpy.save({"weights": np.zeros(3)}),
        safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"format": "pt"}),
        safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"bactrian": "{}"}),
        safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"bactrian": "[" * 50_000}),
        safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"bactrian": '{"format": "\\ud800"}'}),
    ],
)
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ModelFileError):
        bt.MarkovRandomField.load(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        bt.MarkovRandomField.load(tmp_path / "nothing")


def test_unusual_values(tmp_path):
    path = tmp_path / "model"
    values = {"a": [1, (2.5, None)], "b": {"array": "x", "c": np.arange(3)}, "d": float("nan"), "e": "\ud800é"}
    write_saved(path, SavedModel("Thing", values, {}, {"z": np.ones(2, dtype=np.float32)}))
    found = read_saved(path, "Thing")
    np.testing.assert_equal(found.params, values)
    assert found.arrays["z"].dtype == np.float64
    with pytest.raises(ValueError, match="only integers and floats"):
        write_saved(path, SavedModel("Thing", {"a": np.array([1j])}, {}, {}))
    assert read_saved(path, "Thing").params["e"] == values["e"]


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {0: 1.0, 1: 5.0}},
        {"class_weight": {np.int64(0): 1.0, np.int64(1): 5.0}},
        {"class_weight": {"no": 1.0, "yes": 2.0}, "labels": np.array(["no", "yes", "peut-être"])},
        {"method": bt.Camel(entropy=bt.CountingNumbers(clusters=1.0, sepsets=0.5))},
        {"method": bt.Camel(entropy=bt.CountingNumbers(clusters=np.ones(5), sepsets=np.full(4, 0.5)))},
    ],
)
def test_parameters_of_every_documented_kind_are_kept(tmp_path, options):
    graphs = [(np.random.default_rng(m).normal(size=(3, 2)), [(0, 1), (1, 2)]) for m in range(4)]
    labels = [(inputs[:, 0] > 0).astype(int) for inputs, _ in graphs]
    if "labels" in options:
        labels = [np.array(["no", "yes"])[states] for states in labels]
    model = bt.GraphCRF(**options).fit(graphs, labels)
    model.save(tmp_path / "model")
    loaded = bt.GraphCRF.load(tmp_path / "model")
    for name, value in options.items():
        assert repr(loaded.get_params()[name]) == repr(value).replace("np.int64(0)", "0").replace("np.int64(1)", "1")
    for one, other in zip(model.predict_marginals(graphs), loaded.predict_marginals(graphs), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.fit(graphs, labels).weights_, model.weights_)


# --- fuzzing ---


def fuzz(field, path, seed, rounds):
    content = path.read_bytes()
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(rounds):
        path.write_bytes(mutated(content, rng))
        try:
            loaded = bt.MarkovRandomField.load(path)
        except ModelFileError:
            refused += 1
        else:
            assert_same(loaded, field)
    return refused


def test_fuzzed_files_never_load_as_another_model(field, saved):
    assert fuzz(field, saved, 0, 200) > 150


@pytest.mark.slow
def test_many_fuzzed_files_never_load_as_another_model(field, saved):
    assert fuzz(field, saved, 1, 5_000) > 4_000


def test_paths_that_cannot_be_written_are_named_as_they_were_given(field, tmp_path, monkeypatch):
    with pytest.raises(IsADirectoryError, match="cannot be written: it is a folder"):
        field.save(tmp_path)

    def denied(self, mode):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError) as problem:
        field.save(tmp_path / "field.safetensors")
    assert problem.value.filename == str(tmp_path / "field.safetensors")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []
