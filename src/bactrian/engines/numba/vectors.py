"""Vectors in arrays: arithmetic on n successive entries, n known to the compiler or not.

LLVM does not vectorise loops as short as these by itself, since it cannot know that the arrays involved do not overlap.
Each function here takes n as its last argument: a tuple, whose length is n, for code that works on one LLVM vector of n
numbers (which LLVM splits into whatever registers the machine has), or an integer, for a call of a function that loops
over blocks as wide as a register. Both come from one description in terms of LLVM; the body of a function says the same
in NumPy, and is what runs where nothing is compiled (``NUMBA_DISABLE_JIT=1``). An array comes with the place of its
first entry, so that functions of several arrays have many arguments.

A kernel that is given such a tuple as ``states`` is compiled for hubs that all have as many states; with ``()`` for
any: :func:`place`, :func:`size_of` and :func:`count` are what differs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from bactrian.arrays import Floats
from bactrian.compiling import cgutils, intrinsic, types
from bactrian.engines.numba.arithmetic import RISE
from bactrian.engines.numba.vector_code import BYTES, DOUBLE, INDEX, MATRIX_WIDTHS, Op, VectorBuilder, vectorised

#: Its length is the number of states of all hubs; empty where they differ.
States = tuple[int, ...]
#: An integer, or a tuple that is as long.
Length = Any


def _entry(context: Any, builder: Any, signature: Any, args: Any, more: int) -> Any:
    """Entry args[1] + more of the array that is the first argument."""
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.load(builder.gep(data, [builder.add(args[1], INDEX(more))]))


@intrinsic(lambda offsets, i, states: i * len(states) if states else offsets[i])
def place(_: Any, offsets: Any, i: Any, states: Any) -> Any:
    """``offsets[i]``, which is i times the number of states where that is known."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        known = len(signature.args[2])
        return builder.mul(args[1], INDEX(known)) if known else _entry(context, builder, signature, args, 0)

    return types.int64(offsets, types.int64, states), generate


@intrinsic(lambda offsets, i, states: states or int(offsets[i + 1] - offsets[i]))
def size_of(_: Any, offsets: Any, i: Any, states: Any) -> Any:
    """The number of states that item ``i`` has, for functions of this module: a tuple where it is known."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if len(signature.args[2]):
            return args[2]
        ends = (_entry(context, builder, signature, args, more) for more in (1, 0))
        return builder.sub(*ends)

    return (states if len(states) else types.int64)(offsets, types.int64, states), generate


@intrinsic(lambda n: len(n) if isinstance(n, tuple) else n)
def count(_: Any, n: Any) -> Any:
    """The number that :func:`size_of` gave."""

    def generate(_context: Any, _builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        return INDEX(len(kind)) if isinstance(kind, types.BaseTuple) else args[0]

    return types.int64(n), generate


def _size(n: Length) -> int:
    return len(n) if isinstance(n, tuple) else int(n)


def _part(array: Floats, start: int, n: Length) -> Floats:
    return array[start : start + _size(n)]


def _matrix(array: Floats, start: int, m: Length, n: Length) -> Floats:
    return array[start : start + _size(m) * _size(n)].reshape(_size(m), _size(n))


Operand = tuple[int | str, Any]


def _vector_matrix(op: Op, matrix: Operand, source: Operand, target: Operand) -> None:
    """target = source @ matrix, for arrays and places in them; the last arguments are the matrix's size, m and n."""
    columns = op.n()

    def block(b: VectorBuilder, offset: Any) -> None:
        total = op.variable(ir.Constant(b.vector, [0.0] * b.width))

        def row(r: Any) -> None:
            at = op.builder.add(op.builder.add(matrix[1], op.builder.mul(r, columns)), offset)
            term = b.times(b.load_one(source[0], op.builder.add(source[1], r)), b.load(matrix[0], at))
            op.builder.store(b.plus(op.builder.load(total), term), total)

        op.rows(-2, row)
        b.store(op.builder.load(total), target[0], op.builder.add(target[1], offset))

    op.blocks(block, MATRIX_WIDTHS)


def _matrix_vector(op: Op, matrix: Operand, source: Operand, target: Operand) -> None:
    """target = matrix @ source, for a matrix of n rows and m columns."""

    def row(r: Any) -> None:
        start = op.builder.add(matrix[1], op.builder.mul(r, op.n(-2)))
        total = op.reduce(
            "total",
            0.0,
            lambda b, offset: b.times(
                b.load(matrix[0], op.builder.add(start, offset)), b.load(source[0], op.builder.add(source[1], offset))
            ),
            -2,
        )
        op.builder.store(total, op.address(target[0], op.builder.add(target[1], r)))

    op.rows(-1, row)


def _pair_message(op: Op) -> None:
    zero = INDEX(0)
    arguments = (0, zero), (3, zero), (5, zero)
    with op.builder.if_else(op.builder.icmp_signed("==", op.args[2], INDEX(1))) as (second, first):
        with second:
            _vector_matrix(op, *arguments)
        with first:
            _matrix_vector(op, *arguments)


@vectorised(_pair_message)
def pair_message(
    matrix: Floats, start: int, axis: int, source: Floats, at: int, target: Floats, to: int, m: Length, n: Length
) -> None:
    """m = E'u: target[to:] from source[at:]; E begins at ``start`` and is (m, n) for ``axis`` 1, (n, m) for 0.

    Nine arguments: each of three arrays comes with a place in it, since slices cost more than so short a product.
    """
    table = _matrix(matrix, start, m, n) if axis == 1 else _matrix(matrix, start, n, m).T
    _part(target, to, n)[:] = _part(source, at, m) @ table


def _receive(op: Op) -> None:
    start, source, target = op.args[1], ("message", op.args[3]), ("product", op.args[4])
    with op.builder.if_else(op.builder.icmp_signed("==", op.args[2], INDEX(1))) as (second, first):
        with second:
            _vector_matrix(op, ("entries", start), source, target)
        with first:
            if isinstance(op.signature.args[-1], types.BaseTuple):
                _vector_matrix(op, ("transposed", start), source, target)
            else:
                filled = op.builder.icmp_signed(">", op.field("transposed").nitems, INDEX(0))
                with op.builder.if_else(filled) as (some, none):
                    with some:
                        _vector_matrix(op, ("transposed", start), source, target)
                    with none:
                        _matrix_vector(op, ("entries", start), source, target)


@vectorised(_receive)
def receive(work: Any, start: int, axis: int, at: int, to: int, m: Length, n: Length) -> None:
    """work.product[to:] = E'u, from work.message[at:]; see :class:`.linear.Linear`.

    E begins at ``start`` of ``entries``: (m, n) for ``axis`` 1, (n, m) for 0. Where K is known ``transposed`` has E's
    transpose, and it does where it has any entries.
    """
    pair_message(work.entries, start, axis, work.message, at, work.product, to, m, n)


def _multiply_messages(op: Op) -> None:
    def block(b: VectorBuilder, offset: Any) -> None:
        to = op.plus(1, offset)
        kept = {name: op.variable(b.load(name, offset)) for name in ("low", "high")}
        belief = op.variable(b.load("psi", to))

        def link(j: Any) -> None:
            factor = b.load("product", op.plus(2, op.builder.add(op.builder.mul(j, op.n()), offset)))
            value = b.times(op.builder.load(belief), factor)
            op.builder.store(value, belief)
            low, high = op.builder.load(kept["low"]), op.builder.load(kept["high"])
            op.builder.store(b.least(value, b.least(factor, low)), kept["low"])
            op.builder.store(b.most(value, b.most(factor, high)), kept["high"])

        op.rows(3, link)
        b.store(op.builder.load(belief), "belief", to)
        for name, value in kept.items():
            b.store(op.builder.load(value), name, offset)

    op.blocks(block)


@vectorised(_multiply_messages)
def multiply_messages(work: Any, to: int, of: int, degree: int, n: Length) -> None:
    """work.belief[to:] = psi[to:] times the ``degree`` messages in product[of:].

    Messages, and the product of each with those before it, widen ``low`` and ``high``.
    """
    belief = _part(work.belief, to, n)
    belief[:] = _part(work.psi, to, n)
    for j in range(degree):
        factor = _part(work.product, of + j * _size(n), n)
        belief *= factor
        for value in (factor, belief):
            widen(work.low, 0, work.high, 0, value, 0, n)


def _divide_messages(op: Op) -> None:
    def link(j: Any) -> None:
        step = op.builder.mul(j, op.n())
        at, of = op.plus(1, step), op.plus(2, step)

        def old(b: VectorBuilder, offset: Any) -> Any:
            return b.times(b.load("message", op.builder.add(at, offset)), b.load("product", op.builder.add(of, offset)))

        inverse = op.builder.fdiv(DOUBLE(1.0), op.reduce("total", 0.0, old))

        def block(b: VectorBuilder, offset: Any) -> None:
            wanted = b.load("belief", op.plus(3, offset))
            marginal = b.times(old(b, offset), b.splat(inverse))
            new = b.over(wanted, b.load("product", op.builder.add(of, offset)))
            b.store(new, "message", op.builder.add(at, offset))
            step = b.minus(wanted, marginal)
            b.store(b.most(b.absolute(step), b.load("change", offset)), "change", offset)
            beyond = b.minus(step, b.times(b.splat(DOUBLE(RISE)), marginal))
            b.store(b.most(beyond, b.load("rise", offset)), "rise", offset)

        op.blocks(block)

    op.rows(4, link)


@vectorised(_divide_messages)
def divide_messages(work: Any, at: int, of: int, to: int, degree: int, n: Length) -> None:
    """u = b / m for ``degree`` links: work.message[at:] = belief[to:] / product[of:] each.

    Entry by entry ``change`` is raised to the change of the marginal, which was message * product, normalised, and
    ``rise`` to what it rose by beyond ``RISE`` times itself.
    """
    wanted, change, rise = _part(work.belief, to, n), _part(work.change, 0, n), _part(work.rise, 0, n)
    for j in range(0, degree * _size(n), _size(n)):
        message, factor = _part(work.message, at + j, n), _part(work.product, of + j, n)
        marginal = message * factor
        marginal /= marginal.sum()
        message[:] = wanted / factor
        step = wanted - marginal
        np.copyto(change, np.abs(step), where=np.abs(step) > change)
        np.copyto(rise, step - RISE * marginal, where=step - RISE * marginal > rise)


def _spread(op: Op) -> Any:
    high, low = op.variable(DOUBLE(0.0)), op.variable(DOUBLE(math.inf))

    def block(b: VectorBuilder, offset: Any) -> None:
        at = op.plus(1, offset)
        old, new = b.load("message", at), b.over(b.load("belief", op.plus(2, offset)), b.load("product", at))
        ratio = b.over(new, old)
        op.builder.store(b.most(b.largest(ratio), op.builder.load(high)), high)
        op.builder.store(b.least(b.smallest(ratio), op.builder.load(low)), low)
        b.store(op.builder.select(op.args[3], new, old), "message", at)

    op.blocks(block)
    return op.builder.fdiv(op.builder.load(high), op.builder.load(low))


@vectorised(_spread)
def spread(work: Any, at: int, to: int, commit: bool, n: Length) -> float:
    """max / min of q / work.message[at:], where q = belief[to:] / product[at:]; with ``commit`` message[at:] = q."""
    new = _part(work.belief, to, n) / _part(work.product, at, n)
    ratio = new / _part(work.message, at, n)
    if commit:
        _part(work.message, at, n)[:] = new
    return float(ratio.max() / ratio.min())


@vectorised(lambda op: op.blocks(lambda b, i: b.store(b.times(b.load(0, i), b.load(2, i)), 0, i)))
def multiply_by(target: Floats, to: int, source: Floats, at: int, n: Length) -> None:
    """target[to:] *= source[at:]."""
    _part(target, to, n)[:] *= _part(source, at, n)


@vectorised(lambda op: op.blocks(lambda b, i: b.store(b.over(b.load(2, i), b.load(4, i)), 0, i)))
def divide(target: Floats, to: int, source: Floats, at: int, divisor: Floats, of: int, n: Length) -> None:
    """target[to:] = source[at:] / divisor[of:]."""
    _part(target, to, n)[:] = _part(source, at, n) / _part(divisor, of, n)


def _widen(b: VectorBuilder, offset: Any) -> None:
    value = b.load(4, offset)
    b.store(b.least(value, b.load(0, offset)), 0, offset)
    b.store(b.most(value, b.load(2, offset)), 2, offset)


@vectorised(lambda op: op.blocks(_widen))
def widen(low: Floats, low_at: int, high: Floats, high_at: int, source: Floats, at: int, n: Length) -> None:
    """low[low_at:] = min(low, source[at:]) and high[high_at:] = max(high, source[at:]), entry by entry."""
    value, least, most = _part(source, at, n), _part(low, low_at, n), _part(high, high_at, n)
    np.copyto(least, value, where=value < least)
    np.copyto(most, value, where=value > most)


@vectorised(lambda op: op.reduce("smallest", math.inf, lambda b, i: b.load(0, i)))
def smallest(source: Floats, at: int, n: Length) -> float:
    """min(source[at:])."""
    return float(_part(source, at, n).min())


@vectorised(lambda op: op.reduce("largest", -math.inf, lambda b, i: b.load(0, i)))
def largest(source: Floats, at: int, n: Length) -> float:
    """max(source[at:])."""
    return float(_part(source, at, n).max())


def _normalise(op: Op) -> Any:
    total = op.reduce("total", 0.0, lambda b, offset: b.load(0, offset))
    inverse = op.builder.fdiv(DOUBLE(1.0), total)
    op.blocks(lambda b, offset: b.store(b.times(b.load(0, offset), b.splat(inverse)), 0, offset))
    return total


@vectorised(_normalise)
def normalise(target: Floats, to: int, n: Length) -> float:
    """target[to:] /= its sum; returns the sum."""
    total = _part(target, to, n).sum()
    _part(target, to, n)[:] /= total
    return float(total)


@vectorised(lambda op: op.reduce("largest", 0.0, lambda b, i: b.absolute(b.minus(b.load(0, i), b.load(2, i)))))
def distance(left: Floats, at: int, right: Floats, of: int, n: Length) -> float:
    """max |left[at:] - right[of:]|."""
    return float(np.abs(_part(left, at, n) - _part(right, of, n)).max())


@vectorised(lambda op: op.blocks(lambda b, i: b.store(b.times(b.splat(op.args[4]), b.load(2, i)), 0, i)))
def copy_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: Length) -> None:
    """target[to:] = factor * source[at:]."""
    _part(target, to, n)[:] = factor * _part(source, at, n)


def _add_scaled(op: Op) -> None:
    def block(b: VectorBuilder, offset: Any) -> None:
        more = b.times(b.splat(op.args[4]), b.load(2, offset))
        b.store(b.plus(b.load(0, offset), more), 0, offset)

    op.blocks(block)


@vectorised(_add_scaled)
def add_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: Length) -> None:
    """target[to:] += factor * source[at:]."""
    _part(target, to, n)[:] += factor * _part(source, at, n)


@vectorised(lambda op: op.blocks(lambda b, i: b.store(b.plus(b.load(2, i), b.splat(op.args[4])), 0, i)))
def shift_by(target: Floats, to: int, source: Floats, at: int, number: float, n: Length) -> None:
    """target[to:] = source[at:] + number."""
    _part(target, to, n)[:] = _part(source, at, n) + number


def _add_outer(op: Op) -> None:
    n_columns = op.n()

    def block(b: VectorBuilder, offset: Any) -> None:
        scaled = b.times(b.splat(op.args[6]), b.load(4, offset))

        def row(r: Any) -> None:
            at = op.builder.add(op.builder.mul(r, n_columns), offset)
            b.store(b.plus(b.load(0, at), b.times(b.load_one(2, r), scaled)), 0, at)

        op.rows(-2, row)

    op.blocks(block)


@vectorised(_add_outer)
def add_outer(
    counts: Floats, start: int, rows: Floats, at: int, columns: Floats, of: int, weight: float, m: Length, n: Length
) -> None:
    """counts[start:] += weight * outer(rows[at:], columns[of:]), (m, n); arguments as in :func:`pair_message`."""
    _matrix(counts, start, m, n)[:] += weight * np.outer(_part(rows, at, m), _part(columns, of, n))


def _add_rows(op: Op) -> None:
    rows, index, value = op.args[2:5]

    def block(b: VectorBuilder, offset: Any) -> None:
        total = op.variable(ir.Constant(b.vector, [0.0] * b.width))
        with cgutils.for_range_slice(op.builder, op.args[5], op.args[6], INDEX(1)) as (p, _):
            row = op.builder.sext(op.builder.load(op.builder.gep(index, [p])), INDEX)
            at = op.builder.gep(rows, [op.builder.add(op.builder.mul(row, op.n()), offset)])
            entries = op.builder.load(op.builder.bitcast(at, b.vector.as_pointer()))
            entries.align = BYTES
            term = b.times(b.splat(op.builder.load(op.builder.gep(value, [p]))), entries)
            op.builder.store(b.plus(op.builder.load(total), term), total)
        b.store(op.builder.load(total), 0, offset)

    op.blocks(block)


@vectorised(_add_rows)
def add_rows(
    target: Floats, to: int, source: Floats, index: Any, value: Floats, first: int, last: int, n: Length
) -> None:
    """target[to:] = sum over p from ``first`` to ``last`` of value[p] * source[index[p] * n:], kept in registers."""
    _part(target, to, n)[:] = value[first:last] @ source.reshape(-1, _size(n))[index[first:last]]


@vectorised(lambda op: op.blocks(lambda b, i: b.store(b.splat(op.args[2]), 0, i)))
def fill(target: Floats, to: int, number: float, n: Length) -> None:
    """target[to:] = number."""
    _part(target, to, n)[:] = number
