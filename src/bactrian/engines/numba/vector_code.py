"""Code for vectors in arrays, as LLVM takes it: what operations on them (:mod:`.vectors`) are written in.

An operation is described once, for vectors of some width at some offset. :func:`vectorised` makes a function of it that
kernels call: code for one vector of n numbers where n is known to the compiler, else a call of a function, one per
module, that loops over blocks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from llvmlite import ir

from bactrian.compiling import cgutils, intrinsic, member, types

DOUBLE = ir.DoubleType()
INDEX = ir.IntType(64)
#: Sums may be reordered and fused; infinities and NaN keep their meaning.
_FLAGS = ("contract", "nsz", "arcp", "reassoc")
BYTES = 8
#: Widths of blocks where n is not known, those of matrices with several sums under way at a time.
_WIDTHS, MATRIX_WIDTHS = (8, 2, 1), (32, 8, 2, 1)


class VectorBuilder:
    """LLVM's builder with vectors of ``width`` numbers, for the arguments of an intrinsic."""

    def __init__(self, op: Op, width: int) -> None:
        self.op, self.builder, self.width = op, op.builder, width
        self.vector = ir.VectorType(DOUBLE, width)

    def _place(self, array: int | str, offset: Any) -> Any:
        return self.builder.bitcast(self.op.address(array, offset), self.vector.as_pointer())

    def load(self, array: int | str, offset: Any) -> Any:
        """Entries of an array; see :meth:`Op.address`."""
        value = self.builder.load(self._place(array, offset))
        value.align = BYTES
        return value

    def load_one(self, array: int | str, offset: Any) -> Any:
        """A single entry, as a vector of equal numbers."""
        return self.splat(self.builder.load(self.op.address(array, offset)))

    def store(self, value: Any, array: int | str, offset: Any) -> None:
        """Put a vector into an array."""
        self.builder.store(value, self._place(array, offset)).align = BYTES

    def splat(self, number: Any) -> Any:
        """A vector of equal numbers."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return self.builder.shuffle_vector(first, undefined, mask)

    def times(self, a: Any, b: Any) -> Any:
        """a b."""
        return self.builder.fmul(a, b, flags=_FLAGS)

    def plus(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.builder.fadd(a, b, flags=_FLAGS)

    def minus(self, a: Any, b: Any) -> Any:
        """a - b."""
        return self.builder.fsub(a, b, flags=_FLAGS)

    def over(self, a: Any, b: Any) -> Any:
        """a / b."""
        return self.builder.fdiv(a, b, flags=("nsz",))

    def least(self, a: Any, b: Any) -> Any:
        """min(a, b), entry by entry."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def most(self, a: Any, b: Any) -> Any:
        """max(a, b), entry by entry."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def _call(self, name: str, result: Any, arguments: list[Any], flags: tuple[str, ...]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        insert: Any = cgutils.get_or_insert_function
        function = insert(self.builder.module, kind, f"llvm.{name}.v{self.width}f64")
        return self.builder.call(function, arguments, fastmath=flags)

    def absolute(self, a: Any) -> Any:
        """|a|."""
        return self._call("fabs", self.vector, [a], ())

    def total(self, a: Any) -> Any:
        """The sum of all entries."""
        return self._call("vector.reduce.fadd", DOUBLE, [DOUBLE(0.0), a], _FLAGS)

    def largest(self, a: Any) -> Any:
        """The largest entry."""
        return self._call("vector.reduce.fmax", DOUBLE, [a], ("nnan", "nsz"))

    def smallest(self, a: Any) -> Any:
        """The smallest entry."""
        return self._call("vector.reduce.fmin", DOUBLE, [a], ("nnan", "nsz"))


BlockCode = Callable[[VectorBuilder, Any], Any]


class Op:
    """One call of an intrinsic: its arguments, addresses in place of arrays, and loops over entries of those."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder, self.signature, self.args = context, builder, signature, args

    def address(self, array: int | str, offset: Any) -> Any:
        """Address of entry args[array + 1] + offset of the array that is argument number ``array``.

        Or of entry ``offset`` of a field of the named tuple that is the first argument. (Numba would count references
        to each array that it takes out of a tuple.)
        """
        if isinstance(array, str):
            return self.builder.gep(self.field(array).data, [offset])
        return self.builder.gep(self.args[array], [self.builder.add(self.args[array + 1], offset)])

    def field(self, name: str) -> Any:
        """An array of the first argument."""
        whole = self.signature.args[0]
        kind, value = member(self.builder, whole, self.args[0], whole.fields.index(name))
        return self.context.make_array(kind)(self.context, self.builder, value)

    def n(self, argument: int = -1) -> Any:
        """The number that an argument stands for."""
        kind = self.signature.args[argument]
        return INDEX(len(kind)) if isinstance(kind, types.BaseTuple) else self.args[argument]

    def variable(self, value: Any) -> Any:
        """A place that holds ``value`` for now."""
        allocate: Any = cgutils.alloca_once
        place = allocate(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def blocks(self, body: BlockCode, widths: tuple[int, ...] = _WIDTHS, argument: int = -1) -> None:
        """``body`` of vectors that cover n entries, and of the offset of each."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            body(VectorBuilder(self, len(kind)), INDEX(0))
            return
        start = INDEX(0)
        for width in widths:
            stop = self.builder.and_(self.args[argument], INDEX(-width))
            with cgutils.for_range_slice(self.builder, start, stop, INDEX(width)) as (offset, _):
                body(VectorBuilder(self, width), offset)
            start = stop

    def rows(self, argument: int, body: Callable[[Any], None]) -> None:
        """``body`` of every number below that of an argument."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            for row in range(len(kind)):
                body(INDEX(row))
            return
        with cgutils.for_range(self.builder, self.args[argument]) as loop:
            body(loop.index)

    def plus(self, argument: int, offset: Any) -> Any:
        """An index that is an argument, and more."""
        return self.builder.add(self.args[argument], offset)

    def reduce(self, how: str, start: float, body: BlockCode, argument: int = -1) -> Any:
        """The ``total``, ``largest`` or ``smallest`` of all entries of the vectors that ``body`` gives."""
        kind = self.signature.args[argument]
        if isinstance(kind, types.BaseTuple):
            whole = VectorBuilder(self, len(kind))
            return getattr(whole, how)(body(whole, INDEX(0)))
        kept = self.variable(DOUBLE(start))

        def block(b: VectorBuilder, offset: Any) -> None:
            part = getattr(b, how)(body(b, offset))
            join = {"total": b.plus, "largest": b.most, "smallest": b.least}[how]
            self.builder.store(join(part, self.builder.load(kept)), kept)

        self.blocks(block, argument=argument)
        return self.builder.load(kept)


def vectorised(write: Callable[[Op], Any]) -> Callable[[Any], Any]:
    """Make an intrinsic whose last argument is n out of what it does in NumPy and the code that ``write`` writes."""

    def decorate(plain: Any) -> Any:
        is_void = plain.__annotations__["return"] == "None"

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = [
                context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, args, strict=True)
            ]
            if isinstance(signature.args[-1], types.BaseTuple) or any(_is_struct(value) for value in given):
                found = write(Op(context, builder, signature, given))
            else:
                found = builder.call(_function(plain.__name__, write, context, builder.module, signature, given), given)
            return context.get_dummy_value() if is_void else found

        def typed(_: Any, *arguments: Any) -> Any:
            return (types.void if is_void else types.float64)(*arguments), generate

        # Numba matches arguments by the signature of the function that types them.
        first, names = next(iter(inspect.signature(typed).parameters.values())), inspect.signature(plain).parameters
        typed.__signature__ = inspect.Signature([first, *names.values()])  # type: ignore[attr-defined]
        typed.__name__ = typed.__qualname__ = plain.__name__
        return intrinsic(plain)(typed)

    return decorate


def _is_struct(value: Any) -> bool:
    return isinstance(value.type, ir.LiteralStructType)


def _function(name: str, write: Any, context: Any, module: Any, signature: Any, given: list[Any]) -> Any:
    """The LLVM function of an intrinsic whose n is not known, which a module has once.

    Its loops over blocks of every width are most of the code to compile, so they are neither written out wherever it is
    called nor unrolled, which would not make vectors this short any faster.
    """
    digest = sha256(str(signature).encode()).hexdigest()[:16]
    returns = DOUBLE if signature.return_type == types.float64 else ir.VoidType()
    insert: Any = cgutils.get_or_insert_function
    function = insert(module, ir.FunctionType(returns, [value.type for value in given]), f"bactrian.{name}.{digest}")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        for attribute in ("noinline", "optsize"):
            function.attributes.add(attribute)
        builder = ir.IRBuilder(function.append_basic_block())
        found = write(Op(context, builder, signature, function.args))
        if found is None:
            builder.ret_void()
        else:
            builder.ret(found)
    return function
