"""Evaluation of a loop program in the field: its stages one after the other, each over all of its axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from superopt.ir import index as indices
from superopt.ir.expr import subexpressions
from superopt.ir.fold import fold
from superopt.ir.index import Guard
from superopt.ir.interp import Numbers, grid, reader
from superopt.ir.matmul import Product
from superopt.ir.scalar import Array
from superopt.ir.types import FLOATS, ITEMSIZE_BYTES, Size
from superopt.kernels.loops.stage import LoopProgram, Stage
from verifier.kernels.engine import matmul
from verifier.kernels.field import ORDERED, Field, P, Unread

_U = np.uint64
_WORD = np.dtype(np.uint64)
_MOST_FACTORS = 1 << 13  # factors of a product; each is a Python step
_MOST_POINTS = 1 << 19  # points of a stage at once: intermediate arrays take a hundred bytes for each


def divisors(program: LoopProgram) -> set[float]:
    """The constants by which a program divides."""
    numbers: set[float] = set()
    for stage in program.stages:
        for e in subexpressions(stage.value):
            if e.kind == "op" and e.args[0] == "div" and e.args[3].kind == "const":
                numbers.add(float(e.args[3].args[0]))
    return numbers


def evaluate(program: LoopProgram, held: Mapping[str, Array], field: Field) -> dict[str, Array]:
    """The outputs of a loop program whose stages are not scheduled, as elements of the field.

    Args:
        program: each stage over all of its axes; none is placed in another.
        held: inputs and frozen buffers by name, flat.
        field: the field.

    Raises:
        Unread: a dtype, a function or a form of stage has no meaning in the field.
    """
    values = {b.name: held[b.name].reshape(b.shape) for b in program.buffers if b.name in held}
    for stage in program.stages:
        for e in subexpressions(stage.value):
            if e.dtype not in (*FLOATS, "bool", "int32"):
                raise Unread(f"values of {e.dtype}")
        values[stage.buffer] = _filled(program, stage, values, field)
    return {b.name: values[b.name].ravel() for b in program.buffers if b.scope == "output"}


class OpaqueWords(np.ndarray[Any, Any]):
    """Words for integers that come from memory, and sums of multiples of them: random words modulo 2^64."""

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **_: Any) -> Any:
        most = {np.add: 2, np.multiply: 1}.get(ufunc, 0) if method == "__call__" else 0
        if sum([isinstance(x, OpaqueWords) for x in xs]) > most:
            raise Unread(f"{ufunc.__name__} of integers in memory")
        with np.errstate(over="ignore"):
            return opaque(ufunc(*[np.asarray(x).astype(_U) for x in xs]))

    def __array_function__(self, func: Any, *_: Any, **__: Any) -> Any:
        raise Unread(f"{func.__name__} of integers in memory")  # a select by position, which would return plain numbers


def opaque(x: Any) -> Array:
    """View words as `OpaqueWords`."""
    return np.asarray(x).astype(_U).view(OpaqueWords)


def _token(field: Field, name: str, *xs: Array) -> Array:
    with np.errstate(over="ignore"):
        return opaque(field.token(name, *[np.asarray(x).astype(_U) for x in xs]))


def _read(program: LoopProgram, values: Mapping[str, Array], field: Field) -> Callable[..., Array]:
    """A function that reads buffers.

    At an index that comes from integers in memory the result is a random function of array and index.
    """
    readers = {name: reader(array) for name, array in values.items()}

    def read(name: str, at: tuple[Any, ...]) -> Array:
        b = program.buffer(name)
        if not any(isinstance(k, OpaqueWords) for k in at):
            return opaque(readers[name](*at)) if b.dtype == "int32" else readers[name](*at)
        if b.scope not in ("input", "frozen") or b.dtype == "int32":
            raise Unread(f"a place in {name} that is made of integers in memory")
        place = opaque(0)
        for k, n in zip(at, b.shape, strict=True):
            place = place * n + k
        token = np.asarray(_token(field, "", field.key("table", name) >> 1, place * ITEMSIZE_BYTES[b.dtype]))
        return (token >> _U(33)) % _U(P)

    return read


def _filled(program: LoopProgram, stage: Stage, values: Mapping[str, Array], field: Field) -> Array:
    """Return the elements of a stage as numbers of the field."""
    shape = program.buffer(stage.buffer).shape
    extents = [a.extent for a in stage.axes]
    plain = all(
        k == indices.of_atom(a.symbol) or (a.extent == 1 and k == 0)
        for k, a in zip(stage.index, stage.axes, strict=True)
    )
    if stage.at is not None or stage.combine is not None or isinstance(stage.guard, Guard) or not stage.guard:
        raise Unread(f"a schedule in the program before, at {stage.buffer}")
    if not plain or shape != tuple(extents):
        raise Unread(f"a layout in the program before, at {stage.buffer}")
    if 0 in extents:
        return np.zeros(shape, _U)
    read = _read(program, values, field)
    made, longest = np.empty(shape, _U), max(extents, default=1)
    axis = extents.index(longest) if extents else 0  # the axis along which the grid is split into parts
    step = max(1, _MOST_POINTS * longest // prod(extents))
    for start in range(0, longest, step):
        at = (*[slice(None)] * axis, slice(start, start + step)) if extents else ...
        part = made[at]
        algebra = FieldAlgebra(field, part.ndim, part.size)
        env = {
            a.symbol: k[at] if d == axis else k for d, (a, k) in enumerate(zip(stage.axes, grid(extents), strict=True))
        }
        filled = algebra.array(fold(stage.value, algebra, read, env))
        part[...] = filled.reshape(filled.shape[max(0, filled.ndim - part.ndim) :])
    return made


_PLAIN: dict[str, Callable[[Field, list[Array]], Array]] = {
    "add": lambda f, x: (x[0] + x[1]) % _U(P),
    "sub": lambda f, x: (x[0] + _U(P) - x[1]) % _U(P),
    "div": lambda f, x: x[0] * f.inverse(x[1]) % _U(P),
    "rsqrt": lambda f, x: f.inverse(f.call("hash", f.key("sqrt"), *x)),
    "or": lambda f, x: f.no(f.no(x[0]) * f.no(x[1]) % _U(P)), "neg": lambda f, x: (_U(P) - x[0]) % _U(P),
    "mul": lambda f, x: x[0] * x[1] % _U(P), "and": lambda f, x: x[0] * x[1] % _U(P), "not": lambda f, x: f.no(*x),
    "max": lambda f, x: f.call("maximum", *x), "min": lambda f, x: f.call("minimum", *x),
}  # fmt: skip


class FieldAlgebra(Numbers):
    """The algebra of the field over a grid; values are arrays below `P`."""

    def __init__(self, field: Field, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.field = field

    def array(self, value: Any) -> Array:
        """The value as an array of elements."""
        if isinstance(value, OpaqueWords):
            raise Unread("a number made of integers in memory")
        return np.asarray(self._arrays((value,))[0])

    def const(self, value: bool | int | float, dtype: str) -> Array:
        exact = super().const(value, dtype)
        return exact if dtype == "int32" else _U(self.field.constant(float(exact)))

    def op(self, fn: str, dtype: str, *args: Array) -> Array:
        if dtype == "int32":
            known = all(np.asarray(x).dtype != _U for x in args)  # constants and positions
            return super().op(fn, dtype, *args) if known else _token(self.field, fn, *args)
        if any(isinstance(x, OpaqueWords) for x in args):
            raise Unread(f"{fn} by integers in memory")
        if fn == "mul" and self.depth and Product.worth(*args):
            return FieldProduct(*args)
        return self._checked(self._applied(fn, [np.asarray(x, _U) for x in self._arrays(args)]))

    def _applied(self, fn: str, xs: list[Array]) -> Array:
        f = self.field
        if fn in _PLAIN:
            return _PLAIN[fn](f, xs)
        if fn in ORDERED:
            name, swapped, denied = ORDERED[fn]
            told = f.call(name, *(reversed(xs) if swapped else xs))
            return f.no(told) if denied else told
        if fn == "sign":
            one, zero = _U(1), _U(0)
            least = f.call("choose", f.call("equal", xs[0], zero), zero, xs[0])
            below = f.call("choose", f.call("less", xs[0], zero), _U(P - 1), least)
            return f.call("choose", f.call("less", zero, xs[0]), one, below)
        if fn == "select_n" and len(xs) == 3:
            return f.call("choose", xs[0], xs[2], xs[1])
        if len(xs) > 2:
            raise Unread(f"{fn} of {len(xs)} operands")
        return f.call("hash" if len(xs) == 1 else "pair", f.key(fn), *xs)

    def convert(self, value: Array, source: str, target: str) -> Array:
        if not {source, target} <= {*FLOATS, "bool"} or isinstance(value, OpaqueWords):
            raise Unread(f"conversion from {source} to {target}")
        if target == "bool" and source != "bool":
            return self.field.no(self.field.call("equal", self.array(value), _U(0)))
        return value

    def to_index(self, value: Array) -> Array:
        return opaque(value) if np.asarray(value).dtype == _U else super().to_index(value)

    def clip(self, index: Array, low: Size, high: Size) -> Array:
        if isinstance(index, OpaqueWords):
            return _token(self.field, "min", _token(self.field, "max", index, low), high)
        return super().clip(index, low, high)

    def from_index(self, index: Array, dtype: str) -> Array:
        if isinstance(index, OpaqueWords):
            raise Unread("a number that is an index in memory")
        return super().from_index(index, dtype) if dtype == "int32" else (np.asarray(index) % P).astype(_U)

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Array], dtype: str) -> Array:
        f, sizes = self.field, [int(str(n)) for n in extents]
        some = monoid == "or"
        if (monoid in ("or", "and") and dtype == "bool") or (monoid == "prod" and dtype in FLOATS):
            if prod(sizes) > _MOST_FACTORS:
                raise Unread(f"a product of {prod(sizes)} factors")
            total: Array = _U(1)
            for at in np.ndindex(*sizes):
                x = self.array(body(*at))
                total = total * (f.no(x) if some else x) % _U(P)
            return f.no(total) if some else total
        if monoid not in ("sum", "max", "min") or dtype in ("bool", "int32"):
            raise Unread(f"a reduction by {monoid} of {dtype}")

        def scrambled(*at: Array) -> Array:
            x = self.array(body(*at))
            return f.scrambled((_U(P) - x) % _U(P) if monoid == "min" else x)

        total = self._fold("sum", (), sizes, body if monoid == "sum" else scrambled, _WORD)
        if monoid == "sum":
            return total % _U(P)
        value = f.unscrambled(total & _U(P)) % _U(P)
        return (_U(P) - value) % _U(P) if monoid == "min" else value


class FieldProduct(Product):
    """The product `a * b` of elements of the field, kept unevaluated so that a sum of it may become a `matmul`."""

    __slots__ = ()

    def array(self) -> Array:
        return self.a * self.b % _U(P)

    def guarded(self, guard: Array) -> Product | None:
        part = super().guarded(guard)
        return None if part is None else FieldProduct(part.a, part.b)

    def summed(self, sizes: list[int], rank: int, kind: Any) -> Array:
        return super().summed(sizes, rank, kind) % _U(P)

    def times(self, left: Array, right: Array) -> Array:
        return matmul(left % _U(P), right % _U(P))
