"""Sums over all labellings of chains, exactly, with their derivatives in closed form.

A sequence of T tokens with scores s_t (K,) and a table A (K, K) of transitions gives a labelling y the score
sum_t s_t[y_t] + sum_t A[y_t-1, y_t]; scores of the first and the last label are added to s_1 and s_T. With E = exp(A),

    a_t = (a_t-1 E) * exp(s_t) / c_t,   c_t such that a_t sums to 1,   log Z = sum_t log c_t
    b_t-1 = E (exp(s_t) * b_t) / c_t,   b_T = 1,        marginals a_t * b_t

which is the forward-backward algorithm in linear space. A gradient is expected counts less observed ones, so that no
graph of T steps is kept. Derivatives of counts are covariances with the score S of a direction: with F_t[k] what the
tokens up to t are expected to add to S where y_t = k, and B_t[k] those after it, the marginal of k at t changes by its
product with F_t[k] + B_t[k] - E[S], and F and B follow from the conditional probabilities of neighbours.

Linear space is right where every transition has a moderate score: what a state underflows to then is lost in the next
product. With transitions that are forbidden or far apart it may be all that is left later on, though. So these are
worked out in float64, where b is bounded by the product of max(E exp(s_t)) / c_t: unless that is far below the inverse
of the least number, log space does it.

On a GPU with Triton each of the two is one kernel (:mod:`.kernels`). To ``torch.compile`` the operators are opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bactrian.engines.torch.graphs import Call
from bactrian.engines.torch.kernels import FLOOR, MODERATE, can_chain, chain_beliefs, chain_sums
from bactrian.engines.torch.stars import FORBIDDEN
from bactrian.errors import ArgumentError

#: Most that b may grow to in float64, in nats.
_MOST_GROWTH = 500.0


class Steps(NamedTuple):
    """The tokens that a mask leaves, step after step, the longest sequences first in each."""

    tokens: Tensor | None  #: (N,) numbers among all B T tokens; None where there is no mask
    sizes: list[int]  #: tokens of each step
    shape: tuple[int, int]  #: (B, T)
    sequence: Tensor  #: (N,) sequence of a token
    last: Tensor  #: (B',) the last token of each sequence that has one, in the order of step 0

    def packed(self, values: Tensor) -> Tensor:
        """(N, ...) in the order of the steps, of (B, T, ...)."""
        if self.tokens is None:
            return values.transpose(0, 1).reshape(-1, *values.shape[2:])
        return values.flatten(0, 1).index_select(0, self.tokens)

    def padded(self, values: Tensor) -> Tensor:
        """(B, T, ...) of (N, ...), with 0 where the mask is off."""
        b, t = self.shape
        if self.tokens is None:
            return values.view(t, b, *values.shape[1:]).transpose(0, 1).contiguous()
        return values.new_zeros(b * t, *values.shape[1:]).index_copy_(0, self.tokens, values).unflatten(0, (b, t))

    @property
    def before(self) -> Tensor:
        """(N - B',) numbers in this order of the tokens before those of all steps but the first."""
        if len(self.sizes) < 2:
            return self.sequence[:0]
        offsets = torch.tensor(self.sizes[:-1], device=self.last.device).repeat_interleave(
            torch.tensor(self.sizes[1:], device=self.last.device)
        )
        return torch.arange(self.sizes[0], self.sequence.numel(), device=self.last.device) - offsets

    def by_sequence(self, values: Tensor) -> Tensor:
        """(B,) sums of (N,) over each sequence."""
        return values.new_zeros(self.shape[0]).index_add_(0, self.sequence, values)


def steps_of(shape: tuple[int, int], mask: Tensor | None, device: torch.device) -> Steps:
    """The order of tokens, B sequences of at most T; where a mask has gaps, the tokens on both sides are neighbours."""
    b, t = shape
    if mask is None:
        sequence = torch.arange(b, device=device)
        return Steps(None, [b] * t if b else [], shape, sequence.repeat(t), sequence + b * (t - 1))
    mask = mask.to(torch.bool)
    lengths = mask.sum(1)
    order = lengths.argsort(descending=True, stable=True)
    positions = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    there = torch.arange(t, device=device)[:, None] < lengths[order]
    sizes = [size for size in there.sum(1).tolist() if size]
    tokens = (positions + t * torch.arange(b, device=device)[:, None])[order].T[there]
    number = (there.flatten().cumsum(0) - 1).view(t, b)
    some = sizes[0] if sizes else 0
    last = number.gather(0, (lengths[order][None, :some] - 1))[0]
    return Steps(tokens, sizes, shape, torch.div(tokens, t, rounding_mode="floor"), last)


class Chains(NamedTuple):
    """Scores in the order of the steps, those of first and last labels added, and transitions."""

    steps: Steps
    scores: Tensor  #: (N, K)
    transitions: Tensor  #: (K, K)

    @staticmethod
    def of(scores: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor | None) -> Chains:
        """Of scores (B, T, K), differentiably."""
        steps = steps_of((scores.shape[0], scores.shape[1]), mask, scores.device)
        packed = steps.packed(scores)
        if steps.sizes:
            first = torch.arange(steps.sizes[0], device=scores.device)
            packed = packed.index_add(0, first, start.expand(first.numel(), -1))
            packed = packed.index_add(0, steps.last, end.expand(first.numel(), -1))
        return Chains(steps, packed, transitions)

    def in_double(self) -> Chains:
        """The same in float64."""
        return self._replace(scores=self.scores.to(torch.float64), transitions=self.transitions.to(torch.float64))

    def restricted(self, labels: Tensor, known: Tensor) -> Chains:
        """Only those labellings that have the known ones of ``labels`` (N,)."""
        states = torch.arange(self.scores.shape[1], device=labels.device)
        return self._replace(scores=self.scores.masked_fill(known[:, None] & (states != labels[:, None]), -torch.inf))


def log_passes(chains: Chains) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) log Z, and (N, K) log a and log b, neither of them scaled, in log space."""
    steps, transitions = chains.steps, chains.transitions.clamp_min(FLOOR)
    values, alphas = chains.scores.new_zeros(steps.shape[0]), chains.scores.clamp_min(FLOOR)
    scores, betas = alphas.clone(), torch.zeros_like(alphas)
    if not steps.sizes:
        return values, alphas, betas
    parts, forwards, backwards = (part.split(steps.sizes) for part in (scores, alphas, betas))
    for before, alpha in pairwise(forwards):
        alpha += torch.logsumexp(before[: len(alpha), :, None] + transitions, 1)
    for t in range(len(parts) - 1, 0, -1):
        later = parts[t] + backwards[t]
        backwards[t - 1][: len(later)] = torch.logsumexp(transitions + later[:, None, :], 2)
    first = steps.sizes[0]
    found = torch.logsumexp(scores[:first] + betas[:first], 1)
    values[steps.sequence[:first]] = torch.where(found > 0.5 * FLOOR, found, -torch.inf)
    return values, alphas, betas


class Forward(NamedTuple):
    """The forward pass in linear space."""

    values: Tensor  #: (B,) log Z
    alphas: Tensor  #: (N, K) a
    norms: Tensor  #: (N, 1) c with the largest score of a token and of the table taken out
    tokens: Tensor  #: (N, K) exp(s) with the largest taken out
    table: Tensor  #: (K, K) E likewise


def forward(chains: Chains) -> Forward | None:
    """The forward pass, or None where linear space will not do."""
    steps, transitions = chains.steps, chains.transitions
    low, high = transitions.aminmax()
    wide = not float(high - low) < MODERATE[transitions.dtype]
    scores = chains.scores.to(torch.float64) if wide else chains.scores
    top = scores.amax(1, keepdim=True)
    tokens, table = (scores - top).exp_(), (transitions.to(scores.dtype) - high).exp_()
    alphas, norms = torch.empty_like(tokens), torch.empty_like(top)
    sums, before = norms.split(steps.sizes), None
    for token, alpha, norm in zip(tokens.split(steps.sizes), alphas.split(steps.sizes), sums, strict=True):
        if before is None:
            alpha.copy_(token)
        else:
            torch.mm(before if len(before) == len(token) else before[: len(token)], table, out=alpha)
            alpha.mul_(token)
        torch.sum(alpha, 1, keepdim=True, out=norm)
        alpha.div_(norm)
        before = alpha
    if wide:
        growth = ((tokens @ table.T).amax(1, keepdim=True) / norms).log_().clamp_min_(0.0)[:, 0]
        if not float(steps.by_sequence(growth).max()) < _MOST_GROWTH:
            return None
    logs = norms.log().add_(top)
    logs[steps.sizes[0] :] += high
    return Forward(steps.by_sequence(logs[:, 0]), alphas, norms, tokens, table)


def counts(chains: Chains, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Expected counts of labels, (N, K), and of pairs of them, (K, K), times the weights (B,) of sequences."""
    steps = chains.steps
    if not steps.sizes:
        return torch.zeros_like(chains.scores), torch.zeros_like(chains.transitions)
    passed = forward(chains)
    if passed is None:
        return _counts_in_log_space(chains, weights)
    return _backward(steps, passed, weights)


def _backward(steps: Steps, passed: Forward, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Counts after the forward pass."""
    flows, betas = passed.tokens / passed.norms, torch.ones_like(passed.alphas)
    turned = passed.table.T.contiguous()
    later = list(zip(flows.split(steps.sizes), betas.split(steps.sizes), strict=True))
    for (flow, beta), (_, earlier) in zip(later[:0:-1], later[-2::-1], strict=True):
        flow.mul_(beta)
        torch.mm(flow, turned, out=earlier if len(earlier) == len(flow) else earlier[: len(flow)])
    weight = weights.to(betas.dtype).index_select(0, steps.sequence)[:, None]
    nodes = betas.mul_(passed.alphas).mul_(weight)
    first = steps.sizes[0]
    pairs = passed.alphas.index_select(0, steps.before).T @ (flows[first:] * weight[first:])
    return nodes, pairs.mul_(passed.table)


def _counts_in_log_space(chains: Chains, weights: Tensor) -> tuple[Tensor, Tensor]:
    steps, wide = chains.steps, chains.in_double()
    transitions = wide.transitions.clamp_min(FLOOR)
    _, alphas, betas = log_passes(wide)
    weight = weights.to(torch.float64).index_select(0, steps.sequence)[:, None]
    later = (wide.scores.clamp_min(FLOOR) + betas).split(steps.sizes)
    pairs = torch.zeros_like(transitions)
    for before, after, share in zip(alphas.split(steps.sizes), later[1:], weight.split(steps.sizes)[1:], strict=False):
        joint = before[: len(after), :, None] + transitions + after[:, None, :]
        pairs += (torch.softmax(joint.flatten(1), 1) * share).sum(0).view_as(pairs)
    return torch.softmax(alphas + betas, 1) * weight, pairs


def covariances(chains: Chains, weights: Tensor, nodes: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[S] (B,) of the score S that ``nodes`` (N, K) and ``pairs`` (K, K) give, and derivatives of weights @ E[S].

    The derivatives, by scores and by transitions, are weighted covariances of S with the counts of labels and of pairs.
    """
    steps, transitions = chains.steps, chains.transitions.clamp_min(FLOOR)
    _, alphas, betas = log_passes(chains)
    marginals = torch.softmax(alphas + betas, 1)
    mean, by_pairs = torch.zeros_like(weights), torch.zeros_like(pairs)
    if not steps.sizes:
        return mean, torch.zeros_like(nodes), by_pairs
    ahead, behind = nodes.clone(), torch.zeros_like(nodes)
    later = chains.scores.clamp_min(FLOOR) + betas
    alpha, beta, score, front, back = (part.split(steps.sizes) for part in (alphas, later, nodes, ahead, behind))
    for t, n in enumerate(steps.sizes[1:]):
        given = torch.softmax(alpha[t][:n, :, None] + transitions, 1)
        front[t + 1].add_((given * (front[t][:n, :, None] + pairs)).sum(1))
    for t in range(len(steps.sizes) - 1, 0, -1):
        given = torch.softmax(transitions + beta[t][:, None, :], 2)
        back[t - 1][: steps.sizes[t]] = (given * (pairs + (score[t] + back[t])[:, None, :])).sum(2)
    first = steps.sizes[0]
    mean[steps.sequence[:first]] = (marginals[:first] * (ahead[:first] + behind[:first])).sum(1)
    weight, centre = (part.index_select(0, steps.sequence)[:, None] for part in (weights, mean))
    weight_of, centre_of = weight.split(steps.sizes), centre.split(steps.sizes)
    for t, n in enumerate(steps.sizes[1:]):
        joint = alpha[t][:n, :, None] + transitions + beta[t + 1][:, None, :]
        joint = torch.softmax(joint.flatten(1), 1).mul_(weight_of[t + 1]).view_as(joint)
        rest = score[t + 1] + back[t + 1] - centre_of[t + 1]
        by_pairs += (joint * (front[t][:n, :, None] + pairs + rest[:, None, :])).sum(0)
    return mean, marginals * (ahead + behind - centre) * weight, by_pairs


def best_labels(chains: Chains) -> tuple[Tensor, Tensor]:
    """(N,) labels of the highest score, by Viterbi's algorithm, and (B',) the scores.

    Of ties the lowest of the last label that differs is taken.
    """
    steps = chains.steps
    found = torch.zeros_like(steps.sequence)
    if not steps.sizes:
        return found, chains.scores.new_zeros(0)
    parts, pointers = chains.scores.split(steps.sizes), []
    best = parts[0].clone()
    for part in parts[1:]:
        most, pointer = (best[: len(part), :, None] + chains.transitions).max(1)
        best[: len(part)] = most + part
        pointers.append(pointer)
    (score, label), places = best.max(1), found.split(steps.sizes)
    for place, pointer in zip(places[:0:-1], pointers[::-1], strict=True):
        place.copy_(label[: len(place)])
        label[: len(place)] = pointer.gather(1, place[:, None])[:, 0]
    places[0].copy_(label)
    return found, score


# --- what autograd and the compiler know ---


def _value(
    scores: Tensor,
    transitions: Tensor,
    start: Tensor,
    end: Tensor,
    mask: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
) -> Tensor:
    """(B,) log Z, less the log of the sum over the labellings that agree with ``labels`` where these are given."""
    given = scores, transitions, start, end
    with torch.autocast(scores.device.type, enabled=False):
        if can_chain(scores):
            sums = chain_sums(_places(mask), labels, ignore_index, *given)
            if bool((sums.abs() < -0.5 * FLOOR).all()):  # the one time that this waits for the device
                return sums if labels is None else sums[: len(scores)] - sums[len(scores) :]
        chains = Chains.of(*given, mask)
        value = _log_sums(chains)
        if labels is not None:
            value = value - _observed(chains, labels, ignore_index)
        if not bool(torch.isfinite(value).all()):
            _explain(chains, labels, ignore_index)
        return value


def _counts(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Derivatives of ``weights @ _value(...)`` by scores, transitions, start and end."""
    scores, transitions, start, end, mask, labels, ignore_index = inputs
    with torch.autocast(scores.device.type, enabled=False):
        if can_chain(scores):
            places = _places(mask)
            given = weights.to(scores.dtype), places, labels, ignore_index, scores, transitions, start, end
            nodes, pairs = chain_beliefs(*given)
            if places is None:
                return nodes, pairs, nodes[:, 0].sum(0), nodes[:, -1].sum(0)
            lengths, positions = places
            last = positions.gather(1, (lengths - 1).clamp_min(0)[:, None])
            ends = [nodes.gather(1, at[:, :, None].expand(-1, 1, nodes.shape[2])) for at in (positions[:, :1], last)]
            return nodes, pairs, ends[0].sum((0, 1)), ends[1].sum((0, 1))
        chains = Chains.of(scores, transitions, start, end, mask)
        nodes, pairs = counts(chains, weights)
        if labels is None and not bool(torch.isfinite(nodes).all()):
            _explain(chains, None, 0)
        if labels is not None:
            _subtract_observed(chains, labels, ignore_index, weights, nodes, pairs)
        return _by_input(chains.steps, nodes.to(scores.dtype), pairs.to(scores.dtype))


def _labels(scores: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor | None) -> Tensor:
    """(B, T) the most probable labels."""
    chains = Chains.of(scores, transitions, start, end, mask)
    best, score = best_labels(chains)
    if not bool((score > -torch.inf).all()):  # false for NaN
        _explain(chains, None, 0)
    return chains.steps.padded(best)


def _places(mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Lengths (B,) of sequences, and positions (B, T) of their tokens."""
    if mask is None:
        return None
    mask = mask.to(torch.bool)
    return mask.sum(1), (~mask).to(torch.uint8).argsort(dim=1, stable=True)


def _curvature(upstream: Sequence[Tensor], weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Derivatives of the sum of ``upstream`` times :func:`_counts` by weights, scores, transitions, start and end."""
    scores, transitions, start, end, mask, labels, ignore_index = inputs
    with torch.autocast(scores.device.type, enabled=False):
        chains = Chains.of(scores, transitions, start, end, mask)
        by_scores, by_transitions, by_start, by_end = upstream
        steps, nodes, pairs = Chains.of(by_scores, by_transitions, by_start, by_end, mask)
        mean, by_nodes, by_pairs = covariances(chains, weights, nodes, pairs)
        if labels is not None:
            packed = steps.packed(labels)
            chains = chains.restricted(packed, packed != ignore_index)
            found = covariances(chains, weights, nodes, pairs)
            mean, by_nodes, by_pairs = mean - found[0], by_nodes - found[1], by_pairs - found[2]
        return mean, *_by_input(steps, by_nodes, by_pairs)


def _by_input(steps: Steps, nodes: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By scores (B, T, K), transitions, start and end."""
    ends = nodes[: steps.sizes[0] if steps.sizes else 0].sum(0), nodes.index_select(0, steps.last).sum(0)
    return steps.padded(nodes), pairs, *ends


def _log_sums(chains: Chains) -> Tensor:
    passed = forward(chains) if chains.steps.sizes else None
    value = log_passes(chains.in_double())[0] if passed is None else passed.values
    return value.to(chains.scores.dtype)


def _checked(chains: Chains, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, bool]:
    """Labels in the order of the steps, which are known, and whether all are."""
    packed = chains.steps.packed(labels)
    known = packed != ignore_index
    wrong = known & ((packed < 0) | (packed >= chains.scores.shape[1]))
    any_wrong, all_known = torch.stack([wrong.any(), known.all()]).tolist()
    if any_wrong:
        _explain(chains, labels, ignore_index)
    return packed, known, all_known


def _observed(chains: Chains, labels: Tensor, ignore_index: int) -> Tensor:
    """(B,) log of the sum over the labellings that agree with ``labels``."""
    packed, known, all_known = _checked(chains, labels, ignore_index)
    if not all_known:
        return _log_sums(chains.restricted(packed, known))
    found, before = chains.scores.gather(1, packed[:, None])[:, 0], chains.steps.before
    later = len(packed) - len(before)
    found[later:] += chains.transitions[packed[before], packed[later:]]
    return chains.steps.by_sequence(found)


def _subtract_observed(
    chains: Chains, labels: Tensor, ignore_index: int, weights: Tensor, nodes: Tensor, pairs: Tensor
) -> None:
    """Subtract the counts of the labellings that agree with ``labels``, in place."""
    packed, known, all_known = _checked(chains, labels, ignore_index)
    if not all_known:
        by_node, by_pair = counts(chains.restricted(packed, known), weights)
        nodes -= by_node
        pairs -= by_pair
        return
    weight, before = weights.to(nodes.dtype).index_select(0, chains.steps.sequence), chains.steps.before
    nodes.scatter_add_(1, packed[:, None], -weight[:, None])
    later = len(packed) - len(before)
    pairs.view(-1).index_add_(0, len(pairs) * packed[before] + packed[later:], -weight[later:])


def _explain(chains: Chains, labels: Tensor | None, ignore_index: int) -> None:
    """Raise the error that says why a value is not finite, or a label outside."""
    steps, scores, transitions = chains
    if not bool((transitions < torch.inf).all()):
        raise ArgumentError("transitions", "must not hold NaN or +inf (-inf forbids a pair of labels)")
    mask = steps.padded(torch.ones_like(scores[:, 0])) > 0.0
    tables = transitions.to(torch.float64).clamp_min(FORBIDDEN)[None]
    given = steps.padded(scores), tables, None, mask, labels, None, None, None
    call = Call(*given, ignore_index, 2, "convex", 0.0, 0, "sum")
    call.refuse(call.entry())
    raise ArgumentError("scores", "and constraints must allow a labelling of every sequence")


_INPUTS = "Tensor scores, Tensor transitions, Tensor start, Tensor end, Tensor? mask, Tensor? labels, int ignore_index"
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
#: :func:`_value`, differentiable twice.
chain_value = torch.library.custom_op("bactrian::chain_value", mutates_args=(), schema=f"({_INPUTS}) -> Tensor")(_value)
#: :func:`_counts`, differentiable.
chain_counts = torch.library.custom_op(
    "bactrian::chain_counts", mutates_args=(), schema=f"(Tensor weights, {_INPUTS}) -> {_FOUR}"
)(_counts)
#: :func:`_labels`.
chain_labels = torch.library.custom_op(
    "bactrian::chain_labels",
    mutates_args=(),
    schema="(Tensor scores, Tensor transitions, Tensor start, Tensor end, Tensor? mask) -> Tensor",
)(_labels)
_chain_curvature = torch.library.custom_op(
    "bactrian::chain_curvature",
    mutates_args=(),
    schema=f"(Tensor[] upstream, Tensor weights, {_INPUTS}) -> (Tensor, {_FOUR[1:]}",
)(_curvature)


def _like(*given: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(part, memory_format=torch.contiguous_format) for part in given)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors)


def _backward_of_value(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    return *chain_counts(upstream.contiguous(), *ctx.saved_tensors, ctx.ignore_index), None, None, None


def _backward_of_counts(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    return *_chain_curvature([*upstream], *ctx.saved_tensors, ctx.ignore_index), None, None, None


torch.library.register_fake("bactrian::chain_value", lambda scores, *_: scores.new_empty(scores.shape[0]))
torch.library.register_fake(
    "bactrian::chain_labels", lambda scores, *_: scores.new_empty(scores.shape[:2], dtype=torch.int64)
)
torch.library.register_fake("bactrian::chain_counts", lambda weights, *given: _like(*given[:4]))
torch.library.register_fake("bactrian::chain_curvature", lambda upstream, *given: _like(*given[:5]))
torch.library.register_autograd("bactrian::chain_value", _backward_of_value, setup_context=_save)
torch.library.register_autograd("bactrian::chain_counts", _backward_of_counts, setup_context=_save)
