"""Short vectors in arrays: arithmetic on K successive entries, with K known to the compiler.

LLVM does not vectorise loops as short as these by itself, since it cannot know that the arrays involved do not overlap.
Each function here takes a tuple as its last argument, whose length is K, and works on one LLVM vector of K numbers
(which LLVM splits into whatever registers the machine has); in the inner loops that is three to five times as fast.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from bactrian.compiling import cgutils, intrinsic, types
from bactrian.engines.numba import plain_vectors
from bactrian.engines.numba.arithmetic import RISE

_DOUBLE = ir.DoubleType()
_INDEX = ir.IntType(64)
#: Sums may be reordered and fused; infinities and NaN keep their meaning.
_FLAGS = ("contract", "nsz", "arcp", "reassoc")
_BYTES = 8


class _Builder:
    """LLVM's builder with vectors of K numbers in arrays; ``signature`` and ``args`` are those of an intrinsic."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, k: int) -> None:
        self.context, self.builder, self.k = context, builder, k
        self.signature, self.args = signature, args
        self.vector = ir.VectorType(_DOUBLE, k)

    def _address(self, array: int, offset: int) -> Any:
        """Address of entry args[array + 1] + offset of the array that is argument number ``array``."""
        kind = self.signature.args[array]
        data = self.context.make_array(kind)(self.context, self.builder, self.args[array]).data
        index = self.builder.add(self.args[array + 1], _INDEX(offset))
        return self.builder.gep(data, [index])

    def load(self, array: int, offset: int = 0) -> Any:
        """K entries of the array that is argument number ``array``, whose index is the argument after it."""
        place = self.builder.bitcast(self._address(array, offset), self.vector.as_pointer())
        value = self.builder.load(place)
        value.align = _BYTES
        return value

    def load_one(self, array: int, offset: int) -> Any:
        """A single entry, as a vector of K equal numbers."""
        return self.splat(self.builder.load(self._address(array, offset)))

    def store(self, value: Any, array: int, offset: int = 0) -> None:
        place = self.builder.bitcast(self._address(array, offset), self.vector.as_pointer())
        self.builder.store(value, place).align = _BYTES

    def splat(self, number: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.k), [0] * self.k)
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
        function = insert(self.builder.module, kind, f"llvm.{name}.v{self.k}f64")
        return self.builder.call(function, arguments, fastmath=flags)

    def absolute(self, a: Any) -> Any:
        return self._call("fabs", self.vector, [a], ())

    def total(self, a: Any) -> Any:
        return self._call("vector.reduce.fadd", _DOUBLE, [_DOUBLE(0.0), a], _FLAGS)

    def largest(self, a: Any) -> Any:
        return self._call("vector.reduce.fmax", _DOUBLE, [a], ("nnan", "nsz"))

    def smallest(self, a: Any) -> Any:
        return self._call("vector.reduce.fmin", _DOUBLE, [a], ("nnan", "nsz"))


def _states(states: Any) -> int:
    if not isinstance(states, types.BaseTuple) or not len(states):
        raise TypeError(f"the number of states is given by the length of a tuple, found {states}")
    return len(states)


@intrinsic(plain_vectors.multiply_matrix)
def multiply_matrix(_: Any, matrix: Any, start: Any, source: Any, at: Any, target: Any, to: Any, states: Any) -> Any:
    """target[to:] = source[at:] @ matrix, a (K, K) matrix whose rows begin at ``start``."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        total = b.times(b.load_one(2, 0), b.load(0))
        for row in range(1, k):
            total = b.plus(total, b.times(b.load_one(2, row), b.load(0, row * k)))
        b.store(total, 4)
        return context.get_dummy_value()

    return types.void(matrix, start, source, at, target, to, states), generate


@intrinsic(plain_vectors.multiply_by)
def multiply_by(_: Any, target: Any, to: Any, source: Any, at: Any, states: Any) -> Any:
    """target[to:] *= source[at:]."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        b.store(b.times(b.load(0), b.load(2)), 0)
        return context.get_dummy_value()

    return types.void(target, to, source, at, states), generate


@intrinsic(plain_vectors.widen)
def widen(_: Any, low: Any, low_at: Any, high: Any, high_at: Any, source: Any, at: Any, states: Any) -> Any:
    """Element by element, low = min(low, source) and high = max(high, source)."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        value = b.load(4)
        b.store(b.least(value, b.load(0)), 0)
        b.store(b.most(value, b.load(2)), 2)
        return context.get_dummy_value()

    return types.void(low, low_at, high, high_at, source, at, states), generate


@intrinsic(plain_vectors.multiply_and_widen)
def multiply_and_widen(
    _: Any, target: Any, to: Any, source: Any, at: Any, low: Any, low_at: Any, high: Any, high_at: Any, states: Any
) -> Any:
    """target[to:] *= source[at:], and low and high widened by both."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        factor = b.load(2)
        value = b.times(b.load(0), factor)
        b.store(value, 0)
        b.store(b.least(value, b.least(factor, b.load(4))), 4)
        b.store(b.most(value, b.most(factor, b.load(6))), 6)
        return context.get_dummy_value()

    return types.void(target, to, source, at, low, low_at, high, high_at, states), generate


@intrinsic(plain_vectors.smallest)
def smallest(_: Any, source: Any, at: Any, states: Any) -> Any:
    """min(source[at:])."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        return b.smallest(b.load(0))

    return types.float64(source, at, states), generate


@intrinsic(plain_vectors.largest)
def largest(_: Any, source: Any, at: Any, states: Any) -> Any:
    """max(source[at:])."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        return b.largest(b.load(0))

    return types.float64(source, at, states), generate


@intrinsic(plain_vectors.normalise)
def normalise(_: Any, target: Any, to: Any, states: Any) -> Any:
    """target[to:] /= its sum; returns the sum."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        value = b.load(0)
        total = b.total(value)
        b.store(b.times(value, b.splat(builder.fdiv(_DOUBLE(1.0), total))), 0)
        return total

    return types.float64(target, to, states), generate


@intrinsic(plain_vectors.divide_out)
def divide_out(
    _: Any, message: Any, at: Any, product: Any, of: Any, belief: Any, to: Any, change: Any, change_at: Any, rise: Any,
    rise_at: Any, states: Any,
) -> Any:  # fmt: skip
    """message[at:] = belief[to:] / product[of:].

    Element by element ``change`` is raised to the change of the marginal, which was message * product, normalised, and
    ``rise`` to what it rose by beyond ``RISE`` times itself.
    """
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        factor, wanted = b.load(2), b.load(4)
        marginal = b.times(b.load(0), factor)
        marginal = b.times(marginal, b.splat(builder.fdiv(_DOUBLE(1.0), b.total(marginal))))
        b.store(b.over(wanted, factor), 0)
        step = b.minus(wanted, marginal)
        b.store(b.most(b.absolute(step), b.load(6)), 6)
        b.store(b.most(b.minus(step, b.times(b.splat(_DOUBLE(RISE)), marginal)), b.load(8)), 8)
        return context.get_dummy_value()

    return types.void(message, at, product, of, belief, to, change, change_at, rise, rise_at, states), generate


@intrinsic(plain_vectors.distance)
def distance(_: Any, left: Any, at: Any, right: Any, of: Any, states: Any) -> Any:
    """max |left[at:] - right[of:]|."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        return b.largest(b.absolute(b.minus(b.load(0), b.load(2))))

    return types.float64(left, at, right, of, states), generate


@intrinsic(plain_vectors.copy_scaled)
def copy_scaled(_: Any, target: Any, to: Any, source: Any, at: Any, factor: Any, states: Any) -> Any:
    """target[to:] = factor * source[at:]."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        b.store(b.times(b.splat(args[4]), b.load(2)), 0)
        return context.get_dummy_value()

    return types.void(target, to, source, at, factor, states), generate


@intrinsic(plain_vectors.add_scaled)
def add_scaled(_: Any, target: Any, to: Any, source: Any, at: Any, factor: Any, states: Any) -> Any:
    """target[to:] += factor * source[at:]."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        b.store(b.plus(b.load(0), b.times(b.splat(args[4]), b.load(2))), 0)
        return context.get_dummy_value()

    return types.void(target, to, source, at, factor, states), generate


@intrinsic(plain_vectors.add_outer)
def add_outer(
    _: Any, counts: Any, start: Any, rows: Any, at: Any, columns: Any, of: Any, weight: Any, states: Any
) -> Any:
    """counts += weight * outer(rows[at:], columns[of:]), a (K, K) matrix whose rows begin at ``start``."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        scaled = b.times(b.splat(args[6]), b.load(4))
        for row in range(k):
            b.store(b.plus(b.load(0, row * k), b.times(b.load_one(2, row), scaled)), 0, row * k)
        return context.get_dummy_value()

    return types.void(counts, start, rows, at, columns, of, weight, states), generate


@intrinsic(plain_vectors.shift_by)
def shift_by(_: Any, target: Any, to: Any, source: Any, at: Any, number: Any, states: Any) -> Any:
    """target[to:] = source[at:] + number."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        b.store(b.plus(b.load(2), b.splat(args[4])), 0)
        return context.get_dummy_value()

    return types.void(target, to, source, at, number, states), generate


@intrinsic(plain_vectors.fill)
def fill(_: Any, target: Any, to: Any, number: Any, states: Any) -> Any:
    """target[to:] = number."""
    k = _states(states)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = _Builder(context, builder, signature, args, k)
        b.store(b.splat(args[2]), 0)
        return context.get_dummy_value()

    return types.void(target, to, number, states), generate
