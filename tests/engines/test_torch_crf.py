"""The layer: chains equal to pytorch-crf and to enumeration, derivatives by finite differences, what is refused."""

import copy
import itertools
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from bactrian.engines.torch import graphs  # noqa: E402
from bactrian.text import allowed_transitions  # noqa: E402
from bactrian.torch import CRF  # noqa: E402
from bactrian.vision import neighbours  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def chain(k: int, seed: int = 0, scale: float = 1.0, **options) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(k, **options).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(scale * torch.randn_like(parameter))
    return crf


def theirs(crf: CRF, dtype=torch.float64):
    torchcrf = pytest.importorskip("torchcrf", reason="pytorch-crf is not installed: pip install pytorch-crf")
    other = torchcrf.CRF(crf.n_labels, batch_first=True).to(dtype)
    other.load_state_dict(crf.state_dict())
    return other


def batch(b: int, t: int, k: int, seed: int = 0, scale: float = 1.0):
    torch.manual_seed(seed)
    return scale * torch.randn(b, t, k, dtype=torch.float64), torch.randint(k, (b, t))


def every_length(b: int, t: int) -> torch.Tensor:
    return torch.arange(t)[None] < (torch.arange(b) % t + 1)[:, None]


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
@pytest.mark.parametrize(
    ("b", "t", "k", "masked"), [(9, 7, 4, True), (5, 6, 3, False), (3, 1, 2, True), (2, 4, 1, True)]
)
def test_chains_equal_pytorch_crf(b, t, k, masked, scale):
    """Loss, all gradients, marginals as a gradient of theirs, and Viterbi's labels, at every length."""
    crf = chain(k, scale=scale)
    other = theirs(crf)
    scores, labels = batch(b, t, k, scale=scale)
    mask = every_length(b, t) if masked else None
    filled = torch.ones(b, t, dtype=torch.bool) if mask is None else mask  # theirs makes one that warns
    found, wanted = [], []
    for layer, out in ((crf, found), (other, wanted)):
        leaf = scores.clone().requires_grad_()
        if layer is crf:
            value = crf.loss(leaf, labels, mask, reduction="none")
        else:
            value = -other(leaf, labels, mask=filled, reduction="none")
        (value * torch.arange(1, b + 1)).sum().backward()
        out += [value.detach(), leaf.grad, *(layer.get_parameter(name).grad for name, _ in crf.named_parameters())]
    for mine, their in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if their is None else their, atol=1e-10, rtol=1e-12)
    # The slope of their loss is marginals less what was observed.
    observed = torch.nn.functional.one_hot(labels, k) * filled[..., None]
    expected = wanted[1] / torch.arange(1, b + 1)[:, None, None] + observed
    torch.testing.assert_close(crf.marginals(scores, mask).detach(), expected, atol=1e-9, rtol=0)
    paths = other.decode(scores, filled)
    decoded = crf.decode(scores, mask)
    assert [row[: len(path)].tolist() for row, path in zip(decoded, paths, strict=True)] == paths
    assert mask is None or bool((decoded[~mask] == -100).all())


def test_in_single_precision_too():
    crf = CRF(5)
    other = theirs(crf, torch.float32)
    scores, labels = torch.randn(6, 30, 5), torch.randint(5, (6, 30))
    mask = every_length(6, 30)
    torch.testing.assert_close(
        crf.loss(scores, labels, mask, reduction="none"), -other(scores, labels, mask, "none"), rtol=2e-6, atol=1e-5
    )


def enumerated(crf: CRF, scores, transitions=None):
    """Scores of all labellings of one sequence."""
    between = (crf.transitions if transitions is None else transitions).detach().numpy()
    first, last = crf.start_transitions.detach().numpy(), crf.end_transitions.detach().numpy()
    values = {}
    for path in itertools.product(range(crf.n_labels), repeat=len(scores)):
        value = sum(scores[t, y] for t, y in enumerate(path)) + first[path[0]] + last[path[-1]]
        values[path] = float(value + sum(between[a, b] for a, b in itertools.pairwise(path)))
    return values


def log_sum(values):
    return np.logaddexp.reduce(list(values)) if values else -np.inf


def test_unknown_labels_gaps_and_empty_sequences_by_enumeration():
    crf, (scores, labels) = chain(3, seed=1), batch(4, 4, 3, seed=1)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    labels = torch.where(torch.tensor([[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]]).bool(), -1, labels)
    found = crf.loss(scores, labels, mask, ignore_index=-1, reduction="none").detach()
    marginals = crf.marginals(scores, mask).detach()
    for b in range(4):
        rows, known = scores[b][mask[b]].numpy(), labels[b][mask[b]].tolist()
        values = enumerated(crf, rows) if len(rows) else {(): 0.0}
        agree = [v for path, v in values.items() if all(y in (-1, p) for y, p in zip(known, path, strict=True))]
        assert float(found[b]) == pytest.approx(log_sum(values.values()) - log_sum(agree), abs=1e-12)
        for t, place in enumerate(mask[b].nonzero()[:, 0].tolist()):
            for k in range(3):
                mass = log_sum([v for path, v in values.items() if path[t] == k]) - log_sum(values.values())
                assert float(marginals[b, place, k]) == pytest.approx(np.exp(mass), abs=1e-12)
        assert float(marginals[b][~mask[b]].abs().sum()) == 0.0


@pytest.mark.parametrize("unknown", [False, True])
def test_first_and_second_derivatives_agree_with_finite_differences(unknown):
    crf, (scores, labels) = chain(3, seed=2), batch(3, 4, 3, seed=2)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0]]).bool()
    if unknown:
        labels[0, 2] = labels[1, 0] = -100

    def call(name, *more):
        def of(scores, *tables):
            named = dict(zip(("start_transitions", "end_transitions", "transitions"), tables, strict=True))
            layer = torch.func.functional_call  # parameters as inputs
            return layer(Calls(crf, name), {f"crf.{key}": value for key, value in named.items()}, (scores, *more))

        return of

    inputs = (scores.requires_grad_(), *(p.detach().clone().requires_grad_() for p in crf.parameters()))
    weigh = torch.tensor([0.5, 2.0, 1.0])
    for function in (
        lambda *a: call("loss", labels, mask, -100, "none")(*a) * weigh,
        call("marginals", mask),
        call("log_partition", mask),
    ):
        assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(call("loss", labels, mask), inputs)


class Calls(torch.nn.Module):
    def __init__(self, crf, name):
        super().__init__()
        self.crf, self.name = crf, name

    def forward(self, *arguments, **options):
        return getattr(self.crf, self.name)(*arguments, **options)


def test_constraints_hold_and_a_label_that_they_forbid_is_named():
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    between, first, last = allowed_transitions(tags, "BIO")
    crf, (scores, _) = chain(5, seed=3, constraints=allowed_transitions(tags)), batch(6, 5, 5, seed=3, scale=3.0)
    assert "19 of 25 transitions allowed" in repr(crf)
    for b, path in enumerate(crf.decode(scores).tolist()):
        assert first[path[0]]
        assert last[path[-1]]
        assert all(between[a, c] for a, c in itertools.pairwise(path))
        values = enumerated(crf, scores[b].numpy())
        fit = {p: v for p, v in values.items() if first[p[0]] and all(between[a, c] for a, c in itertools.pairwise(p))}
        assert tuple(path) == max(fit, key=fit.get)
        assert float(crf.log_partition(scores).detach()[b]) == pytest.approx(log_sum(fit.values()), abs=1e-12)
    labels = torch.tensor([[0, 1, 2, 0, 3]] * 6)
    crf.loss(scores, labels).backward()
    assert torch.isfinite(crf.transitions.grad).all()
    assert float(crf.transitions.grad[~torch.as_tensor(between)].abs().sum()) == 0.0
    labels[4, 3] = 4
    with pytest.raises(ValueError, match=r"labels\[4, 3\] = 4 is forbidden beside \[4, 2\] = 2"):
        crf.loss(scores, labels)
    labels[4, 0] = 2
    with pytest.raises(ValueError, match=r"labels\[4, 0\] = 2 is forbidden there"):
        crf.loss(scores, labels)
    scores[2, 1, 1] = -torch.inf
    with pytest.raises(ValueError, match=r"labels\[2, 1\] = 1 is forbidden there"):
        crf.loss(scores[:4], labels[:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_looks_lost_early_may_be_all_that_is_left(dtype):
    """Two labels that never change into each other; the second is far behind until the last token forbids the first."""
    crf = CRF(2, constraints=[[True, False], [False, True]]).to(dtype)
    scores = torch.zeros(3, 60, 2, dtype=dtype)
    scores[:, :-1, 1] = -40.0
    scores[1, -1, 0] = -torch.inf
    found = crf.log_partition(scores).detach().double()
    tables = [p.detach().double() for p in (crf.transitions, crf.start_transitions, crf.end_transitions)]
    stay = tables[1] + tables[2] + 59 * tables[0].diagonal() + scores.double().sum(1)
    torch.testing.assert_close(found, torch.logsumexp(stay, 1), rtol=1e-6, atol=0)
    marginals = crf.marginals(scores).detach()
    assert float(marginals[1, :, 1].min()) == pytest.approx(1.0)
    assert float(marginals[0, :, 0].min()) == pytest.approx(1.0)


def test_tags_of_every_scheme_that_are_written_are_allowed_and_others_are_not():
    """Against the reader: a sequence is well-formed where reading and writing it gives it back."""
    from bactrian.text import spans, tags_of

    for scheme, prefixes in (("BIO", "BI"), ("IOB1", "BI"), ("BIOES", "BIES"), ("BILOU", "BILU"), ("BMES", "BMES")):
        tags = ["O", *(f"{prefix}-{kind}" for kind in ("X", "Y") for prefix in prefixes)]
        between, first, last = allowed_transitions(tags, scheme)
        for path in itertools.product(range(len(tags)), repeat=3):
            words = [tags[y] for y in path]
            well_formed = tags_of(spans(words, scheme), 3, scheme) == words
            may = first[path[0]] and last[path[2]] and all(between[a, b] for a, b in itertools.pairwise(path))
            assert may == well_formed, (scheme, words)


@torch.no_grad()
def test_weights_reductions_and_classes():
    crf, (scores, labels) = chain(3), batch(4, 5, 3)
    each = crf.loss(scores, labels, reduction="none").detach()
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5])
    assert float(crf.loss(scores, labels)) == pytest.approx(float(each.mean()))
    assert float(crf.loss(scores, labels, reduction="sum", weights=weights)) == pytest.approx(
        float(weights @ each.float())
    )
    balanced = CRF(3, class_weights=[1.0, 2.0, 0.0]).double()
    balanced.load_state_dict(crf.state_dict())
    factor = torch.tensor([1.0, 2.0, 0.0])[labels].mean(1)
    found = balanced.loss(scores, labels, reduction="none").detach()
    torch.testing.assert_close(found, factor * each)


@pytest.mark.parametrize("method", ["convex", "camel0", "cccp"])
@pytest.mark.parametrize("low", [0.0, -60.0])  # tables of the second have a range that single precision lacks
def test_grids_in_single_precision_are_those_in_double(method, low):
    torch.manual_seed(0)
    crf = CRF(4, "grid", method)
    with torch.no_grad():
        crf.tables.normal_()[:, 0, 1] = low
    scores, labels = 3.0 * torch.randn(2, 9, 7, 4), torch.randint(4, (2, 9, 7))
    found = []
    for dtype in (torch.float32, torch.float64):
        other = copy.deepcopy(crf).to(dtype)
        given = scores.to(dtype).requires_grad_()
        value = other.loss(given, labels)
        assert other.last.converged
        found.append([value, *torch.autograd.grad(value, [given, other.tables])])
    for single, double in zip(*found, strict=True):
        assert single.dtype is torch.float32
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-4)


def test_half_precision_and_autocast_sum_in_single():
    crf = CRF(4)
    scores, labels = torch.randn(3, 20, 4).bfloat16().requires_grad_(), torch.randint(4, (3, 20))
    wanted = crf.loss(scores.detach().float(), labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = crf.loss(scores, labels)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, wanted)
    found.backward()
    assert scores.grad.dtype is torch.bfloat16
    assert crf.bfloat16().loss(scores, labels).dtype is torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["exact", "grid", "graph", "chain"])
def test_compiled_without_graph_breaks(structure):
    if structure == "exact":
        crf, (scores, _), more = chain(3), batch(4, 5, 3), {}
        mask = every_length(4, 5)
    else:
        crf, scores, more, _ = graph_of(structure)
        mask = torch.ones(scores.shape[:-1], dtype=torch.bool)
        mask[0] = False
        more["batch"] = None if structure == "graph" else more.get("batch")
        more["edges"] = more["edges"][:, :4] if structure == "graph" else more.get("edges")
        more["edge_types"] = None
    labels = torch.randint(3, scores.shape[:-1])
    net = torch.nn.Linear(3, 3).double()

    def step(x):
        return crf.loss(net(x), labels, mask, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        compiled(scores).backward()
        for other in (crf.marginals, crf.decode, crf.log_partition):
            found = torch.compile(other, fullgraph=True, backend="aot_eager")(scores, mask, **more)
            torch.testing.assert_close(found, other(scores, mask, **more))
    gradient = net.weight.grad.clone()
    net.zero_grad()
    step(scores).backward()
    torch.testing.assert_close(gradient, net.weight.grad)


@pytest.mark.slow
def test_values_per_graph_compile_where_shapes_may_follow_from_data():
    crf, scores, more, _ = graph_of("graph")
    scores, labels = scores.requires_grad_(), torch.randint(3, (8,))

    def step(x):
        return crf.loss(x, labels, reduction="none", **more).square().sum()

    wanted = torch.autograd.grad(step(scores), scores)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(scores), scores)
    torch.testing.assert_close(found, wanted)


def test_the_same_under_deterministic_algorithms_and_in_files(tmp_path):
    crf, (scores, labels) = chain(3), batch(4, 5, 3)
    labels[0, 0] = -100
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (crf.loss(scores, labels, every_length(4, 5)) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    assert set(crf.state_dict()) == {"transitions", "start_transitions", "end_transitions"}
    torch.save(crf.state_dict(), tmp_path / "crf.pt")
    other = CRF(3).double()
    other.load_state_dict(torch.load(tmp_path / "crf.pt", weights_only=True))
    assert torch.equal(other.loss(scores, labels), crf.loss(scores, labels))
    assert crf.last == (0.0, 1, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(2, 3, 4)}, r"scores must have shape \(B, T, 3\), found \(2, 3, 4\)"),
        ({"scores": torch.zeros(2, 3, 3, dtype=torch.long)}, "scores must be floating-point numbers"),
        ({"scores": torch.full((2, 3, 3), torch.nan)}, r"scores\[0, 0\] holds NaN"),
        ({"labels": torch.tensor([[0, 0, 0], [0, 3, 0]])}, r"labels\[1, 1\] = 3 is outside 0 to 2, and not -100"),
        ({"labels": torch.zeros(2, 2, dtype=torch.long)}, r"labels must be integers of shape \(2, 3\)"),
        ({"mask": torch.ones(2, 2)}, r"mask must have shape \(2, 3\)"),
        ({"reduction": "most"}, "reduction must be one of mean, sum, none"),
        ({"weights": torch.ones(2, 1)}, r"weights must have shape \(2,\), found \(2, 1\)"),
        ({"edge_index": torch.zeros(2, 1)}, "CRF has no option edge_index; graphs are given as edges, batch"),
        ({"batch": torch.zeros(2)}, "batch does not belong to structure='chain'"),
        ({"edges": torch.zeros(2, 1, dtype=torch.long)}, "edges are for structure='graph', or for chains with"),
    ],
)
def test_bad_input_is_refused(change, message):
    given = {"scores": torch.zeros(2, 3, 3), "labels": torch.zeros(2, 3, dtype=torch.long)} | change
    with pytest.raises((ValueError, TypeError), match=message):
        CRF(3).loss(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_labels": 0}, "n_labels must be"),
        ({"structure": "tree"}, "structure must be one of chain, grid, graph"),
        ({"constraints": [[True]]}, r"constraints must be bools of shape \(3, 3\)"),
        ({"class_weights": [1.0, -1.0, 1.0]}, "class_weights must be 3 numbers that are not negative"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CRF(**({"n_labels": 3} | options))


# --- grids and graphs ---


def graph_of(structure: str, seed: int = 0, k: int = 3, **options):
    """A layer, its scores, what else it takes, and the same for the CPU: nodes, edges and their tables."""
    torch.manual_seed(seed)
    options.setdefault("edge_types", {"graph": 2, "chain": 1}.get(structure))
    shapes = {"graph": (8,), "grid": (2, 3, 4), "chain": (2, 5)}
    shape = (2, 2, 2, 3) if options.get("neighbours", 4) in (6, 18, 26) else shapes[structure]
    crf = CRF(k, structure, **options).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    scores = torch.randn(*shape, k, dtype=torch.float64)
    tables = crf.tables.detach().numpy()
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    nodes, more, edges = scores.reshape(-1, k).numpy().copy(), {}, []
    if options.get("neighbours") == 8:
        pairs, kinds = neighbours(shape[1:], 8)
        edges = [
            (*number.ravel()[pair].tolist(), tables[t])
            for number in numbers
            for pair, t in zip(pairs, kinds, strict=True)
        ]
    elif structure == "grid":
        for axis in range(1, len(shape)):
            a, b = np.split(numbers, [1], axis)[1], np.split(numbers, [-1], axis)[0]
            pairs = zip(b.ravel().tolist(), a.ravel().tolist(), strict=True)
            edges += [(*pair, tables[len(shape) - 1 - axis]) for pair in pairs]
    elif structure == "graph":
        pairs = [(0, 1), (2, 1), (0, 2), (3, 2), (4, 5), (6, 5), (6, 7), (7, 4), (5, 7)]
        types = torch.arange(9) % 2
        more = {"edges": torch.tensor(pairs).T, "batch": torch.tensor([0] * 4 + [1] * 4), "edge_types": types}
        edges = [(*pair, tables[t]) for pair, t in zip(pairs, types.tolist(), strict=True)]
    else:
        between, first, last = (crf.get_parameter(f"{n}transitions").detach().numpy() for n in ("", "start_", "end_"))
        edges = [(t, t + 1, between) for row in numbers.tolist() for t in row[:-1]] + [
            (0, 3, tables[0]),
            (5, 8, tables[0]),
        ]
        more = {"edges": torch.tensor([[0, 5], [3, 8]])}
        nodes[numbers[:, 0]] += first
        nodes[numbers[:, -1]] += last
    return crf, scores, more, (nodes, edges)


def on_the_cpu(nodes, edges, method: str, chosen=None):
    """Log Z and marginals by the engine for the CPU, of models with these scores."""
    import bactrian as bt

    chosen = range(len(nodes)) if chosen is None else chosen
    place = {v: i for i, v in enumerate(chosen)}
    inside = [(place[a], place[b], table) for a, b, table in edges if a in place and b in place]
    k = nodes.shape[1]
    graph = bt.ClusterGraph([k] * len(place), [*((v,) for v in range(len(place))), *((a, b) for a, b, _ in inside)])
    scores = [*(nodes[v] for v in chosen), *(table.ravel() for *_, table in inside)]
    model = bt.LogLinearModel(graph, [np.zeros((len(s), 1)) for s in scores], base_scores=scores)
    found = bt.infer(model, np.zeros(1), method=method, tolerance=1e-11)
    return found.log_partition, np.stack([found.variables[v] for v in range(len(place))])


KINDS = [
    ("grid", {}),
    ("grid", {"neighbours": 6}),
    ("graph", {}),
    ("chain", {}),
]


@pytest.mark.parametrize(("structure", "options"), [*KINDS, ("grid", {"neighbours": 8})])
def test_grids_and_graphs_equal_the_engine_for_the_cpu(structure, options):
    crf, scores, more, (nodes, edges) = graph_of(structure, **options)
    labels = torch.randint(3, scores.shape[:-1])
    log_z, marginals = on_the_cpu(nodes, edges, "convex")
    assert crf.log_partition(scores, **more).sum().item() == pytest.approx(log_z, rel=1e-9)
    np.testing.assert_allclose(crf.marginals(scores, **more).detach().reshape(-1, 3), marginals, atol=1e-7)
    flat = labels.ravel().numpy()
    observed = nodes[np.arange(len(nodes)), flat].sum() + sum(table[flat[a], flat[b]] for a, b, table in edges)
    loss = crf.loss(scores, labels, reduction="none", **more).detach()
    assert loss.shape == (2,)
    assert loss.sum().item() == pytest.approx(log_z - observed, rel=1e-9)
    assert torch.equal(crf.decode(scores, **more).reshape(-1), torch.as_tensor(marginals.argmax(1)))
    assert crf.last.converged
    assert crf.last.sweeps > 1


@pytest.mark.parametrize("structure", ["grid", "graph", "chain"])
def test_a_mask_leaves_the_graph_of_what_is_there(structure):
    crf, scores, more, (nodes, edges) = graph_of(
        structure, seed=1, **({} if structure == "grid" else {"edge_types": 2})
    )
    mask = torch.rand(scores.shape[:-1]) > 0.3
    if structure == "chain":
        mask[:, 0] = mask[:, -1] = True
        gone = (~mask).ravel().nonzero()[:, 0].tolist()
        table = crf.transitions.detach().numpy()
        for v in gone:  # a gap joins what is on both sides
            (a,) = (a for a, b, t in edges if b == v and np.shares_memory(t, table))
            (b,) = (b for x, b, t in edges if x == v and np.shares_memory(t, table))
            edges = [e for e in edges if v not in e[:2]] + [(a, b, table)]
    chosen = mask.ravel().nonzero()[:, 0].tolist()
    log_z, marginals = on_the_cpu(nodes, edges, "convex", chosen)
    assert crf.log_partition(scores, mask, **more).sum().item() == pytest.approx(log_z, rel=1e-9)
    found = crf.marginals(scores, mask, **more).detach()
    np.testing.assert_allclose(found[mask], marginals, atol=1e-7)
    assert float(found[~mask].abs().sum()) == 0.0


@pytest.mark.parametrize("method", ["convex", "camel0"])
@pytest.mark.parametrize(("structure", "options"), KINDS)
def test_derivatives_in_grids_and_graphs(structure, options, method):
    crf, scores, more, _ = graph_of(structure, seed=2, k=2, method=method, **options)
    labels = torch.randint(2, scores.shape[:-1])
    labels[torch.rand(labels.shape) < 0.3] = -100
    weigh = torch.tensor([0.5, 2.0])

    def loss(scores, tables):
        named = {"crf.tables": tables}
        return torch.func.functional_call(Calls(crf, "loss"), named, (scores, labels, None, -100, "none"), more) * weigh

    def marginals(scores, tables):
        return torch.func.functional_call(Calls(crf, "marginals"), {"crf.tables": tables}, (scores, None), more)

    inputs = scores.requires_grad_(), crf.tables.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(marginals, inputs, fast_mode=True)


def test_scores_mean_the_same_whatever_the_degree_under_camel0():
    """Without couplings beliefs are the network's, at hubs too; on a single edge they are exact."""
    crf, scores, more, _ = graph_of("graph", method="camel0")
    pair, line = CRF(3, "grid", "camel0").double(), CRF(3).double()
    with torch.no_grad():
        crf.tables.zero_()
        line.transitions.copy_(pair.tables[0])
        line.start_transitions.zero_()
        line.end_transitions.zero_()
    torch.testing.assert_close(crf.marginals(scores, **more), torch.softmax(scores, 1), atol=1e-8, rtol=0)
    (two, labels) = batch(5, 2, 3)
    wanted = line.loss(two, labels, reduction="none"), line.marginals(two)
    found = pair.loss(two[:, None], labels[:, None], reduction="none"), pair.marginals(two[:, None])[:, 0]
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=0)


def test_cccp_replays_what_estimators_follow():
    """Two relinearisations from uniform beliefs at the same scores; nothing is kept of the pictures."""
    import bactrian as bt

    crf, scores, _, (nodes, edges) = graph_of("grid", seed=3, method="cccp")
    data = bt.GraphData(
        np.eye(len(nodes)), [e[:2] for e in edges], n_labels=3, tables="full", edge_inputs=np.eye(len(edges)),
        node_counts=[12, 12], node_factors="edges",
    )  # fmt: skip
    weights = np.concatenate([nodes.ravel(), *(table.ravel() for *_, table in edges)])
    wanted = bt.infer(data, np.stack([weights] * 3), method="replay", tolerance=1e-10)
    first, second = (crf.marginals(scores).detach().reshape(-1, 3).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first[:12], [wanted[0].variables[v] for v in range(12)], atol=1e-6)
    leaf = scores.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"of method 'cccp', .* have no derivatives"):
        crf.marginals(leaf)[0, 0, 0, 0].backward()


@pytest.mark.parametrize("method", ["convex", "cccp"])
@pytest.mark.parametrize("structure", ["grid", "graph", "chain"])
def test_sweeps_that_nobody_looks_at_end_where_others_do(structure, method, monkeypatch):
    """As on a GPU: with more couplings, unknown labels and a table that needs log space than at the last call."""
    crf, scores, more, _ = graph_of(structure, method=method)
    labels, looked = torch.randint(3, scores.shape[:-1]), []
    careful = graphs.settle
    monkeypatch.setattr(graphs, "settle", lambda *a, **k: looked.append(1) or careful(*a, **k))
    for scale, unknown, looks in ((1.0, False, 1), (1.0, False, 0), (1.0, True, 1), (1.0, True, 0), (1e3, True, 1)):
        with torch.no_grad():
            crf.tables[0] *= scale
        labels[0] = -100 if unknown else 0
        ends = []
        for ahead in (True, False):
            monkeypatch.setattr(graphs, "looks_ahead", lambda _, ahead=ahead: ahead)
            looked.clear()
            leaf = scores.clone().requires_grad_()
            loss = crf.loss(leaf, labels, **more)
            loss.backward()
            assert bool(looked) == (bool(looks) or not ahead)
            ends.append((loss.detach(), leaf.grad, crf.tables.grad))
            crf.zero_grad()
        for one, other in zip(*ends, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert crf.last.converged


def test_edges_that_come_both_ways_are_one():
    crf, scores, more, _ = graph_of("graph")
    both = {
        **more,
        "edges": torch.cat([more["edges"], more["edges"].flip(0)], 1),
        "edge_types": more["edge_types"].repeat(2),
    }
    directed = crf.log_partition(scores, **more).detach()
    with torch.no_grad():
        crf.tables.copy_(0.5 * (crf.tables + crf.tables.transpose(1, 2)))
    symmetric = crf.log_partition(scores, **more).detach()
    assert not torch.allclose(directed, symmetric)
    torch.testing.assert_close(crf.log_partition(scores, **both).detach(), symmetric)
    order = torch.randperm(18)
    shuffled = {**both, "edges": both["edges"][:, order], "edge_types": both["edge_types"][order]}
    torch.testing.assert_close(crf.log_partition(scores, **shuffled).detach(), symmetric)
    own = crf.tables.detach()[both["edge_types"]] + torch.randn(18, 3, 3)
    mean = 0.5 * (own[:9] + own[9:].transpose(1, 2))
    plain = CRF(3, "graph").double()
    with torch.no_grad():
        plain.tables.zero_()
    found = [
        plain.log_partition(scores, edges=e, batch=more["batch"], edge_scores=t).detach()
        for e, t in ((both["edges"], own), (more["edges"], mean))
    ]
    torch.testing.assert_close(*found)


def test_a_row_of_pixels_is_a_chain_with_unknown_labels_too():
    row, (scores, labels) = CRF(3, "grid").double(), batch(4, 6, 3)
    line = CRF(3).double()
    with torch.no_grad():
        line.transitions.copy_(row.tables[0])
        line.start_transitions.zero_()
        line.end_transitions.zero_()
    labels[torch.rand(4, 6) < 0.5] = -100
    mask = every_length(4, 6)
    given = [scores[:, None], labels[:, None], mask[:, None]]
    wanted = line.loss(scores, labels, mask, reduction="none")
    torch.testing.assert_close(row.loss(*given, reduction="none"), wanted, atol=1e-7, rtol=0)
    torch.testing.assert_close(row.marginals(given[0], given[2])[:, 0], line.marginals(scores, mask), atol=1e-7, rtol=0)


def test_what_did_not_settle_is_told_once():
    from bactrian import ConvergenceWarning

    crf, scores, _, _ = graph_of("grid", max_sweeps=2)
    with pytest.warns(ConvergenceWarning, match="messages did not converge in max_sweeps=2 sweeps: residual"):
        crf.marginals(scores)
    crf.marginals(scores)  # a second warning would be an error
    assert not crf.last.converged
    assert crf.last.residual > 1e-9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"edges": None}, "edges are missing: structure='graph' needs them"),
        (
            {"edges": torch.tensor([[0, 1], [1, 0], [2, 0]])},
            r"edges must be integers of shape \(2, E\), found \(3, 2\)",
        ),
        ({"edges": torch.tensor([[0, 1], [1, 1]])}, r"edges\[1\] = \(1, 1\) must join two different nodes"),
        ({"edges": torch.tensor([[0, 0], [1, 1]])}, r"edges have \(0, 1\) more than once"),
        ({"batch": torch.tensor([0, 0, 1])}, r"edges\[:, 1\] = \(1, 2\) must join two different nodes of one graph"),
        ({"batch": torch.zeros(3)}, "batch must be integers, found torch.float32"),
        ({"labels": torch.tensor([0, 3, 0])}, r"labels\[1\] = 3 is outside 0 to 2"),
        ({"scores": torch.tensor([[0.0, torch.nan, 0.0]] * 3)}, r"scores\[0\] holds NaN"),
        ({"scores": torch.tensor([[-torch.inf, 0.0, 0.0]] * 3)}, r"labels\[0\] = 0 is forbidden there"),
        ({"scores": torch.full((3, 3), -torch.inf)}, r"scores\[0\] holds NaN or \+inf, or -inf for all labels"),
        ({"edge_scores": torch.zeros(3, 3, 3)}, r"edge_scores must have shape \(E, 3, 3\)"),
        ({"edge_scores": torch.full((2, 3, 3), torch.nan)}, "tables and edge_scores must not hold NaN"),
        ({"edge_scores": torch.full((2, 3, 3), -torch.inf)}, r"labels\[1\] = 0 is forbidden beside \[0\] = 0"),
    ],
)
def test_bad_graphs_are_refused(more, message):
    given = {
        "scores": torch.zeros(3, 3),
        "labels": torch.zeros(3, dtype=torch.long),
        "edges": torch.tensor([[0, 1], [1, 2]]),
    }
    with pytest.raises((ValueError, TypeError), match=message):
        CRF(3, "graph").loss(**(given | more))


@pytest.mark.parametrize("structure", ["grid", "graph", "chain"])
@pytest.mark.parametrize("unknown", [False, True])
def test_observed_neighbours_that_constraints_forbid_are_named(structure, unknown):
    """Beside skip edges and in graphs as in chains; far below, as all scores of a node may be, is not forbidden."""
    crf, scores, more, _ = graph_of(structure, constraints=[[True] * 3, [True] * 3, [True, True, False]])
    labels = torch.zeros(scores.shape[:-1], dtype=torch.long)
    assert float(crf.loss(scores, labels, **more).detach()) < 100.0
    far = crf.loss(scores - 30_000.0, labels, **more).detach()
    torch.testing.assert_close(far, crf.loss(scores, labels, **more).detach(), rtol=1e-7, atol=1e-7)
    first, second = {"grid": ((1, 1, 2), (1, 2, 2)), "graph": ((4,), (5,)), "chain": ((1, 2), (1, 3))}[structure]
    labels[first] = labels[second] = 2
    if unknown:
        labels[0] = -100
    place, other = (r"\[" + ", ".join(map(str, at)) + r"\]" for at in (second, first))
    with pytest.raises(ValueError, match=rf"labels{place} = 2 is forbidden beside {other} = 2"):
        crf.loss(scores, labels, **more)


def test_nodes_of_a_graph_may_be_anywhere_in_a_batch():
    crf, scores, more, _ = graph_of("graph")
    labels, order = torch.randint(3, (8,)), torch.randperm(8)
    place = order.argsort()
    moved = {"edges": place[more["edges"]], "batch": more["batch"][order], "edge_types": more["edge_types"]}
    for name, given, there in (
        ("loss", (scores, labels, None, -100, "none"), (scores[order], labels[order], None, -100, "none")),
        ("log_partition", (scores,), (scores[order],)),
    ):
        call = getattr(crf, name)
        torch.testing.assert_close(call(*there, **moved).detach(), call(*given, **more).detach())
    torch.testing.assert_close(crf.marginals(scores[order], **moved), crf.marginals(scores, **more)[order])


def test_both_taggers_of_the_page_run_in_as_many_lines_to_the_same_end():
    pytest.importorskip("torchcrf", reason="pytorch-crf is not installed: pip install pytorch-crf")
    page = (Path(__file__).parents[2] / "docs" / "coming-from" / "pytorch-crf.md").read_text(encoding="utf-8")
    theirs, ours, _, more = (
        textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)^    ```", page, re.M | re.S)
    )
    assert len(ours.splitlines()) <= len(theirs.splitlines())
    ends = []
    for program in (theirs, ours):
        names = {}
        exec(compile(program, "pytorch-crf.md", "exec"), names)
        ends.append(
            (names["loss"].item(), [list(map(int, path)) for path in names["paths"]], names["lengths"].tolist())
        )
    exec(compile(more, "pytorch-crf.md", "exec"), names)
    assert ends[0][0] == pytest.approx(ends[1][0], rel=2e-2)
    assert ends[0][0] < 1.0
    for path, row, length in zip(ends[0][1], ends[1][1], ends[1][2], strict=True):
        assert row == path + [-100] * (12 - length)


#: What each of two processes does: half a batch, against the gradient of the whole.
HALF = """
import sys, torch
from bactrian.torch import CRF

class Whole(torch.nn.Module):
    def __init__(self, structure):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Linear(3, 3).double()
        self.crf = CRF(3, structure, class_weights=[1.0, 2.0, 1.0]).double()

    def forward(self, inputs, labels):
        return self.crf(self.network(inputs), labels)

rank = int(sys.argv[1])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for structure, shape in (("chain", (4, 5)), ("grid", (4, 3, 3))):
    torch.manual_seed(1)
    inputs, labels = torch.randn(*shape, 3, dtype=torch.float64), torch.randint(3, shape)
    alone, shared = Whole(structure), torch.nn.parallel.DistributedDataParallel(Whole(structure))
    alone(inputs, labels).backward()
    half = slice(2 * rank, 2 * rank + 2)
    shared(inputs[half], labels[half]).backward()
    for one, other in zip(alone.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    del shared  # its threads, too, before those of the group
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_with_half_a_batch_each_have_the_gradient_of_the_whole(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-c", HALF, str(rank), str(tmp_path / "store")]) for rank in range(2)]
    assert [process.wait(120) for process in ranks] == [0, 0]
