"""The PyTorch engine against the CPU's: the same optimum, marginals and errors that help."""

import gc
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import bactrian as bt  # noqa: E402
import bactrian.torch as btt  # noqa: E402
from bactrian.camel.dual import Dual  # noqa: E402
from bactrian.camel.entropy import carve, pairwise_numbers  # noqa: E402
from bactrian.camel.prior import Prior  # noqa: E402
from bactrian.engines.numba.orders import greedy_colours  # noqa: E402
from bactrian.engines.torch import stars  # noqa: E402
from bactrian.engines.torch.device import explain_memory  # noqa: E402
from bactrian.engines.torch.kernels import SparseProduct  # noqa: E402
from bactrian.engines.torch.parts import DeviceGraphs, compressed  # noqa: E402
from bactrian.engines.torch.stars import Recording  # noqa: E402
from bactrian.graphs.inputs import BundledRows  # noqa: E402
from bactrian.graphs.packing import pack  # noqa: E402
from bactrian.parallel.threads import (  # noqa: E402
    Context,
    Deadline,
    Workers,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
METHODS = ["piecewise", "camel0", "cccp", "cccp-empirical", "convex"]
K = 3


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph_data(seed: int = 0, *, n_graphs: int = 5, scale: float = 1.0, kind: str = "dense", **more) -> bt.GraphData:
    """Small loopy graphs with two types of edges, pendant and lonely nodes, and labels that follow the inputs."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(4, 8, n_graphs)
    counts[-1] = 1
    edges, types = [], []
    for first, size in zip(np.cumsum(counts) - counts, counts, strict=True):
        chain = [(first + i, first + i + 1) for i in range(size - 2)]
        skips = [(first + i, first + i + 2) for i in range(0, size - 3)]
        edges += chain + skips
        types += [0] * len(chain) + [1] * len(skips)
    n = int(counts.sum())
    inputs = scale * rng.normal(size=(n, 4))
    labels = (inputs[:, :K] / scale + rng.normal(size=(n, K))).argmax(axis=1)
    rows = inputs
    if kind == "sparse":
        rows = sp.csr_array(inputs * (rng.random(inputs.shape) < 0.6))
    elif kind == "bundled":
        own, use = (sp.csr_array(rng.random((n, width)) * (rng.random((n, width)) < 0.5)) for width in (4, 3))
        rows = BundledRows(own, use, sp.csr_array(rng.normal(size=(3, 4))))
    options = {"tables": ("full", "symmetric"), "edge_types": types, "node_counts": counts, "labels": labels} | more
    return bt.GraphData(rows, edges, n_labels=K, **options)


def device_dual(data, entropy, variance, device, dtype="float64", chunk=None, **circumstances) -> Dual:
    graphs = DeviceGraphs(data, torch.device(device), getattr(torch, dtype), chunk)
    context = Context(Workers(1), **circumstances)
    return Dual(graphs, lambda packed: carve(packed, entropy), Prior(variance), context)


def edge_inputs(data: bt.GraphData, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(data.edges), 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("entropy", ["clusters", "bethe"])
def test_sweeps_in_one_kernel_are_those_of_plain_tensors_cuda(dtype, own_tables, entropy, monkeypatch):
    data = graph_data()
    if own_tables:
        data = graph_data(edge_inputs=edge_inputs(data))
    weights = torch.from_numpy(0.5 * np.random.default_rng(3).normal(size=data.n_weights)).to("cuda")
    found = []
    for in_kernel in (True, False):
        monkeypatch.setattr(stars, "can_update", lambda *_, answer=in_kernel: answer)
        dual = device_dual(data, entropy, 2.0, "cuda", dtype)
        evaluation = dual.evaluate(weights, tolerance=0.0, max_sweeps=3)
        (part,) = dual.parts
        found.append((part.stars.multipliers, part.stars.star_belief, part.stars.change, evaluation.gradient))
    exact = dtype == "float64"
    for kernel, plain in zip(*found, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=0.0, atol=1e-12 if exact else 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("entropy", ["clusters", "bethe", "convex"])
@pytest.mark.parametrize("scale", [1.0, 200.0])  # the second needs log space
def test_value_gradient_and_violation_are_those_of_the_cpu(device, dtype, entropy, scale):
    data = graph_data(weights=[1.0, 0.5, 2.0, 1.0, 3.0])
    rng = np.random.default_rng(3)
    weights = 0.5 * rng.normal(size=data.n_weights)
    weights[-15:] *= scale
    packed = pack(data)
    cpu = Dual(packed, carve(packed, entropy), Prior(2.0), Context(Workers(1)))
    g = rng.normal(size=data.n_nodes * K)
    cpu.part.linearisation[:] = g
    expected = cpu.evaluate(weights, tolerance=1e-13, max_sweeps=3000)
    dual = device_dual(data, entropy, 2.0, device, dtype, 2 if scale > 1 else None)
    for part in dual.parts:
        part.linearisation[:] = part.hubs.of(g[K * part.piece.nodes.start : K * part.piece.nodes.stop])
    found = dual.evaluate(torch.from_numpy(weights).to(device), tolerance=1e-13, max_sweeps=3000)
    exact = dtype == "float64"
    assert found.value == pytest.approx(expected.value, rel=1e-10 if exact else 1e-8)
    tolerance = (1e-8 if exact else 1e-3) * np.abs(expected.gradient).max()
    np.testing.assert_allclose(found.gradient.cpu().numpy(), expected.gradient, atol=tolerance)
    assert found.violation < (1e-9 if exact else 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_garbage_collector_waits_while_a_recording_is_made_cuda():
    """An old recording that it destroyed meanwhile would spoil the new one."""
    values, enabled = torch.ones(8, device="cuda"), []

    def step() -> torch.Tensor:
        enabled.append(gc.isenabled())
        return values + 1.0

    recording = Recording(step)
    assert (recording() == 2.0).all()
    assert (recording() == 2.0).all()
    assert enabled == [True, False]  # a first run, and the recording
    assert gc.isenabled()


def noisy_grid(seed: int, side: int = 8) -> bt.GraphData:
    """A grid of three labels in bands with noisy inputs: attraction is strong, plain relinearisations are many."""
    index = np.arange(side * side).reshape(side, side)
    pairs = [(index[:, :-1], index[:, 1:]), (index[:-1], index[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
    labels = np.arange(side * side) * 3 // (side * side)
    inputs = np.eye(3)[labels] + np.random.default_rng(seed).normal(size=(side * side, 3))
    return bt.GraphData(inputs, edges, n_labels=3, labels=labels, tables="symmetric")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_extrapolated_linearisations_reach_the_fixed_point_in_fewer_steps(device, seed, dtype):
    data = noisy_grid(seed)
    options = {"prior_variance": 1.0, "tolerance": 1e-6 if dtype == "float64" else 1e-4}
    judge = bt.learn(data, bt.Camel(tight=True), prior_variance=1.0)
    plain = btt.learn(data, bt.Camel(tight=True), device=device, dtype=dtype, **options)
    accelerated = btt.learn(data, "cccp", device=device, dtype=dtype, **options)
    assert judge.converged
    assert plain.converged
    assert accelerated.converged
    np.testing.assert_allclose(accelerated.weights, judge.weights, atol=1e-4 if dtype == "float64" else 1e-2)
    assert len(accelerated.history) <= 0.5 * len(plain.history)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("method", "node_factors"),
    [
        ("piecewise", "clusters"),
        ("piecewise", "edges"),
        ("piecewise", "first-edge"),
        ("camel0", "clusters"),
        ("camel0", "edges"),
        ("convex", "clusters"),
        ("cccp-empirical", "edges"),
        pytest.param("cccp", "clusters", marks=pytest.mark.slow),
        pytest.param("cccp", "edges", marks=pytest.mark.slow),
        pytest.param("cccp-empirical", "clusters", marks=pytest.mark.slow),
    ],
)
def test_optimum_is_that_of_the_cpu(device, method, node_factors):
    data = graph_data(node_factors=node_factors)
    options = {"prior_variance": 0.5, "tolerance": 1e-9, "max_relinearisations": 300}
    cpu, ours = bt.learn(data, method, **options), btt.learn(data, method, device=device, **options)
    assert cpu.converged
    assert ours.converged
    assert ours.objective == pytest.approx(cpu.objective, rel=1e-8)
    np.testing.assert_allclose(ours.weights, cpu.weights, atol=1e-6)
    assert ours.moment_gap < 1e-6
    for m in range(data.n_graphs):
        assert len(ours.beliefs[m]) == len(cpu.beliefs[m])
        for mine, theirs in zip(ours.beliefs[m], cpu.beliefs[m], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", ["sparse", "bundled", "edge inputs", "mixed edge inputs", "active"])
def test_all_inputs_of_a_graph_data(kind):
    plain = graph_data()
    more = {
        "edge inputs": {"edge_inputs": edge_inputs(plain)},
        "mixed edge inputs": {"edge_inputs": {0: edge_inputs(plain)[plain.edge_types == 0]}},
        "active": {"active": np.arange(plain.n_weights) % 3 != 0},
    }.get(kind, {})
    data = graph_data(kind=kind, **more)
    options = {"prior_variance": 0.5, "tolerance": 1e-9}
    cpu = bt.learn(data, "camel0", **options)
    for chunk in (None, 2):
        ours = btt.learn(data, "camel0", device="cpu", chunk=chunk, **options)
        np.testing.assert_allclose(ours.weights, cpu.weights, atol=1e-6)
        assert ours.objective == pytest.approx(cpu.objective, rel=1e-8)


@pytest.mark.parametrize("method", ["piecewise", "cccp", "convex"])
def test_chunks_change_nothing(method):
    data = graph_data(2, n_graphs=4)
    options = {"device": "cpu", "prior_variance": 0.5, "tolerance": 1e-7, "max_relinearisations": 300}
    whole = btt.learn(data, method, **options)
    for chunk in (3,) if method == "cccp" else (1, 3, 100):
        cut = btt.learn(data, method, chunk=chunk, **options)
        np.testing.assert_allclose(cut.weights, whole.weights, atol=1e-6)
        assert cut.objective == pytest.approx(whole.objective, rel=1e-9)
        np.testing.assert_allclose(cut.beliefs[1][-1], whole.beliefs[1][-1], atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["camel0", "cccp", "convex"])
def test_single_precision_predicts_the_same(device, method):
    data = graph_data(4, n_graphs=60)
    double = btt.learn(data, method, device=device, prior_variance=1.0, tolerance=1e-4)
    single = btt.learn(data, method, device=device, prior_variance=1.0, tolerance=1e-4, dtype="float32")
    assert single.converged
    counts = np.diff(data.node_pointer)
    one, other = (
        np.array([table.argmax() for n, graph in zip(counts, found.beliefs, strict=True) for table in graph[:n]])
        for found in (double, single)
    )
    assert (one == other).mean() >= 0.999


@pytest.mark.slow
def test_each_engine_goes_on_from_the_other():
    data = graph_data()
    options = {"prior_variance": 0.5, "tolerance": 1e-8}
    cpu = bt.learn(data, "cccp", **options)
    ours = btt.learn(data, "cccp", device="cpu", **options)
    assert len(btt.learn(data, "cccp", device="cpu", start=cpu, **options).history) < len(ours.history) / 2
    assert len(bt.learn(data, "cccp", start=ours, **options).history) < len(cpu.history) / 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["bp", "convex"])
def test_marginals_are_those_of_the_cpu(device, method):
    data = graph_data(5)
    weights = 0.7 * np.random.default_rng(0).normal(size=data.n_weights)
    expected = bt.infer(data, weights, method, tolerance=1e-11)
    for chunk in (None, 2):
        found = btt.infer(data, weights, method, device=device, tolerance=1e-11, chunk=chunk)
        assert found.converged
        np.testing.assert_allclose(found.log_partition, [r.log_partition for r in expected], rtol=1e-9)
        nodes = np.concatenate([np.stack(list(r.variables)) for r in expected])
        np.testing.assert_allclose(found.nodes, nodes, atol=1e-8)
        tables = [t for r in expected for t in r.clusters if t.ndim == 2]
        np.testing.assert_allclose(found.edges(), tables, atol=1e-8)
        assert (found.predict() == nodes.argmax(axis=1)).all()


def test_propagation_that_does_not_converge_says_so():
    data = graph_data(5)
    with pytest.warns(bt.ConvergenceWarning, match="bp did not converge in 1 sweeps"):
        assert not btt.infer(data, np.ones(data.n_weights), device="cpu", max_iterations=1).converged


def test_numbers_by_degree_are_those_of_packed_data():
    for node_factors in ("clusters", "edges"):
        packed = pack(graph_data(node_factors=node_factors))
        for entropy, carving in {
            "clusters": carve(packed, "clusters"),
            "bethe": carve(packed, "bethe"),
            "folded": carve(packed, "folded"),
            "convex": carve(packed, "convex"),
            "total": carve(packed, "bethe").whole,
        }.items():
            hub, linearised = pairwise_numbers(entropy, packed.degrees, node_factors == "clusters")
            np.testing.assert_array_equal(hub, carving.hub)
            np.testing.assert_array_equal(linearised, carving.linearised)


@pytest.mark.slow
def test_folded_cccp_has_the_fixed_point_of_cccp():
    data = graph_data(node_factors="edges")
    options = {"prior_variance": 0.5, "tolerance": 1e-9}
    plain = btt.learn(data, "cccp", device="cpu", **options)
    folded = btt.learn(data, bt.Camel(fold=True), device="cpu", **options)
    np.testing.assert_allclose(folded.weights, plain.weights, atol=1e-5)
    assert len(folded.history) < len(plain.history)


def test_colours_of_neighbours_differ():
    rng = np.random.default_rng(0)
    edges = np.unique(np.sort(rng.integers(0, 40, (150, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    ends = edges.ravel()
    by_node = np.argsort(ends, kind="stable")
    pointer = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=41))])
    colours = greedy_colours(pointer, ends[by_node ^ 1])
    assert (colours[edges[:, 0]] != colours[edges[:, 1]]).all()
    assert colours[40] == 0
    assert colours.max() <= np.diff(pointer).max()


def test_a_tree_gives_the_exact_likelihood():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(12, 2))
    edges = [(i, i + 1) for i in range(11) if i != 5]
    data = bt.GraphData(
        inputs,
        edges,
        n_labels=K,
        labels=rng.integers(0, K, 12),
        tables="full",
        node_counts=[6, 6],
        node_factors="edges",
    )
    exact = bt.learn(data, "exact", prior_variance=1.0, tolerance=1e-9)
    ours = btt.learn(data, "convex", device="cpu", prior_variance=1.0, tolerance=1e-9)
    np.testing.assert_allclose(ours.weights, exact.weights, atol=1e-6)
    assert ours.objective == pytest.approx(exact.objective, rel=1e-9)


def test_unbounded_weights_are_told():
    data = bt.GraphData(np.ones((2, 1)), [(0, 1)], n_labels=2, labels=[0, 0], tables="potts")
    with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
        solution = btt.learn(data, "camel0", device="cpu", prior_variance=None)
    assert solution.status is bt.Status.UNBOUNDED


def test_limits_and_callback():
    data, seen = graph_data(), []
    solution = btt.learn(data, "cccp", device="cpu", callback=lambda p: seen.append(p.weights) or len(seen) == 3)
    assert solution.status is bt.Status.STOPPED
    assert len(seen) == 3
    assert seen[-1].shape == (data.n_weights,)
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit"):
        assert not btt.learn(data, device="cpu", max_iterations=2).converged


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["camel0", "cccp", "convex"])
def test_no_sweep_begins_after_the_time_limit(device, method):
    data = noisy_grid(0)
    with pytest.warns(bt.ConvergenceWarning, match="stopped at the time limit"):
        solution = btt.learn(data, method, device=device, max_seconds=0.0)
    assert solution.status is bt.Status.TIME_LIMIT
    assert sum(record.sweeps for record in solution.history) == 0
    dual = device_dual(data, "bethe", 1.0, device, deadline=Deadline(0.0))
    found = dual.evaluate(torch.ones(data.n_weights, dtype=torch.float64, device=device), max_sweeps=9)
    assert found.sweeps == 0
    assert found.residual == np.inf
    assert np.isfinite(found.value)


def test_graphs_without_nodes_have_beliefs_without_rows():
    counts = [0, 4, 0]
    data = bt.GraphData(
        np.eye(4), [(0, 1), (1, 2), (2, 0)], n_labels=2, labels=[0, 1, 1, 0], tables="full", node_counts=counts
    )
    beliefs = [tables.hubs() for tables in btt.learn(data, "camel0", device="cpu").beliefs]
    assert [tables.shape for tables in beliefs] == [(n, 2) for n in counts]
    on_cpu = [tables.hubs() for tables in bt.learn(data, "camel0", n_threads=1).beliefs]
    np.testing.assert_allclose(np.concatenate(beliefs), np.concatenate(on_cpu), atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_data_without_edges_is_logistic_regression(device):
    rng = np.random.default_rng(0)
    data = bt.GraphData(rng.normal(size=(20, 3)), [], n_labels=K, labels=rng.integers(0, K, 20), tables="full")
    cpu = bt.learn(data, "piecewise", tolerance=1e-9)
    for method in METHODS:
        np.testing.assert_allclose(
            btt.learn(data, method, device=device, tolerance=1e-9).weights, cpu.weights, atol=1e-6
        )


def test_too_little_memory_names_the_size_and_the_remedy(monkeypatch):
    data = graph_data(n_graphs=8)

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("bactrian.engines.torch.stars.Stars.sweep", full)
    with pytest.raises(
        btt.DeviceMemoryError, match=r"8 graphs at once take about .* KiB on cpu; give chunk= .*chunk=2"
    ):
        btt.learn(data, device="cpu")
    with pytest.raises(btt.DeviceMemoryError, match="a single graph cannot be cut further"):
        btt.infer(data, np.zeros(data.n_weights), device="cpu", chunk=1)
    with pytest.raises(RuntimeError, match="other"), explain_memory(torch.device("cpu"), lambda: None):
        raise RuntimeError("other")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"method": "lbp"}, ValueError, "method must be one of 'piecewise'.*'convex' on this engine, found 'lbp'"),
        ({"method": bt.Camel(solver="joint")}, ValueError, "does not support Camel\\(solver='joint'\\)"),
        ({"method": bt.Camel(entropy="trw")}, ValueError, "entropy must be 'clusters', 'bethe' or 'convex'"),
        ({"method": bt.Likelihood()}, TypeError, "a name or a Camel on this engine, found Likelihood"),
        ({"device": "tpu"}, ValueError, "device must be 'cpu' or 'cuda', found 'tpu'"),
        ({"device": "meta"}, ValueError, "device must be 'cpu' or 'cuda', found 'meta'"),
        ({"dtype": "float16"}, ValueError, "dtype must be 'float64' or 'float32', found 'float16'"),
        ({"chunk": 0}, ValueError, "chunk must be at least 1, found 0"),
        ({"chunk": 1.5}, (TypeError, ValueError), "chunk must be .* found 1.5"),
        ({"prior_variance": -1.0}, ValueError, "prior_variance must be positive"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be at least 0"),
        ({"start": [1.0]}, ValueError, "start must have shape"),
        ({"data": [1]}, TypeError, "data must be a GraphData .* found list"),
    ],
)
def test_bad_arguments_are_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        btt.learn(**{"data": graph_data(), "device": "cpu"} | change)


def test_more_bad_arguments():
    data = graph_data()
    with pytest.raises(ValueError, match="the GraphData has no labels"):
        btt.learn(graph_data(labels=None), device="cpu")
    with pytest.raises(ValueError, match=r"weights must have shape"):
        btt.infer(data, np.ones(3), device="cpu")
    with pytest.raises(ValueError, match="method must be one of 'bp', 'convex'"):
        btt.infer(data, np.ones(data.n_weights), "gibbs", device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="PyTorch finds none"):
            btt.learn(data)


def test_nothing_else_imports_torch():
    import subprocess
    import sys

    code = "import sys, bactrian; bactrian.learn; bactrian.GraphData; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    with warnings.catch_warnings():
        assert set(btt.__all__) <= set(dir(btt))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [1, 7, 9, 40])
def test_sparse_products_are_those_of_scipy(device, columns):
    """Among the rows are empty ones and one of more entries than a piece has."""
    rng = np.random.default_rng(columns)
    matrix = sp.csr_array(sp.random(50, 5000, 0.01, random_state=rng, format="csr"))
    matrix = sp.csr_array(sp.vstack([matrix, sp.csr_array(rng.normal(size=(1, 5000))), sp.csr_array((3, 5000))]))
    dense = rng.normal(size=(5000, columns))
    product = SparseProduct(compressed(matrix).to(device)).times(torch.from_numpy(dense).to(device))
    np.testing.assert_allclose(product.cpu().numpy(), matrix @ dense, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sparse", "bundled"])
def test_sparse_inputs_teach_what_they_teach_the_cpu(device, kind):
    data = graph_data(kind=kind)
    there = btt.learn(data, "cccp", device=device, prior_variance=1.0)
    here = bt.learn(data, "cccp", prior_variance=1.0)
    assert there.objective == pytest.approx(here.objective, rel=1e-8)
    np.testing.assert_allclose(there.weights, here.weights, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tying", ["full", "symmetric", "diagonal", "potts"])
def test_memory_grows_with_a_label_table_and_not_with_its_square(device, tying):
    rng, n_labels = np.random.default_rng(0), 45
    data = bt.GraphData(
        rng.normal(size=(6, 2)), [(0, 1), (1, 2), (3, 4), (4, 5)], n_labels=n_labels,
        labels=rng.integers(0, n_labels, 6), tables=tying, node_counts=[3, 3], edge_inputs=rng.normal(size=(4, 2)),
    )  # fmt: skip
    weights = 0.3 * rng.normal(size=data.n_weights)
    tracemalloc.start()
    try:
        dual = device_dual(data, "clusters", 2.0, device)
        found = dual.evaluate(torch.from_numpy(weights).to(device), tolerance=1e-12, max_sweeps=500)
        assert tracemalloc.get_traced_memory()[1] < n_labels**4
    finally:
        tracemalloc.stop()
    packed = pack(data)
    expected = Dual(packed, carve(packed, "clusters"), Prior(2.0), Context(Workers(1))).evaluate(
        weights, tolerance=1e-12, max_sweeps=500
    )
    assert found.value == pytest.approx(expected.value, rel=1e-10)
    np.testing.assert_allclose(found.gradient.cpu().numpy(), expected.gradient, atol=1e-8)
