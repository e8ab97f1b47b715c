"""Saved models of every estimator: round trips, large vocabularies, and files that were tampered with."""

import pickle
import time

import numpy as np
import pytest
from sklearn.base import clone
from tampering import mutated, rewritten

import bactrian as bt
from bactrian.estimators.saving import ModelFileError, SavedModel, read_saved, write_saved

WORDS = [["Ava", "met", "Bo", "in", "Rome"], ["Bo", "met", "Ava"], ["Rome"]]
TOKENS = [[{"word": word, "n": float(len(word))} for word in words] for words in WORDS]
TAGS = [["B-P", "O", "B-P", "O", "B-L"], ["B-P", "O", "B-P"], ["B-L"]]
GRAPHS = [([[0.2, 1.0], [0.9, 0.0], [0.7, 1.0]], [(0, 1), (1, 2)]), ([[-0.5, 0.0], [-0.1, 1.0]], [(0, 1)])]
NAMES = [["sky", "sky", "sea"], ["sea", "sea"]]
WITH_EDGES = [(nodes, edges, [[float(k), 1.0] for k in range(len(edges))]) for nodes, edges in GRAPHS]
GRID = np.array([[0, 0, 1], [0, 1, 1]])
STATES = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]])

#: An estimator, and what fit and predict_marginals take.
CASES = {
    "LinearChainCRF": (bt.LinearChainCRF(prior_variance=1.0), TOKENS, TAGS),
    "SkipChainCRF": (bt.SkipChainCRF(method="camel0", prior_variance=1.0, skip_tables="potts"), TOKENS, TAGS),
    "GraphCRF": (bt.GraphCRF(method="cccp"), GRAPHS, NAMES),
    "GraphCRF, edge features": (bt.GraphCRF(tables="full"), WITH_EDGES, [[3, 1, 3], [1, 1]]),
    "GridCRF": (bt.GridCRF(by_direction=True), [GRID + 0.5, GRID - 0.5], [GRID, GRID]),
    "LabelModel": (bt.LabelModel(edges=[(0, 1)]), STATES, None),
    "MarkovRandomField": (bt.MarkovRandomField([(0, 1), (1, 2)], prior_variance=1.0), STATES, None),
}


@pytest.fixture(scope="module")
def fitted():
    return {name: clone(model).fit(X) if y is None else clone(model).fit(X, y) for name, (model, X, y) in CASES.items()}


def answers(model, X):
    """What the model says: the log-probabilities of a field, the marginals of others."""
    if isinstance(model, bt.MarkovRandomField):
        return [model.score_samples(X)]
    return model.predict_proba(X) if isinstance(model, bt.LabelModel) else model.predict_marginals(X)


def assert_same(one, other, folder):
    """Models that leave the same files behind, and have the same parameters, weights and solution."""
    files = folder / "one of two", folder / "other of two"
    for model, file in zip((one, other), files, strict=True):
        model.save(file)
    assert files[0].read_bytes() == files[1].read_bytes()
    np.testing.assert_array_equal(one.weights_, other.weights_)
    np.testing.assert_equal(
        {name: repr(value) for name, value in one.get_params().items()},
        {name: repr(value) for name, value in other.get_params().items()},
    )
    for name in ("status", "objective", "moment_gap", "violation", "method", "seconds", "evaluations"):
        np.testing.assert_equal(getattr(one.solution_, name), getattr(other.solution_, name))


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name, fitted, tmp_path):
    model, X = fitted[name], CASES[name][1]
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = type(model).load(path)
    assert_same(loaded, model, tmp_path)
    for one, other in zip(answers(loaded, X), answers(model, X), strict=True):
        np.testing.assert_array_equal(one, other)
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_another_class_is_refused(name, fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[name].save(path)
    other = next(type(model) for model, _, _ in CASES.values() if type(model) is not type(fitted[name]))
    with pytest.raises(ModelFileError, match=f"the file holds a '{type(fitted[name]).__name__}'"):
        other.load(path)


def forge(document, rng):
    """Change something in a document at random, as a forger who mends the checksum would."""
    places = []

    def visit(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    visit(document["params"])
    visit(document["attributes"])
    node, key = places[int(rng.integers(len(places)))]
    values = [None, True, -1, 0, 10**30, 1.5, "", "odd", [], {}, [[]], {"array": "weights"}, {"tuple": [1]}]
    kind = int(rng.integers(3))
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node["odd"] = 1
    else:
        node[key] = values[int(rng.integers(len(values)))]


def refusals(model, path, seed, rounds):
    """Load damaged files; each is refused, or is the very same model. Returns how many were refused."""
    content = path.read_bytes()
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(rounds):
        path.write_bytes(mutated(content, rng))
        try:
            loaded = type(model).load(path)
        except ModelFileError:
            refused += 1
        else:
            assert_same(loaded, model, path.parent)
    return refused


def forgeries(model, X, path, seed, rounds):
    """Load files whose checksum is right but whose content was changed: refused, or a model that still works."""
    content = path.read_bytes()
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(rounds):
        path.write_bytes(content)
        rewritten(path, lambda document, header: forge(document, rng))
        try:
            loaded = type(model).load(path)
        except ModelFileError:
            refused += 1
        else:
            assert loaded.weights_.shape == model.weights_.shape
    return refused


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_refused(name, fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[name].save(path)
    assert refusals(fitted[name], path, 0, 25) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_thousands_of_damaged_files_are_refused(name, fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[name].save(path)
    assert refusals(fitted[name], path, 1, 1_000) > 800


@pytest.mark.parametrize("name", CASES)
def test_forged_files_do_no_harm(name, fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[name].save(path)
    assert forgeries(fitted[name], CASES[name][1], path, 0, 60) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_forged_files_do_no_harm(name, fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted[name].save(path)
    assert forgeries(fitted[name], CASES[name][1], path, 1, 600) > 100


# --- large vocabularies ---


def test_300_000_names_stay_out_of_the_header(tmp_path):
    names = [f"w-1:0=the word of number {number} and é{'x' * (number % 50)}" for number in range(300_000)]
    names[7], names[8] = "", "\ud800 alone"
    path = tmp_path / "model"
    began = time.perf_counter()
    write_saved(path, SavedModel("Thing", {}, {"names": {"X": names}}, {"z": np.ones(2)}))
    found = read_saved(path, "Thing")
    seconds = time.perf_counter() - began
    assert found.attributes["names"]["X"] == names
    assert int.from_bytes(path.read_bytes()[:8], "little") < 10_000
    assert seconds < 30.0  # a second or so; a quadratic loop would take hours


def test_a_model_with_many_features_round_trips(tmp_path):
    X = [[[f"feature {k} é" for k in range(i, i + 40)] for i in range(0, 4000, 40)]]
    y = [["a", "b"] * 50]
    model = bt.LinearChainCRF(tolerance=1e-2).fit(X, y)
    model.save(tmp_path / "model")
    header = int.from_bytes((tmp_path / "model").read_bytes()[:8], "little")
    assert header < model.n_features_in_ == 4000  # names are not in the header
    loaded = bt.LinearChainCRF.load(tmp_path / "model")
    assert loaded.feature_names_ == model.feature_names_
    assert loaded.predict(X) == model.predict(X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, h: d["attributes"]["names"].update(strings="nothing"), "not there"),
        (lambda d, h: d["attributes"]["names"].update(strings=["x"]), "not there"),
        (lambda d, h: h["attributes.names.lengths"].update(dtype="F64"), "not there"),
        (lambda d, h: h["attributes.names.lengths"].update(shape=[2, 1000]), "do not fit"),
    ],
)
def test_forged_strings_are_refused(tmp_path, change, message):
    path = tmp_path / "model"
    write_saved(path, SavedModel("Thing", {}, {"names": [f"n{i}é" for i in range(2000)]}, {}))
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=message):
        read_saved(path, "Thing")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 1, 1], "not UTF-8"),
        ([-1, 3, 1], "do not fit"),
        ([2**62, 2**62, 1], "do not fit"),
        ([2, 1, 1], "do not fit"),
        ([0, 0, 0], "do not fit"),
        ([0, 2, 1], None),
    ],
)
def test_forged_lengths_are_refused(tmp_path, lengths, message):
    path, names = tmp_path / "model", ["é", "", "a", *["name"] * 2000]
    write_saved(path, SavedModel("Thing", {}, {"names": names}, {}))
    forged = np.array([*lengths, *[4] * 2000])
    rewritten(path, lambda document, header: None, **{"attributes.names.lengths": forged})
    if message is None:
        assert read_saved(path, "Thing").attributes["names"] == ["", "é", "a", *names[3:]]
    else:
        with pytest.raises(ModelFileError, match=message):
            read_saved(path, "Thing")


@pytest.mark.parametrize("name", CASES)
def test_a_pickle_holds_the_model_and_not_the_beliefs_of_its_data(name, fitted, tmp_path):
    model, X = fitted[name], CASES[name][1]
    assert len(model.solution_.beliefs) > 0
    loaded = pickle.loads(pickle.dumps(model))
    assert_same(loaded, model, tmp_path)
    assert repr(loaded.solution_.history) == repr(model.solution_.history)
    for one, other in zip(answers(loaded, X), answers(model, X), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_size_of_a_pickle_does_not_grow_with_the_data():
    sizes = []
    for n in (2, 200):
        model = bt.LinearChainCRF(tolerance=1e-2).fit(TOKENS * n, TAGS * n)
        sizes.append(len(pickle.dumps(model)))
    assert sizes[1] < 1.2 * sizes[0]
