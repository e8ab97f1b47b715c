"""Vectors in arrays: arithmetic on n successive entries, n known to the compiler or not.

LLVM does not vectorise loops as short as these by itself, since it cannot know that the arrays involved do not overlap.
Each function here takes n as its last argument: a tuple, whose length is n, for code that works on one LLVM vector of n
numbers (which LLVM splits into whatever registers the machine has), or an integer, for a loop over blocks as wide as a
register. Both come from one description, and :mod:`.plain_vectors` has what they do in NumPy.

A kernel that is given such a tuple as ``states`` is compiled for hubs that all have as many states; with ``()`` for
any: :func:`place`, :func:`size_of` and :func:`count` are what differs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from bactrian.compiling import cgutils, intrinsic, member, types
from bactrian.engines.numba import plain_vectors
from bactrian.engines.numba.arithmetic import RISE

#: Its length is the number of states of all hubs; empty where they differ.
States = tuple[int, ...]

_DOUBLE = ir.DoubleType()
_INDEX = ir.IntType(64)
#: Sums may be reordered and fused; infinities and NaN keep their meaning.
_FLAGS = ("contract", "nsz", "arcp", "reassoc")
_BYTES = 8
#: Widths of blocks where n is not known, those of matrices with several sums under way at a time.
_WIDTHS, _MATRIX_WIDTHS = (8, 2, 1), (32, 8, 2, 1)


def _entry(context: Any, builder: Any, signature: Any, args: Any, more: int) -> Any:
    """Entry args[1] + more of the array that is the first argument."""
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.load(builder.gep(data, [builder.add(args[1], _INDEX(more))]))


@intrinsic(lambda offsets, i, states: i * len(states) if states else offsets[i])
def place(_: Any, offsets: Any, i: Any, states: Any) -> Any:
    """``offsets[i]``, which is i times the number of states where that is known."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        known = len(signature.args[2])
        return builder.mul(args[1], _INDEX(known)) if known else _entry(context, builder, signature, args, 0)

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
        return _INDEX(len(kind)) if isinstance(kind, types.BaseTuple) else args[0]

    return types.int64(n), generate


class _Vectors:
    """LLVM's builder with vectors of ``width`` numbers, for the arguments of an intrinsic."""

    def __init__(self, op: _Op, width: int) -> None:
        self.op, self.builder, self.width = op, op.builder, width
        self.vector = ir.VectorType(_DOUBLE, width)

    def _place(self, array: int | str, offset: Any) -> Any:
        return self.builder.bitcast(self.op.address(array, offset), self.vector.as_pointer())

    def load(self, array: int | str, offset: Any) -> Any:
        """Entries of an array; see :meth:`_Op.address`."""
        value = self.builder.load(self._place(array, offset))
        value.align = _BYTES
        return value

    def load_one(self, array: int | str, offset: Any) -> Any:
        """A single entry, as a vector of equal numbers."""
        return self.splat(self.builder.load(self.op.address(array, offset)))

    def store(self, value: Any, array: int | str, offset: Any) -> None:
        self.builder.store(value, self._place(array, offset)).align = _BYTES

    def splat(self, number: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return self.builder.shuffle_vector(first, undefined, mask)

    def times(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b, flags=_FLAGS)

    def plus(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b, flags=_FLAGS)

    def minus(self, a: Any, b: Any) -> Any:
        return self.builder.fsub(a, b, flags=_FLAGS)

    def over(self, a: Any, b: Any) -> Any:
        return self.builder.fdiv(a, b, flags=("nsz",))

    def least(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def most(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def _call(self, name: str, result: Any, arguments: list[Any], flags: tuple[str, ...]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        insert: Any = cgutils.get_or_insert_function
        function = insert(self.builder.module, kind, f"llvm.{name}.v{self.width}f64")
        return self.builder.call(function, arguments, fastmath=flags)

    def absolute(self, a: Any) -> Any:
        return self._call("fabs", self.vector, [a], ())

    def total(self, a: Any) -> Any:
        return self._call("vector.reduce.fadd", _DOUBLE, [_DOUBLE(0.0), a], _FLAGS)

    def largest(self, a: Any) -> Any:
        return self._call("vector.reduce.fmax", _DOUBLE, [a], ("nnan", "nsz"))

    def smallest(self, a: Any) -> Any:
        return self._call("vector.reduce.fmin", _DOUBLE, [a], ("nnan", "nsz"))


Block = Callable[[_Vectors, Any], Any]


class _Op:
    """One call of an intrinsic: its arguments, and loops over entries of their arrays."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder, self.signature, self.args = context, builder, signature, args

    def address(self, array: int | str, offset: Any) -> Any:
        """Address of entry args[array + 1] + offset of the array that is argument number ``array``.

        Or of entry ``offset`` of a field of the named tuple that is the first argument. (Numba would count references
        to each array that it takes out of a tuple.)
        """
        if not isinstance(array, str):
            offset = self.builder.add(self.args[array + 1], offset)
        return self.builder.gep(self.array(array).data, [offset])

    def array(self, array: int | str) -> Any:
        """An argument, or a field of the first."""
        if isinstance(array, str):
            whole = self.signature.args[0]
            kind, value = member(self.builder, whole, self.args[0], whole.fields.index(array))
        else:
            kind, value = self.signature.args[array], self.args[array]
        return self.context.make_array(kind)(self.context, self.builder, value)

    def n(self, argument: int = -1) -> Any:
        """The number that an argument stands for."""
        kind = self.signature.args[argument]
        return _INDEX(len(kind)) if isinstance(kind, types.BaseTuple) else self.args[argument]

    def variable(self, value: Any) -> Any:
        """A place that holds ``value`` for now."""
        allocate: Any = cgutils.alloca_once
        place = allocate(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def blocks(self, body: Block, widths: tuple[int, ...] = _WIDTHS, argument: int = -1) -> None:
        """``body`` of vectors that cover n entries, and of the offset of each."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            body(_Vectors(self, len(kind)), _INDEX(0))
            return
        start = _INDEX(0)
        for width in widths:
            stop = self.builder.and_(self.args[argument], _INDEX(-width))
            with cgutils.for_range_slice(self.builder, start, stop, _INDEX(width)) as (offset, _):
                body(_Vectors(self, width), offset)
            start = stop

    def rows(self, argument: int, body: Callable[[Any], None]) -> None:
        """``body`` of every number below that of an argument."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            for row in range(len(kind)):
                body(_INDEX(row))
            return
        with cgutils.for_range(self.builder, self.args[argument]) as loop:
            body(loop.index)

    def plus(self, argument: int, offset: Any) -> Any:
        """An index that is an argument, and more."""
        return self.builder.add(self.args[argument], offset)

    def reduce(self, how: str, start: float, body: Block, argument: int = -1) -> Any:
        """The ``total``, ``largest`` or ``smallest`` of all entries of the vectors that ``body`` gives."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            whole = _Vectors(self, len(kind))
            return getattr(whole, how)(body(whole, _INDEX(0)))
        kept = self.variable(_DOUBLE(start))

        def block(b: _Vectors, offset: Any) -> None:
            part = getattr(b, how)(body(b, offset))
            join = {"total": b.plus, "largest": b.most, "smallest": b.least}[how]
            self.builder.store(join(part, self.builder.load(kept)), kept)

        self.blocks(block, argument=argument)
        return self.builder.load(kept)


def _vectorised(plain: Any, result: str = "void") -> Callable[[Callable[[_Op], Any]], Any]:
    """An intrinsic whose last argument is n, from a function that writes it; ``plain`` does the same in NumPy."""

    def decorate(write: Callable[[_Op], Any]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = write(_Op(context, builder, signature, args))
            return context.get_dummy_value() if result == "void" else found

        def typed(_: Any, *arguments: Any) -> Any:
            return getattr(types, result)(*arguments), generate

        # Numba matches arguments by the signature of the function that types them.
        first, names = next(iter(inspect.signature(typed).parameters.values())), inspect.signature(plain).parameters
        typed.__signature__ = inspect.Signature([first, *names.values()])  # type: ignore[attr-defined]
        typed.__name__ = typed.__qualname__ = plain.__name__
        return intrinsic(plain)(typed)

    return decorate


Place = tuple[int | str, Any]


def _vector_matrix(op: _Op, matrix: Place, source: Place, target: Place) -> None:
    """target = source @ matrix, for arrays and places in them; the last arguments are the matrix's size, m and n."""
    columns = op.n()

    def block(b: _Vectors, offset: Any) -> None:
        total = op.variable(ir.Constant(b.vector, [0.0] * b.width))

        def row(r: Any) -> None:
            at = op.builder.add(op.builder.add(matrix[1], op.builder.mul(r, columns)), offset)
            term = b.times(b.load_one(source[0], op.builder.add(source[1], r)), b.load(matrix[0], at))
            op.builder.store(b.plus(op.builder.load(total), term), total)

        op.rows(-2, row)
        b.store(op.builder.load(total), target[0], op.builder.add(target[1], offset))

    op.blocks(block, _MATRIX_WIDTHS)


def _matrix_vector(op: _Op, matrix: Place, source: Place, target: Place) -> None:
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


@_vectorised(plain_vectors.pair_message)
def pair_message(op: _Op) -> None:
    """(matrix, start, axis, source, at, target, to, m, n): m = E'u, target[to:] from source[at:].

    E begins at ``start``: (m, n) for ``axis`` 1, (n, m) for 0.
    """
    zero = _INDEX(0)
    arguments = (0, zero), (3, zero), (5, zero)
    with op.builder.if_else(op.builder.icmp_signed("==", op.args[2], _INDEX(1))) as (second, first):
        with second:
            _vector_matrix(op, *arguments)
        with first:
            _matrix_vector(op, *arguments)


@_vectorised(plain_vectors.receive)
def receive(op: _Op) -> None:
    """(work, start, axis, at, to, m, n): work.product[to:] = E'u, from work.message[at:]; see :class:`.linear.Linear`.

    E begins at ``start`` of ``entries``: (m, n) for ``axis`` 1, (n, m) for 0. Where K is known ``transposed`` has E's
    transpose, and it does where it has any entries.
    """
    start, source, target = op.args[1], ("message", op.args[3]), ("product", op.args[4])
    with op.builder.if_else(op.builder.icmp_signed("==", op.args[2], _INDEX(1))) as (second, first):
        with second:
            _vector_matrix(op, ("entries", start), source, target)
        with first:
            if isinstance(op.signature.args[-1], types.BaseTuple):
                _vector_matrix(op, ("transposed", start), source, target)
            else:
                filled = op.builder.icmp_signed(">", op.array("transposed").nitems, _INDEX(0))
                with op.builder.if_else(filled) as (some, none):
                    with some:
                        _vector_matrix(op, ("transposed", start), source, target)
                    with none:
                        _matrix_vector(op, ("entries", start), source, target)


@_vectorised(plain_vectors.multiply_messages)
def multiply_messages(op: _Op) -> None:
    """(work, to, of, degree, n): work.belief[to:] = psi[to:] times the ``degree`` messages in product[of:].

    Messages, and the product of each with those before it, widen ``low`` and ``high``.
    """

    def block(b: _Vectors, offset: Any) -> None:
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


@_vectorised(plain_vectors.divide_messages)
def divide_messages(op: _Op) -> None:
    """(work, at, of, to, degree, n): u = b / m for ``degree`` links: message[at:] = belief[to:] / product[of:] each.

    Entry by entry ``change`` is raised to the change of the marginal, which was message * product, normalised, and
    ``rise`` to what it rose by beyond ``RISE`` times itself.
    """

    def link(j: Any) -> None:
        step = op.builder.mul(j, op.n())
        at, of = op.plus(1, step), op.plus(2, step)

        def old(b: _Vectors, offset: Any) -> Any:
            return b.times(b.load("message", op.builder.add(at, offset)), b.load("product", op.builder.add(of, offset)))

        inverse = op.builder.fdiv(_DOUBLE(1.0), op.reduce("total", 0.0, old))

        def block(b: _Vectors, offset: Any) -> None:
            wanted = b.load("belief", op.plus(3, offset))
            marginal = b.times(old(b, offset), b.splat(inverse))
            new = b.over(wanted, b.load("product", op.builder.add(of, offset)))
            b.store(new, "message", op.builder.add(at, offset))
            step = b.minus(wanted, marginal)
            b.store(b.most(b.absolute(step), b.load("change", offset)), "change", offset)
            beyond = b.minus(step, b.times(b.splat(_DOUBLE(RISE)), marginal))
            b.store(b.most(beyond, b.load("rise", offset)), "rise", offset)

        op.blocks(block)

    op.rows(4, link)


@_vectorised(plain_vectors.spread, "float64")
def spread(op: _Op) -> Any:
    """(work, at, to, commit, n): max / min of q / message[at:], where q = belief[to:] / product[at:].

    With ``commit`` message[at:] = q.
    """
    high, low = op.variable(_DOUBLE(0.0)), op.variable(_DOUBLE(math.inf))

    def block(b: _Vectors, offset: Any) -> None:
        at = op.plus(1, offset)
        old, new = b.load("message", at), b.over(b.load("belief", op.plus(2, offset)), b.load("product", at))
        ratio = b.over(new, old)
        op.builder.store(b.most(b.largest(ratio), op.builder.load(high)), high)
        op.builder.store(b.least(b.smallest(ratio), op.builder.load(low)), low)
        b.store(op.builder.select(op.args[3], new, old), "message", at)

    op.blocks(block)
    return op.builder.fdiv(op.builder.load(high), op.builder.load(low))


@_vectorised(plain_vectors.multiply_by)
def multiply_by(op: _Op) -> None:
    """(target, to, source, at, n): target[to:] *= source[at:]."""
    op.blocks(lambda b, offset: b.store(b.times(b.load(0, offset), b.load(2, offset)), 0, offset))


@_vectorised(plain_vectors.divide)
def divide(op: _Op) -> None:
    """(target, to, source, at, divisor, of, n): target[to:] = source[at:] / divisor[of:]."""
    op.blocks(lambda b, offset: b.store(b.over(b.load(2, offset), b.load(4, offset)), 0, offset))


@_vectorised(plain_vectors.widen)
def widen(op: _Op) -> None:
    """(low, low_at, high, high_at, source, at, n): entry by entry, low = min(low, source), high = max(high, source)."""

    def block(b: _Vectors, offset: Any) -> None:
        value = b.load(4, offset)
        b.store(b.least(value, b.load(0, offset)), 0, offset)
        b.store(b.most(value, b.load(2, offset)), 2, offset)

    op.blocks(block)


@_vectorised(plain_vectors.smallest, "float64")
def smallest(op: _Op) -> Any:
    """(source, at, n): min(source[at:])."""
    return op.reduce("smallest", math.inf, lambda b, offset: b.load(0, offset))


@_vectorised(plain_vectors.largest, "float64")
def largest(op: _Op) -> Any:
    """(source, at, n): max(source[at:])."""
    return op.reduce("largest", -math.inf, lambda b, offset: b.load(0, offset))


@_vectorised(plain_vectors.normalise, "float64")
def normalise(op: _Op) -> Any:
    """(target, to, n): target[to:] /= its sum; returns the sum."""
    total = op.reduce("total", 0.0, lambda b, offset: b.load(0, offset))
    inverse = op.builder.fdiv(_DOUBLE(1.0), total)
    op.blocks(lambda b, offset: b.store(b.times(b.load(0, offset), b.splat(inverse)), 0, offset))
    return total


@_vectorised(plain_vectors.distance, "float64")
def distance(op: _Op) -> Any:
    """(left, at, right, of, n): max |left[at:] - right[of:]|."""
    return op.reduce("largest", 0.0, lambda b, offset: b.absolute(b.minus(b.load(0, offset), b.load(2, offset))))


@_vectorised(plain_vectors.copy_scaled)
def copy_scaled(op: _Op) -> None:
    """(target, to, source, at, factor, n): target[to:] = factor * source[at:]."""
    op.blocks(lambda b, offset: b.store(b.times(b.splat(op.args[4]), b.load(2, offset)), 0, offset))


@_vectorised(plain_vectors.add_scaled)
def add_scaled(op: _Op) -> None:
    """(target, to, source, at, factor, n): target[to:] += factor * source[at:]."""

    def block(b: _Vectors, offset: Any) -> None:
        more = b.times(b.splat(op.args[4]), b.load(2, offset))
        b.store(b.plus(b.load(0, offset), more), 0, offset)

    op.blocks(block)


@_vectorised(plain_vectors.shift_by)
def shift_by(op: _Op) -> None:
    """(target, to, source, at, number, n): target[to:] = source[at:] + number."""
    op.blocks(lambda b, offset: b.store(b.plus(b.load(2, offset), b.splat(op.args[4])), 0, offset))


@_vectorised(plain_vectors.add_outer)
def add_outer(op: _Op) -> None:
    """(counts, start, rows, at, columns, of, weight, m, n): counts += weight * outer(rows, columns), (m, n)."""
    n_columns = op.n()

    def block(b: _Vectors, offset: Any) -> None:
        scaled = b.times(b.splat(op.args[6]), b.load(4, offset))

        def row(r: Any) -> None:
            at = op.builder.add(op.builder.mul(r, n_columns), offset)
            b.store(b.plus(b.load(0, at), b.times(b.load_one(2, r), scaled)), 0, at)

        op.rows(-2, row)

    op.blocks(block)


@_vectorised(plain_vectors.add_rows)
def add_rows(op: _Op) -> None:
    """(target, to, source, index, value, first, last, n): target[to:] = sum over p of value[p] * source[index[p] * n:].

    p goes from ``first`` to ``last``, and the sum stays in registers.
    """
    arrays = (op.context.make_array(op.signature.args[i])(op.context, op.builder, op.args[i]) for i in (2, 3, 4))
    rows, index, value = (array.data for array in arrays)

    def block(b: _Vectors, offset: Any) -> None:
        total = op.variable(ir.Constant(b.vector, [0.0] * b.width))
        with cgutils.for_range_slice(op.builder, op.args[5], op.args[6], _INDEX(1)) as (p, _):
            row = op.builder.sext(op.builder.load(op.builder.gep(index, [p])), _INDEX)
            at = op.builder.gep(rows, [op.builder.add(op.builder.mul(row, op.n()), offset)])
            entries = op.builder.load(op.builder.bitcast(at, b.vector.as_pointer()))
            entries.align = _BYTES
            term = b.times(b.splat(op.builder.load(op.builder.gep(value, [p]))), entries)
            op.builder.store(b.plus(op.builder.load(total), term), total)
        b.store(op.builder.load(total), 0, offset)

    op.blocks(block)


@_vectorised(plain_vectors.fill)
def fill(op: _Op) -> None:
    """(target, to, number, n): target[to:] = number."""
    op.blocks(lambda b, offset: b.store(b.splat(op.args[2]), 0, offset))
