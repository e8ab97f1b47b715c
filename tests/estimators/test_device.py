"""Estimators with ``device=``: what they learn and predict with PyTorch is what the CPU without it does."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import bactrian as bt  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def graphs(rng):
    X = []
    for n in (7, 5, 6):
        edges = [(i, i + 1) for i in range(n - 1)] + [(0, n - 1), (1, 3)]
        X.append((rng.normal(size=(n, 3)), edges))
    return X, [(x[0][:, 0] + rng.normal(size=len(x[0])) > 0).astype(int) for x in X]


def grids(rng):
    truth = [np.arange(20).reshape(4, 5) % 5 // 2 for _ in range(3)]
    return [t + rng.normal(size=t.shape) for t in truth], truth


def sequences(rng):
    words = [[f"w{w}" for w in rng.integers(6, size=n)] for n in (6, 1, 9, 4)]
    X = [[{"word": w.title()} for w in sequence] for sequence in words]
    return X, [[("A", "B", "C")[(int(w[1]) + (rng.random() < 0.3)) % 3] for w in s] for s in words]


CASES = [
    (bt.GraphCRF, {}, graphs),
    (bt.GraphCRF, {"method": "camel0", "tables": "full", "inference": "convex"}, graphs),
    (bt.GraphCRF, {"method": "cccp", "prior_variance": 0.3}, graphs),
    (bt.GridCRF, {"connectivity": 8, "by_direction": True}, grids),
    (bt.LinearChainCRF, {}, sequences),
    (bt.SkipChainCRF, {"prior_variance": 0.3}, sequences),
]


@pytest.mark.parametrize(("cls", "options", "make"), CASES)
def test_learned_and_predicted_on_a_device_is_what_the_cpu_finds(cls, options, make):
    X, y = make(np.random.default_rng(0))
    options = {"prior_variance": 1.0, "tolerance": 1e-8} | options
    if cls in (bt.GraphCRF, bt.GridCRF):
        options["inference_options"] = {"tolerance": 1e-10}
    if cls is bt.SkipChainCRF:
        options["inference_tolerance"] = 1e-10
    ours, theirs = cls(**options).fit(X, y), cls(**options, device=DEVICE).fit(X, y)
    assert theirs.solution_.converged
    np.testing.assert_allclose(theirs.weights_, ours.weights_, atol=1e-6)
    for one, other in zip(theirs.predict_marginals(X), ours.predict_marginals(X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(theirs.predict(X), ours.predict(X), strict=True))
    edges = [model.predict_marginals(X, edges=True)[1] for model in (theirs, ours)]
    for one, other in zip(*edges, strict=True):
        pair = (one, other) if isinstance(one, np.ndarray) else (one[1], other[1])
        np.testing.assert_allclose(*pair, atol=1e-6)


def test_known_labels_and_files(tmp_path):
    X, y = graphs(np.random.default_rng(1))
    crf = bt.GraphCRF(prior_variance=1.0, device=DEVICE, inference_options={"tolerance": 1e-10}).fit(X, y)
    known = [np.where(np.arange(len(labels)) % 2, labels, -1) for labels in y]
    found = crf.predict_marginals(X, known)
    crf.save(tmp_path / "crf.safetensors")
    loaded = bt.GraphCRF.load(tmp_path / "crf.safetensors")
    assert loaded.device is None  # whoever loads it may have no such device
    for one, other in zip(found, loaded.predict_marginals(X, known), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("tables", "method"),
    [("full", "convex"), ("full", "camel0"), ("full", "cccp"), ("full", "piecewise"), ("shared", "convex"),
     ("potts", "camel0")],
)  # fmt: skip
def test_fields_learned_on_a_device_are_those_of_the_cpu(tables, method):
    rng = np.random.default_rng(2)
    sizes = np.array([3, 2, 3, 3] if tables == "full" else [3, 3, 3, 3])
    rows = (rng.integers(0, 6, (60, 1)) + rng.integers(0, 2, (60, 4))) % sizes
    options = {
        "edges": [(0, 1), (1, 2), (2, 3), (0, 3)], "tables": tables, "method": method, "tolerance": 1e-8,
        "prior_variance": {"variables": 1.0, "edges": 0.3}, "cardinalities": sizes, "inference": "matched",
    }  # fmt: skip
    ours = bt.MarkovRandomField(**options).fit(rows)
    theirs = bt.MarkovRandomField(**options, device=DEVICE).fit(rows)
    np.testing.assert_allclose(theirs.weights_, ours.weights_, atol=1e-6)
    assert theirs.solution_.objective == pytest.approx(ours.solution_.objective, rel=1e-8)
    for one, other in zip(theirs.marginals(), ours.marginals(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_what_the_default_of_a_field_finds_does_not_depend_on_the_device():
    """Exactly where a junction tree is small, else by pseudo-likelihood, which the device works out."""
    rng = np.random.default_rng(3)
    rows = (rng.integers(0, 6, (80, 1)) + rng.integers(0, 2, (80, 5))) % [3, 2, 3, 2, 4]
    for budget, method in ((1 << 30, "exact"), (0, "pseudolikelihood")):
        options = {"edges": "complete", "tolerance": 1e-8, "memory_budget": budget, "inference": "convex"}
        ours, theirs = (bt.MarkovRandomField(device=at, **options).fit(rows) for at in (None, DEVICE))
        assert theirs.method_ == ours.method_ == method
        np.testing.assert_allclose(theirs.weights_, ours.weights_, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (bt.GraphCRF, {"device": "tpu"}, "device must be 'cpu' or 'cuda', found 'tpu'"),
        (bt.GraphCRF, {"method": "lbp"}, "method must be one of .* on this engine, found 'lbp'"),
        (bt.GraphCRF, {"l1": 0.1}, "l1 must be 0 on a device, found 0.1"),
        (bt.GraphCRF, {"inference": "trw"}, "inference must be one of matched, bp, rbp, convex on a device"),
        (bt.GraphCRF, {"inference_options": {"max_seconds": 1}}, "inference_options must be of counting_numbers"),
        (bt.GraphCRF, {"neighbours": 0.1}, "neighbours must be 'auto' or 'edges' on a device"),
        (bt.SkipChainCRF, {"method": "exact"}, "method must be one of .* on this engine, found 'exact'"),
        (bt.MarkovRandomField, {"method": "exact"}, "method must be one of .* on this engine, found 'exact'"),
    ],
)
def test_what_a_device_cannot_do_is_refused_before_any_work(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(**({"device": "cpu"} | options)).check_params()
