"""The PyTorch engine among threads, worker processes, checkpoints, low precision and too little memory."""

import io
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import bactrian as bt  # noqa: E402
import bactrian.torch as btt  # noqa: E402
from bactrian.camel.dual import Dual  # noqa: E402
from bactrian.camel.entropy import carve  # noqa: E402
from bactrian.camel.prior import Prior  # noqa: E402
from bactrian.engines.torch.parts import DeviceGraphs  # noqa: E402
from bactrian.parallel.threads import Context, Workers  # noqa: E402
from bactrian.torch import CamelLoss, GraphBatch  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
K = 3
TRIANGLES = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch_scores(device: str, seed: int = 0, *, nodes: int = 6, tables: tuple[int, ...] = (), dtype=torch.float64):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(nodes, K))).to(device, dtype)
    entries = torch.from_numpy(rng.normal(size=(*tables, K, K))).to(device, dtype)
    return scores, entries, torch.from_numpy(rng.integers(0, K, nodes)).to(device)


def loopy_data(seed: int = 0, *, counts=(6, 5, 4), sparse: bool = False) -> bt.GraphData:
    """Graphs with skip edges of a second type; of those without nodes there is nothing."""
    rng = np.random.default_rng(seed)
    edges, types, first = [], [], 0
    for size in counts:
        edges += [(first + i, first + i + 1) for i in range(size - 1)] + [
            (first + i, first + i + 2) for i in range(size - 2)
        ]
        types += [0] * max(size - 1, 0) + [1] * max(size - 2, 0)
        first += size
    inputs = rng.normal(size=(first, 4)) * (rng.random((first, 4)) < 0.7)
    return bt.GraphData(
        sp.csr_array(inputs) if sparse else inputs, edges, n_labels=K, labels=rng.integers(0, K, first),
        tables=("full", "symmetric"), edge_types=types, node_counts=counts,
    )  # fmt: skip


# ---- low precision


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sums_over_a_batch_do_not_overflow_in_half_precision(device, dtype, reduction):
    """66,000 equal edges: the loss, and its derivative by a shared entry, exceed what float16 can hold."""
    count = 66_000
    batch = GraphBatch.copies([(0, 1)], 2, count)
    nodes = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=dtype, device=device).repeat(count, 1).requires_grad_()
    table = torch.tensor([[0.0, 1.0], [-1.0, 0.5]], dtype=dtype, device=device, requires_grad=True)
    labels = torch.ones(2 * count, dtype=torch.int64, device=device)
    loss = CamelLoss("piecewise", reduction=reduction)(nodes, table, batch, labels)
    loss.backward()
    value = loss.detach()
    single = np.log(np.exp(nodes[:2].detach().double().cpu().numpy()).sum(axis=1)).sum()
    single += np.log(np.exp(table.detach().double().cpu().numpy()).sum()) - (0.0 + 1.0 + 0.5)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(single * (count if reduction == "sum" else 1), rel=1e-6)
    assert nodes.grad.dtype == table.grad.dtype == dtype
    assert nodes.grad.isfinite().all()
    if reduction == "mean":
        joint = np.exp(table.detach().double().cpu().numpy())
        expected = joint / joint.sum() - np.array([[0.0, 0.0], [0.0, 1.0]])
        np.testing.assert_allclose(table.grad.double().cpu().numpy(), expected, atol=5e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_in_half_precision_are_those_in_double_precision_rounded(device):
    nodes, tables, labels = batch_scores(device, 1, tables=(len(TRIANGLES),), dtype=torch.bfloat16)
    batch, found = GraphBatch(TRIANGLES, [6]), {}
    for dtype in (torch.bfloat16, torch.float64):
        inputs = nodes.detach().to(dtype).requires_grad_(), tables.detach().to(dtype).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16):  # must not lower the engine's own products
            CamelLoss("convex")(*inputs, batch, labels).backward()
        found[dtype] = [value.grad for value in inputs]
    for low, double in zip(found[torch.bfloat16], found[torch.float64], strict=True):
        torch.testing.assert_close(low, double.to(torch.bfloat16), rtol=0.0, atol=0.0)


def test_scores_that_are_not_floating_point_are_refused_and_any_integers_are_labels():
    nodes, table, labels = batch_scores("cpu")
    batch, loss = GraphBatch(TRIANGLES, [6]), CamelLoss("camel0")
    with pytest.raises(TypeError, match=r"node_scores must be floating-point numbers, found torch\.int64"):
        loss(nodes.long(), table, batch, labels)
    assert float(loss(nodes, table, batch, labels.to(torch.uint8))) == float(loss(nodes, table, batch, labels))


# ---- tables per type and per edge


@pytest.mark.parametrize("device", DEVICES)
def test_as_many_edges_as_types_are_ambiguous_unless_the_batch_says_which(device):
    edges, types = [(0, 1), (1, 2)], [1, 0]
    nodes, tables, labels = batch_scores(device, nodes=3, tables=(2,))
    loss = CamelLoss("camel0", tolerance=1e-12)
    with pytest.raises(
        ValueError, match=r"2 tables for 2 edges .* give GraphBatch\(n_types=2\) .* leave edge_types out"
    ):
        loss(nodes, tables, GraphBatch(edges, [3], edge_types=types), labels)
    per_edge = loss(nodes, tables, GraphBatch(edges, [3]), labels)
    per_type = loss(nodes, tables, GraphBatch(edges, [3], edge_types=types, n_types=2), labels)
    swapped = loss(nodes, tables[[1, 0]], GraphBatch(edges, [3]), labels)
    assert float(per_type) == pytest.approx(float(swapped), rel=1e-12)
    assert float(per_type) != pytest.approx(float(per_edge), rel=1e-3)
    same = loss(nodes, tables, GraphBatch(edges, [3], edge_types=[0, 1]), labels)  # either reading is the same
    assert float(same) == pytest.approx(float(per_edge), rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_types", [None, 4])
@pytest.mark.parametrize("types", [[0, 1, 0, 1, 0, 1, 0], [2, 2, 2, 2, 2, 2, 2]])
def test_a_batch_need_not_have_edges_of_every_type(device, n_types, types):
    nodes, tables, labels = batch_scores(device, tables=(4,))
    tables.requires_grad_()
    loss = CamelLoss("camel0", tolerance=1e-12)
    value = loss(nodes, tables, GraphBatch(TRIANGLES, [6], edge_types=types, n_types=n_types), labels)
    value.backward()
    expected = loss(nodes, tables.detach()[types], GraphBatch(TRIANGLES, [6]), labels)
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-10)
    missing = [t for t in range(4) if t not in types]
    assert (tables.grad[missing] == 0.0).all()
    assert (tables.grad[sorted(set(types))] != 0.0).any(dim=(1, 2)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_typed_batch_without_edges_and_one_table_for_all_types(device):
    nodes, tables, labels = batch_scores(device, nodes=6, tables=(2,))
    loss = CamelLoss("convex", tolerance=1e-12)
    value = loss(nodes, tables, GraphBatch([], [6], edge_types=[]), labels)
    assert float(value) == pytest.approx(float(torch.nn.functional.cross_entropy(nodes, labels, reduction="sum")))
    assert float(loss(nodes, tables[:0], GraphBatch([], [6], edge_types=[]), labels)) == float(value)
    table = tables[0].clone().requires_grad_()
    typed = loss(nodes, table, GraphBatch(TRIANGLES, [6], edge_types=[0, 1, 0, 1, 0, 1, 0]), labels)
    typed.backward()
    plain = loss(nodes, tables[0], GraphBatch(TRIANGLES, [6]), labels)
    assert float(typed.detach()) == pytest.approx(float(plain), rel=1e-12)
    assert table.grad.shape == (K, K)


def test_numbers_of_tables_that_fit_neither_types_nor_edges_are_refused():
    nodes, tables, labels = batch_scores("cpu", tables=(7,))
    types = [0, 1, 2, 0, 1, 2, 0]
    loss = CamelLoss("camel0")
    with pytest.raises(
        ValueError, match=r"at least 3 tables, one per type, .* found 2; tables per edge need a GraphBatch"
    ):
        loss(nodes, tables[:2], GraphBatch(TRIANGLES, [6], edge_types=types), labels)
    with pytest.raises(ValueError, match=r"edge_scores must be 4 tables, one per type, .* found 7"):
        loss(nodes, tables, GraphBatch(TRIANGLES, [6], edge_types=types, n_types=4), labels)
    with pytest.raises(ValueError, match="n_types must be at least 3 for these edge_types, found 2"):
        GraphBatch.copies(TRIANGLES, 6, 2, edge_types=types, n_types=2)


# ---- messages that have not settled


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["camel0", "convex", "cccp"])
def test_messages_that_have_not_settled_are_told_once_and_can_be_read(device, method):
    nodes, table, labels = batch_scores(device)
    batch, loss = GraphBatch(TRIANGLES, [6]), CamelLoss(method, max_sweeps=1)
    assert np.isnan(loss.residual)
    assert not loss.converged
    with pytest.warns(
        bt.ConvergenceWarning, match=f"{method}: messages did not converge .*max_sweeps=1 sweeps: residual"
    ) as told:
        loss(nodes, 3.0 * table, batch, labels)
    assert told[0].filename == __file__
    assert loss.residual > 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(nodes, 3.0 * table, batch, labels)
        assert not loss.converged
        loss.max_sweeps = 500
        loss(nodes, 3.0 * table, batch, labels)
    assert loss.converged
    assert loss.residual <= 1e-6


def test_piecewise_passes_no_messages_and_has_none_to_settle():
    nodes, table, labels = batch_scores("cpu")
    loss = CamelLoss("piecewise")
    loss(nodes, table, GraphBatch(TRIANGLES, [6]), labels, ["a"])
    assert loss.converged
    assert loss.residual == 0.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nan_survives_the_maximum_over_parts_and_sweeps(device, chunk, dtype):
    data = loopy_data()
    graphs = DeviceGraphs(data, torch.device(device), getattr(torch, dtype), chunk)
    dual = Dual(graphs, lambda packed: carve(packed, "bethe"), Prior(1.0), Context(Workers(1)))
    weights = torch.full((data.n_weights,), torch.nan, dtype=torch.float64, device=device)
    found = dual.evaluate(weights, tolerance=1e-8, max_sweeps=5)
    assert np.isnan([found.value, found.violation, found.residual]).all()
    for part in dual.parts:
        assert torch.isnan(part.stars.sweep())


# ---- empty graphs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("method", ["piecewise", "camel0", "cccp", "cccp-empirical", "convex"])
def test_graphs_without_nodes_change_nothing(device, chunk, method):
    full, gaps = loopy_data(counts=(6, 1, 4)), loopy_data(counts=(0, 6, 0, 0, 1, 4, 0))
    expected = bt.learn(full, method, prior_variance=0.5)
    found = btt.learn(gaps, method, device=device, chunk=chunk, prior_variance=0.5)
    assert found.objective == pytest.approx(expected.objective, rel=1e-6)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-4)
    assert [len(found.beliefs[m]) for m in range(7)] == [0, 6 + 5 + 4, 0, 0, 1, 4 + 3 + 2, 0]
    marginals = btt.infer(gaps, found.weights, device=device, chunk=chunk)
    assert (marginals.log_partition[[0, 2, 3, 6]] == 0.0).all()
    np.testing.assert_allclose(
        marginals.log_partition[[1, 4, 5]], [r.log_partition for r in bt.infer(full, found.weights, "bp")], rtol=1e-6
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_may_hold_graphs_without_nodes(device):
    nodes, table, labels = batch_scores(device)
    loss = CamelLoss("cccp", reduction="sum")
    for _ in range(3):
        value = loss(nodes, table, GraphBatch(TRIANGLES, [0, 6, 0]), labels, ["a", "b", "c"])
        expected = loss(nodes, table, GraphBatch(TRIANGLES, [6]), labels, ["alone"])
        assert float(value) == pytest.approx(float(expected), rel=1e-10)


# ---- threads, determinism, worker processes, checkpoints


def together(*works) -> list:
    """What functions return that run in threads of their own, begun at the same time."""
    barrier = threading.Barrier(len(works))

    def run(work):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(run, works))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sparse", [False, True])
def test_threads_learn_at_the_same_time_what_one_learns_alone(device, sparse):
    data = [loopy_data(seed, counts=(9, 12, 7), sparse=sparse) for seed in range(3)]
    alone = [btt.learn(d, "cccp", device=device, prior_variance=1.0) for d in data]
    for _ in range(3):  # launches are recorded anew each time
        found = together(*(lambda d=d: btt.learn(d, "cccp", device=device, prior_variance=1.0) for d in data))
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one.weights, other.weights, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_threads_share_a_loss_and_a_batch(device):
    nodes, table, labels = batch_scores(device)
    data = loopy_data()
    expected = float(CamelLoss("cccp")(nodes, table, GraphBatch(TRIANGLES, [6]), labels))
    batch, loss = GraphBatch(TRIANGLES, [6]), CamelLoss("cccp")

    def work(name: str) -> float:
        first = float(loss(nodes, table, batch, labels, [name]))
        for _ in range(5):
            loss(nodes, table, batch, labels, [name])
        return first

    first, second, _ = together(lambda: work("a"), lambda: work("b"), lambda: btt.learn(data, "camel0", device=device))
    assert first == pytest.approx(expected, rel=1e-12)
    assert second == pytest.approx(expected, rel=1e-12)
    loss.save_instances = True
    assert set(loss.get_extra_state()) == {"a", "b"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("own_tables", [False, True])
def test_deterministic_algorithms_suffice(device, own_tables, monkeypatch):
    """Memory that is not set is filled with NaN in this mode, so that a use of it would show."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what PyTorch asks of any product on a GPU
    data = loopy_data()
    nodes, tables, labels = batch_scores(device, tables=(len(TRIANGLES),) if own_tables else ())
    results = []
    expected = btt.learn(data, "cccp", device=device, prior_variance=1.0)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            solution = btt.learn(data, "cccp", device=device, prior_variance=1.0)
            marginals = btt.infer(data, solution.weights, device=device, chunk=1)
            inputs = nodes.clone().requires_grad_(), tables.clone().requires_grad_()
            loss = CamelLoss("cccp")
            for _ in range(3):
                value = loss(*inputs, GraphBatch(TRIANGLES, [6]), labels, ["a"])
            value.backward()
            results.append([solution.weights, marginals.nodes, *(i.grad.cpu().numpy() for i in inputs)])
    finally:
        torch.use_deterministic_algorithms(False)
    np.testing.assert_allclose(results[0][0], expected.weights, atol=1e-6)
    for one, other in zip(*results, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


class UsedBatches(torch.utils.data.Dataset):
    """Batches that were used on a device before worker processes send them."""

    def __init__(self, device: str) -> None:
        self.batch = GraphBatch(TRIANGLES, [6])
        CamelLoss("camel0")(*batch_scores(device)[:2], self.batch, batch_scores(device)[2])

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> GraphBatch:
        return self.batch


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and newer
@pytest.mark.parametrize("device", DEVICES)
def test_a_used_batch_comes_back_from_a_worker_process(device):
    """Tensors of a GPU cannot be sent by a forked process: the loader would wait for ever."""
    nodes, table, labels = batch_scores(device)
    expected = float(CamelLoss("camel0")(nodes, table, GraphBatch(TRIANGLES, [6]), labels))
    loader = torch.utils.data.DataLoader(
        UsedBatches(device), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    for batch in loader:
        assert float(CamelLoss("camel0")(nodes, table, batch, labels)) == pytest.approx(expected, rel=1e-12)


def test_a_pickled_batch_holds_no_tensors():
    class NoTensors(pickle.Pickler):
        def persistent_id(self, thing):
            assert not isinstance(thing, torch.Tensor)

    batch = UsedBatches("cpu").batch
    NoTensors(io.BytesIO()).dump(batch)
    again = pickle.loads(pickle.dumps(batch))
    np.testing.assert_array_equal(again.edges, batch.edges)
    assert again.n_graphs == 1


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_kept_of_instances_is_part_of_a_checkpoint(device):
    nodes, table, labels = batch_scores(device)
    batch = GraphBatch(TRIANGLES, [6])
    model = torch.nn.ModuleDict({"network": torch.nn.Linear(2, 2), "loss": CamelLoss("cccp", relinearise_every=2)})
    model["loss"].save_instances = True
    for _ in range(4):
        model["loss"](nodes, table, batch, labels, [("page", 7)])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = torch.nn.ModuleDict({"network": torch.nn.Linear(2, 2), "loss": CamelLoss("cccp", relinearise_every=2)})
    again.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        going_on, taken_up = (m["loss"](nodes, table, batch, labels, [("page", 7)]) for m in (model, again))
        assert float(taken_up) == float(going_on)
    anew = CamelLoss("cccp", relinearise_every=2)(nodes, table, batch, labels, [("page", 7)])
    assert float(anew) != pytest.approx(float(going_on), rel=1e-6)
    model["loss"].save_instances = False
    assert not any(isinstance(value, dict) and value for value in model.state_dict().values())


def test_instances_visited_longest_ago_are_forgotten():
    nodes, table, labels = batch_scores("cpu")
    loss = CamelLoss("camel0", max_instances=2, save_instances=True)
    for name in ("a", "b", "a", "c"):
        loss(nodes, table, GraphBatch(TRIANGLES, [6]), labels, [name])
    assert list(loss.get_extra_state()) == ["a", "c"]


# ---- memory


def full(*_arguments, **_options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


ENGINE = "bactrian.engines.torch"
PLACES = [
    f"{ENGINE}.parts.Stars", f"{ENGINE}.parts.DeviceRows.to", f"{ENGINE}.parts.DeviceScores.moments",
    f"{ENGINE}.parts.DeviceHubs.sums", f"{ENGINE}.parts.DevicePart.room_for",
    f"{ENGINE}.structure.Structure.to", "torch.zeros",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_too_little_memory_is_explained_wherever_it_is_met_in_learning(place, monkeypatch):
    data = loopy_data()
    weights = np.zeros(data.n_weights)
    monkeypatch.setattr(place, full)
    with pytest.raises(btt.DeviceMemoryError, match=r"3 graphs at once take about .* on cpu; give chunk= .* chunk=1"):
        btt.learn(data, "cccp", device="cpu")
    if not any(word in place for word in ("moments", "DeviceHubs", "room_for")):
        with pytest.raises(btt.DeviceMemoryError, match="3 graphs at once"):
            btt.infer(data, weights, device="cpu")


@pytest.mark.parametrize("words", ["[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
                                   "CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"])  # fmt: skip
def test_errors_of_other_allocators_are_explained_too(words, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError(words)

    monkeypatch.setattr(f"{ENGINE}.stars.Stars.sweep", fail)
    with pytest.raises(btt.DeviceMemoryError, match="3 graphs at once"):
        btt.learn(loopy_data(), device="cpu")


@pytest.mark.parametrize("place", ["loss.Stars", "graphs.settle", "batch.build_structure", "graphs.subtract_observed"])
def test_too_little_memory_is_explained_in_a_loss(place, monkeypatch):
    nodes, table, labels = batch_scores("cpu")
    monkeypatch.setattr(f"{ENGINE}.{place}", full)
    message = r"1 graph at once take about .* on cpu; use batches of fewer or smaller graphs"
    with pytest.raises(btt.DeviceMemoryError, match=message):
        CamelLoss("camel0")(nodes, table, GraphBatch(TRIANGLES, [6]), labels)
    if "observed" not in place:
        with pytest.raises(btt.DeviceMemoryError, match=message):
            CamelLoss("camel0").marginals(nodes, table, GraphBatch(TRIANGLES, [6]))


def test_too_little_memory_is_explained_in_the_backward_pass(monkeypatch):
    nodes, table, labels = batch_scores("cpu")
    value = CamelLoss("camel0")(nodes.requires_grad_(), table, GraphBatch(TRIANGLES, [6]), labels)
    monkeypatch.setattr(torch.Tensor, "__mul__", full)
    with pytest.raises(btt.DeviceMemoryError, match="use batches of fewer"):
        value.backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("work", ["learn", "infer", "loss"])
def test_a_full_device_is_explained_cuda(work):
    data = loopy_data(counts=(200_000,))
    nodes, table, labels = batch_scores("cuda", nodes=200_000)
    batch = GraphBatch(data.edges, [200_000])
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 16 * 2**20) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        with pytest.raises(btt.DeviceMemoryError, match=r"1 graph at once take about .* on cuda.* free of"):
            {
                "learn": lambda: btt.learn(data, device="cuda"),
                "infer": lambda: btt.infer(data, np.zeros(data.n_weights), device="cuda"),
                "loss": lambda: CamelLoss("camel0")(nodes, table, batch, labels),
            }[work]()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


# ---- what is the same on either engine


def test_the_piecewise_start_of_camel0_is_as_loose_as_on_the_cpu():
    data = loopy_data(counts=(30, 40, 50))
    cpu, ours = bt.learn(data, "camel0", tolerance=1e-8), btt.learn(data, "camel0", device="cpu", tolerance=1e-8)
    assert len(cpu.history) == len(ours.history) == 2
    assert ours.history[0].iterations == cpu.history[0].iterations
    assert ours.history[0].moment_gap == pytest.approx(cpu.history[0].moment_gap, rel=1e-3)
    assert ours.history[0].moment_gap > 10 * ours.history[1].moment_gap
    np.testing.assert_allclose(ours.weights, cpu.weights, atol=1e-5)


# ---- moving


def tensors_of(holder) -> list:
    """All tensors of an object of the engine, in attributes, lists, tuples and other such objects."""
    if isinstance(holder, torch.Tensor):
        return [holder]
    if not isinstance(holder, list | tuple) and not type(holder).__module__.startswith("bactrian.engines.torch"):
        return []
    entries = holder if isinstance(holder, list | tuple) else vars(holder).values()
    return [tensor for entry in entries for tensor in tensors_of(entry)]


@pytest.mark.parametrize("sparse", [False, True])
def test_all_tensors_of_a_piece_move_to_another_device(sparse):
    """The device "meta", which PyTorch has everywhere, stands for a GPU; what is left behind stays as it was."""
    graphs = DeviceGraphs(loopy_data(sparse=sparse), torch.device("cpu"), torch.float64)
    (part,) = graphs.parts(carve(graphs.packed, "bethe"), Context())
    for holder in (part.piece.scores, part.piece.structure, part.stars):
        before = tensors_of(holder)
        moved = tensors_of(holder.to("meta"))
        assert len(moved) == len(before) > 0
        assert {tensor.device.type for tensor in moved} == {"meta"}
        assert {tensor.device.type for tensor in before} == {"cpu"}
