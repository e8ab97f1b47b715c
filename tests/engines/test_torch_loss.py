"""CamelLoss: equal to the CPU's dual at the same scores, exact gradients, state per instance, marginals."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import bactrian as bt  # noqa: E402
from bactrian.camel.dual import Dual  # noqa: E402
from bactrian.camel.entropy import carve  # noqa: E402
from bactrian.camel.prior import Prior  # noqa: E402
from bactrian.graphs.packing import pack  # noqa: E402
from bactrian.parallel.threads import Context, Workers  # noqa: E402
from bactrian.torch import CamelLoss, GraphBatch  # noqa: E402

#: Two loops, a pendant node and a lonely one; then a triangle.
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (3, 4), (6, 7), (7, 8), (6, 8)]
COUNTS = [6, 3]
K = 3


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scores(seed: int = 0, *, shared: bool = False):
    rng = np.random.default_rng(seed)
    nodes = torch.from_numpy(rng.normal(size=(9, K)))
    tables = torch.from_numpy(rng.normal(size=(K, K) if shared else (len(EDGES), K, K)))
    labels = torch.from_numpy(rng.integers(0, K, 9))
    return nodes, tables, labels


def cpu_dual(method: str, nodes, tables, labels, node_factors: str, g=None) -> float:
    """The CPU's dual with one input a node and an edge, so that the scores are the weights."""
    n_edges = len(EDGES)
    data = bt.GraphData(
        np.eye(9), EDGES, n_labels=K, labels=labels.numpy(), tables="full", edge_inputs=np.eye(n_edges),
        node_counts=COUNTS, node_factors=node_factors,
    )  # fmt: skip
    packed = pack(data)
    carving = (
        carve(packed, "convex") if method == "convex" else carve(packed, "bethe" if method == "cccp" else "clusters")
    )
    dual = Dual(packed, carving, Prior(None), Context(Workers(1)), consistency=method != "piecewise")
    if g is not None:
        dual.part.linearisation[:] = g.ravel()
    weights = np.concatenate([nodes.numpy().ravel(), tables.expand(n_edges, K, K).numpy().ravel()])
    return dual.evaluate(weights, tolerance=1e-13, max_sweeps=2000 if dual.consistency else 0).value


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
@pytest.mark.parametrize("method", ["piecewise", "camel0", "convex", "cccp"])
def test_loss_is_the_dual_on_the_cpu(method, node_factors, shared):
    nodes, tables, labels = scores(shared=shared)
    loss = CamelLoss(method, node_factors=node_factors, reduction="sum", tolerance=1e-12, max_sweeps=2000)
    value = loss(nodes, tables, GraphBatch(EDGES, COUNTS), labels)
    expected = cpu_dual(method, nodes, tables, labels, node_factors)
    assert float(value) == pytest.approx(expected, rel=1e-10)


def test_cccp_loss_after_a_relinearisation_is_the_dual_with_that_linearisation():
    nodes, tables, labels = scores()
    batch = GraphBatch(EDGES, COUNTS)
    loss = CamelLoss("cccp", reduction="sum", tolerance=1e-12, max_sweeps=2000, relinearisations=1)
    loss.save_instances = True
    loss(nodes, tables, batch, labels, ["a", "b"])
    loss.relinearise()
    value = loss(nodes, tables, batch, labels, ["a", "b"])
    kept = loss.get_extra_state()
    g = torch.cat([kept[name]["linearisation"] for name in ("a", "b")]).numpy()
    assert np.abs(g).max() > 0.1
    assert float(value) == pytest.approx(cpu_dual("cccp", nodes, tables, labels, "clusters", g), rel=1e-10)


@pytest.mark.parametrize(
    ("method", "shared", "node_factors"),
    [
        ("piecewise", True, "edges"),
        ("piecewise", False, "clusters"),
        ("camel0", True, "edges"),
        ("convex", True, "clusters"),
        ("cccp", True, "clusters"),
        pytest.param("camel0", False, "clusters", marks=pytest.mark.slow),
        pytest.param("convex", False, "edges", marks=pytest.mark.slow),
        pytest.param("cccp", False, "edges", marks=pytest.mark.slow),
    ],
)
def test_gradients_agree_with_finite_differences(method, shared, node_factors):
    nodes, tables, labels = scores(1, shared=shared)
    batch = GraphBatch(EDGES, COUNTS)
    loss = CamelLoss(method, node_factors=node_factors, tolerance=1e-12, max_sweeps=2000)
    assert torch.autograd.gradcheck(
        lambda a, b: loss(a, b, batch, labels), (nodes.requires_grad_(), tables.requires_grad_()), eps=1e-5, atol=1e-6
    )


def test_gradients_of_cccp_with_a_linearisation_agree_with_finite_differences():
    nodes, tables, labels = scores(2, shared=True)
    batch = GraphBatch(EDGES, COUNTS)
    loss = CamelLoss("cccp", tolerance=1e-12, max_sweeps=2000, relinearise_every=10**9)
    loss(nodes, tables, batch, labels, [0, 1])
    loss.relinearise()
    loss(nodes, tables, batch, labels, [0, 1])
    inputs = (nodes.requires_grad_(), tables.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, batch, labels, [0, 1]), inputs, eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["piecewise", "camel0", "convex"])
def test_gradients_may_be_differentiated(method):
    nodes, tables, labels = scores(shared=True)
    batch = GraphBatch(EDGES, COUNTS)
    loss = CamelLoss(method, tolerance=1e-12, max_sweeps=2000)
    inputs = (nodes.requires_grad_(), tables.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda a, b: loss(a, b, batch, labels), inputs, fast_mode=True, atol=1e-4)


def test_gradients_of_cccp_may_not():
    nodes, tables, labels = scores()
    loss = CamelLoss("cccp")(nodes.requires_grad_(), tables, GraphBatch(EDGES, COUNTS), labels)
    (gradient,) = torch.autograd.grad(loss, nodes, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"gradients of method 'cccp', .* have no derivatives"):
        (loss + gradient.square().sum()).backward()


def test_mini_batches_add_up_to_the_whole():
    nodes, tables, labels = scores(3)
    whole = CamelLoss("camel0", reduction="sum", tolerance=1e-12)(nodes, tables, GraphBatch(EDGES, COUNTS), labels)
    loss = CamelLoss("camel0", reduction="sum", tolerance=1e-12)
    first = loss(nodes[:6], tables[:6], GraphBatch(EDGES[:6], [6]), labels[:6])
    second = loss(nodes[6:], tables[6:], GraphBatch([(0, 1), (1, 2), (0, 2)], [3]), labels[6:])
    assert float(first + second) == pytest.approx(float(whole), rel=1e-12)


def test_state_follows_the_instance_not_its_place_in_the_batch():
    rng = np.random.default_rng(5)
    triangle = [(0, 1), (1, 2), (0, 2)]
    nodes, tables = torch.from_numpy(rng.normal(size=(9, K))), torch.from_numpy(2.0 * rng.normal(size=(K, K)))
    labels = torch.zeros(9, dtype=torch.int64)
    loss = CamelLoss("cccp", reduction="sum", tolerance=1e-10, relinearise_every=10**9, relinearisations=1)
    for _ in range(2):
        loss(nodes, tables, GraphBatch.copies(triangle, 3, 3), labels, ["a", "b", "c"])
        loss.relinearise()
    swapped = torch.cat([nodes[6:], nodes[:3]])
    pair = GraphBatch.copies(triangle, 3, 2)
    value = loss(swapped, tables, pair, labels[:6], ["c", "a"])
    expected = sum(
        float(loss(nodes[3 * m : 3 * m + 3], tables, GraphBatch(triangle, [3]), labels[:3], [name]))
        for m, name in ((2, "c"), (0, "a"))
    )
    assert float(value) == pytest.approx(expected, rel=1e-9)


def test_kept_multipliers_save_sweeps():
    nodes, tables, labels = scores(4, shared=True)
    batch = GraphBatch(EDGES, COUNTS)
    loss = CamelLoss("camel0", tolerance=1e-10, max_sweeps=500)
    loss(nodes, tables, batch, labels, [0, 1])
    exact = float(loss(nodes, tables, batch, labels, [0, 1]))
    loss.max_sweeps = 1
    assert float(loss(nodes, tables, batch, labels, [0, 1])) == pytest.approx(exact, rel=1e-10)
    with pytest.warns(bt.ConvergenceWarning, match="camel0: messages did not converge in max_sweeps=1 sweeps"):
        assert abs(float(loss(nodes, tables, batch, labels)) - exact) > 1e-7 * abs(exact)


def enumerated(nodes, tables, edges):
    """Exact marginals of one graph."""
    n = len(nodes)
    total, marginal = 0.0, np.zeros((n, K))
    for states in itertools.product(range(K), repeat=n):
        score = sum(nodes[v, s] for v, s in enumerate(states))
        score += sum(tables[e][states[a], states[b]] for e, (a, b) in enumerate(edges))
        weight = np.exp(score)
        total += weight
        for v, s in enumerate(states):
            marginal[v, s] += weight
    return marginal / total, np.log(total)


def test_on_a_tree_marginals_are_exact_and_cccp_reaches_the_likelihood():
    rng = np.random.default_rng(0)
    edges = [(0, 1), (1, 2), (1, 3)]
    nodes, tables = torch.from_numpy(rng.normal(size=(4, K))), torch.from_numpy(rng.normal(size=(3, K, K)))
    labels = torch.tensor([0, 1, 2, 1])
    exact, log_partition = enumerated(nodes.numpy(), tables.numpy(), edges)
    batch = GraphBatch(edges, [4])
    loss = CamelLoss("cccp", tolerance=1e-11, max_sweeps=1000)
    found = loss.marginals(nodes, tables, batch)
    assert found.converged
    np.testing.assert_allclose(found.nodes.numpy(), exact, atol=1e-9)
    np.testing.assert_allclose(found.edges.sum(2).numpy()[:, :], exact[[0, 1, 1]], atol=1e-9)
    for _ in range(60):
        value = float(loss(nodes, tables, batch, labels, ["tree"]))
    observed = sum(float(nodes[v, y]) for v, y in enumerate(labels))
    observed += sum(float(tables[e, labels[a], labels[b]]) for e, (a, b) in enumerate(edges))
    assert value == pytest.approx(log_partition - observed, abs=1e-6)


@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
@pytest.mark.parametrize("seed", range(3))
def test_convex_is_exact_on_chains_and_a_bound_on_other_trees(seed, node_factors):
    """Up to two neighbours its numbers are Bethe's; a node with three has -1.5 for -2, and so too much entropy."""
    rng = np.random.default_rng(seed)
    nodes, tables = torch.from_numpy(rng.normal(size=(4, K))), torch.from_numpy(2.0 * rng.normal(size=(3, K, K)))
    labels = torch.tensor([0, 1, 2, 1])
    loss = CamelLoss("convex", node_factors=node_factors, tolerance=1e-11, max_sweeps=5000)
    excess, error = {}, {}
    for name, edges in {"chain": [(0, 1), (1, 2), (2, 3)], "star": [(0, 1), (0, 2), (0, 3)]}.items():
        exact, log_partition = enumerated(nodes.numpy(), tables.numpy(), edges)
        observed = sum(float(nodes[v, y]) for v, y in enumerate(labels))
        observed += sum(float(tables[e, labels[a], labels[b]]) for e, (a, b) in enumerate(edges))
        batch = GraphBatch(edges, [4])
        excess[name] = float(loss(nodes, tables, batch, labels)) - (log_partition - observed)
        found = loss.marginals(nodes, tables, batch, method="convex")
        assert found.converged
        error[name] = np.abs(found.nodes.numpy() - exact).max()
        assert torch.equal(loss.marginals(nodes, tables, batch).nodes, found.nodes)  # the entropy of training
        np.testing.assert_allclose(loss.marginals(nodes, tables, batch, method="bp").nodes.numpy(), exact, atol=1e-8)
    assert excess["chain"] == pytest.approx(0.0, abs=1e-8)
    assert error["chain"] < 1e-8
    assert excess["star"] > 1e-3
    assert error["star"] > 1e-3


def test_training_a_network_lowers_the_loss():
    torch.manual_seed(0)
    inputs, labels = torch.randn(9, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    network = torch.nn.Linear(4, K)
    table = torch.nn.Parameter(torch.zeros(K, K))
    batch, loss = GraphBatch(EDGES, COUNTS), CamelLoss("cccp", relinearise_every=3)
    optimiser = torch.optim.Adam([*network.parameters(), table], lr=0.1)
    values = []
    for _ in range(25):
        optimiser.zero_grad()
        value = loss(network(inputs), table, batch, labels, [0, 1])
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
    assert np.isfinite(values).all()
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": torch.zeros(8, K)}, r"node_scores must have shape \(9, n_labels\), found \(8, 3\)"),
        ({"tables": torch.zeros(4, K, K)}, "edge_scores must be one table for all edges or 9, one per edge, found 4"),
        ({"tables": torch.zeros(K, 2)}, r"edge_scores must have shape \(\.\.\., 3, 3\)"),
        ({"nodes": torch.full((9, K), torch.nan)}, "node_scores holds NaN"),
        ({"labels": torch.full((9,), 3)}, "labels must be between 0 and 2"),
        ({"labels": torch.zeros(9)}, "labels must be 9 integers"),
        ({"instances": [0]}, "instances must be 2 different ids"),
        ({"instances": [0, 0]}, "instances must be 2 different ids"),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {"nodes": torch.zeros(9, K), "tables": torch.zeros(K, K), "labels": torch.zeros(9, dtype=torch.int64)}
    arguments |= {"instances": None} | change
    with pytest.raises(ValueError, match=message):
        CamelLoss("camel0")(
            arguments["nodes"], arguments["tables"], GraphBatch(EDGES, COUNTS), arguments["labels"],
            arguments["instances"],
        )  # fmt: skip


def test_bad_batches_and_options_are_refused():
    with pytest.raises(ValueError, match=r"edges\[1\] = \(0, 3\) must join two different nodes of one graph"):
        GraphBatch([(0, 1), (0, 3)], [2, 2])
    with pytest.raises(ValueError, match="sorted by graph"):
        GraphBatch([(2, 3), (0, 1)], [2, 2])
    with pytest.raises(ValueError, match="method must be one of"):
        CamelLoss("lbp")
    with pytest.raises(ValueError, match="node_factors"):
        CamelLoss(node_factors="nodes")
    loss = CamelLoss("camel0")
    loss(torch.zeros(2, 2), torch.zeros(2, 2), GraphBatch([(0, 1)], [2]), torch.zeros(2, dtype=torch.int64), ["a"])
    with pytest.raises(ValueError, match=r"instances\[0\] = 'a' was seen before with another graph"):
        loss(torch.zeros(3, 2), torch.zeros(2, 2), GraphBatch([(0, 1)], [3]), torch.zeros(3, dtype=torch.int64), ["a"])
