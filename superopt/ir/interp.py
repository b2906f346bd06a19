"""The reference interpreter: the denotations in the algebra of NumPy.

Indices are integers, or sparse integer arrays that together span the whole grid of a result; one class serves both.
`evaluate` goes node by node, each over its grid.  `evaluate_at` composes a graph at a single index without intermediate
arrays.  `wide` computes every float in float64 and is the oracle of tests and comparisons.

Nothing here knows an op, except control flow, whose bodies are run.  Two things make it fast enough for an oracle, and
both hold for any denotation.  A read whose indices vary along different axes is a sequence of slices and takes.  A
product under a sum stays a pair of factors until the sum turns it into a matrix product.
"""

from __future__ import annotations

import operator
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from superopt.errors import ArgumentError, InputError
from superopt.ir import denote, scalar
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.index import Size
from superopt.ir.matmul import Product, of_rank
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.ops.table import lookup
from superopt.ir.scalar import Array
from superopt.ir.types import FLOATS, Shape

LIMIT = 1 << 22  # elements of grid times reduction that are held at once
_FOLD: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


class _TooLarge(Exception):
    """A value inside a reduction would pass the limit: the reduction must go step by step."""


class Numbers:
    """The algebra of NumPy over a grid of `size` points in `rank` axes.

    Reduction axes stand before the grid's axes, innermost first, so that broadcasting aligns them.
    """

    def __init__(self, rank: int = 0, size: int = 1, wide: bool = False, limit: int = LIMIT) -> None:
        self.rank, self.wide, self.limit = rank, wide, max(limit, size)
        self.depth = 0  # reduction axes around the current point

    def const(self, value: bool | int | float, dtype: str) -> Array:
        return scalar.numpy_dtype(dtype, self.wide).type(value)

    def op(self, fn: str, dtype: str, *args: Array) -> Array:
        if fn == "mul" and self.depth and (self.wide or dtype not in scalar.HALVES) and Product.worth(*args):
            return Product(*args)
        return self._checked(scalar.apply(fn, dtype, self._arrays(args), self.wide))

    def convert(self, value: Array, source: str, target: str) -> Array:
        (value,) = self._arrays((value,))
        return scalar.convert(value, source, target, self.wide)

    def where(self, guard: Array, then: Callable[[], Array], orelse: Callable[[], Array]) -> Array:
        if np.all(guard):
            return then()
        if not np.any(guard):
            return orelse()
        a, b = then(), orelse()  # reads clip their indices, so the branch that is not chosen does no harm
        if isinstance(a, Product) and np.ndim(b) == 0 and b == 0:
            guarded = a.guarded(guard)
            if guarded is not None:
                return guarded
        a, b = self._arrays((a, b))
        return self._checked(np.where(guard, a, b))

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Array], dtype: str) -> Array:
        sizes = list(_concrete(tuple(extents)))
        kind = scalar.numpy_dtype(dtype, self.wide)
        if 0 in sizes:
            return kind.type(identity(monoid, dtype))
        total = self._fold(monoid, (), sizes, body, scalar.numpy_dtype(accumulator(dtype), self.wide))
        return total.astype(kind, copy=False)

    def _fold(
        self, monoid: str, fixed: tuple[int, ...], sizes: list[int], body: Callable[..., Array], kind: Any
    ) -> Array:
        """Fold over the extents, all at once if that fits, else step by step along the first."""
        outer = self.depth
        self.depth += len(sizes)
        rank = self.rank + self.depth
        steps = [_along(np.arange(n), j, rank) for j, n in enumerate(sizes)]
        try:
            value = body(*fixed, *steps)
            if isinstance(value, Product):
                if monoid == "sum":
                    return value.summed(sizes, rank, kind)
                (value,) = self._arrays((value,))
        except _TooLarge:
            if not sizes:
                raise
        else:
            return _collapse(monoid, np.asarray(value), sizes, rank, kind)
        finally:
            self.depth = outer
        total = None
        for step in range(sizes[0]):
            part = self._fold(monoid, (*fixed, step), sizes[1:], body, kind)
            total = part if total is None else _FOLD[monoid](total, part, dtype=kind)
        return total

    def inverse(
        self, rows: Shape, columns: Shape, entry: Callable[..., Array], at: Sequence[Array], dtype: str
    ) -> Array:
        sizes = [_concrete(rows), _concrete(columns)]
        ends = (*sizes[0], *sizes[1])
        self.depth += len(ends)  # rows and columns stand before the grid
        try:
            rank = self.rank + self.depth
            (value,) = self._arrays((entry(*[_along(np.arange(n), d, rank) for d, n in enumerate(ends)]),))
        finally:
            self.depth -= len(ends)
        value = of_rank(np.asarray(value), rank)
        grid = value.shape[len(ends) :]
        matrices = np.broadcast_to(value, (*ends, *grid)).reshape([*map(prod, sizes), *grid])
        inverses: Array = _inverses(np.moveaxis(matrices, (0, 1), (-2, -1)).astype(np.float64))
        inverses = inverses.reshape((*grid, *sizes[1], *sizes[0])).astype(scalar.numpy_dtype(dtype, self.wide))
        where = [0 if m == 1 else _along(np.arange(m), d, len(grid)) for d, m in enumerate(grid)]
        return reader(inverses)(*where, *at)

    def to_index(self, value: Array) -> Array:
        (value,) = self._arrays((value,))
        return int(value) if np.ndim(value) == 0 else value.astype(np.int64)

    def from_index(self, index: Array, dtype: str) -> Array:
        return np.asarray(index).astype(scalar.numpy_dtype(dtype, self.wide))[()]

    def clip(self, index: Array, low: Size, high: Size) -> Array:
        lowest, highest = _concrete((low, high))
        return min(max(index, lowest), highest) if isinstance(index, int) else index.clip(lowest, highest)

    def all(self, *guards: Array) -> Array:
        result: Array = True
        for guard in guards:
            if guard is not True:
                result = guard if result is True else np.logical_and(result, guard)
        return result

    def eq(self, a: Array, b: Array) -> Array:
        return a == b

    def regroup(self, index: Sequence[Array], outer: Shape, inner: Shape) -> Sequence[Array]:
        return denote.regroup(index, outer, inner)

    def _arrays(self, args: Iterable[Array]) -> tuple[Array, ...]:
        arrays = tuple(args)
        for x in arrays:
            if isinstance(x, Product) and self.depth and x.size > self.limit:
                raise _TooLarge
        return tuple([x.array() if isinstance(x, Product) else x for x in arrays])

    def _checked(self, value: Array) -> Array:
        if self.depth and np.size(value) > self.limit:
            raise _TooLarge
        return value


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))


def _inverses(matrices: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the inverses of matrices along the last two axes; NaN where there is none, as far as float64 can tell.

    A matrix with an entry that is no number has none: elimination leaves numbers in some entries of the result.
    """
    try:
        inverses = np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        return np.full_like(matrices, np.nan) if matrices.ndim == 2 else np.stack([_inverses(x) for x in matrices])
    with np.errstate(all="ignore"):
        conditions = np.abs(matrices).sum(-2).max(-1, initial=0) * np.abs(inverses).sum(-2).max(-1, initial=0)
        singular = ~(conditions * np.finfo(np.float64).eps < 1)
    return np.where(singular[..., None, None], np.nan, inverses)


def _collapse(monoid: str, value: Array, sizes: list[int], rank: int, kind: Any) -> Array:
    """Fold the leading axes away; those along which the value does not vary are repeated first."""
    if not sizes:
        return value.astype(kind, copy=False)[()]
    value = of_rank(value, rank)
    value = np.broadcast_to(value, (*sizes, *value.shape[len(sizes) :]))
    return _FOLD[monoid].reduce(value, axis=tuple(range(len(sizes))), dtype=kind)


# ---- reading arrays


def reader(array: Array, whole: tuple[Array, ...] = ()) -> Callable[..., Array]:
    """Return the array as a function of an index; indices outside it are clipped into it.

    `whole` is the grid that its shape spans, where there is one: read at that grid, the array is returned itself.
    """
    if array.size == 0:  # read only where a guard does not hold: any value will do
        array = np.zeros((1,) * array.ndim, array.dtype)

    def read(*index: Array) -> Array:
        if whole and len(index) == len(whole) and all(map(operator.is_, index, whole)):
            return array
        if all(type(k) is int for k in index):
            return array[tuple([min(max(k, 0), n - 1) for k, n in zip(index, array.shape, strict=True)])]
        return _read(array, [np.asarray(k) for k in index])

    return read


def _read(array: Array, index: list[Array]) -> Array:
    rank = max(k.ndim for k in index)
    varies = [[rank - k.ndim + d for d, n in enumerate(k.shape) if n > 1] for k in index]
    used = [d for axes in varies for d in axes]
    if len(set(used)) != len(used):
        full = [np.minimum(np.maximum(k, 0), n - 1) for k, n in zip(index, array.shape, strict=True)]
        return array[tuple(full)]
    order: list[int] = []
    sizes: list[int] = []
    for axis, (k, axes) in enumerate(zip(index, varies, strict=True)):
        array = _take(array, k.ravel(), axis)
        order += axes
        sizes += [k.shape[d - rank + k.ndim] for d in axes]
    read = array.reshape(sizes).transpose(sorted(range(len(order)), key=order.__getitem__))
    shape = [1] * rank
    for d, n in zip(order, sizes, strict=True):
        shape[d] = n
    return read.reshape(shape)


def _take(array: Array, k: Array, axis: int) -> Array:
    """Take entries of one axis: a slice where the indices step evenly."""
    n, first, last = array.shape[axis], int(k[0]), int(k[-1])
    step = int(k[1]) - first if k.size > 1 else 1
    if step > 0 and first >= 0 and last < n and last - first == step * (k.size - 1) and (k[1:] - k[:-1] == step).all():
        if k.size == n:
            return array
        return array[(slice(None),) * axis + (slice(first, last + 1, step),)]
    return array.take(np.minimum(np.maximum(k, 0), n - 1), axis)


def grid(shape: Sequence[int]) -> tuple[Array, ...]:
    """Return sparse index arrays that span a shape."""
    return tuple([_along(np.arange(n), d, len(shape)) for d, n in enumerate(shape)])


# ---- graphs


def evaluate(
    graph: Graph | Sequence[Node],
    env: Mapping[str, Array] | None = None,
    wide: bool = False,
    instead: Callable[[Node, tuple[Array, ...], tuple[Array, ...]], tuple[Array, ...]] | None = None,
) -> tuple[Array, ...]:
    """Compute the values of the outputs node by node.

    Args:
        graph: a graph, or the nodes whose values are asked for.
        env: input name -> array; constants of the graph need no entry.
        wide: hold every float in float64.
        instead: given a node, its operands and its values, the values that its users read.

    Raises:
        ArgumentError: an input has no value, or one of another shape or dtype.
        InputError: the graph holds an opaque node.
    """
    roots = graph.outputs if isinstance(graph, Graph) else tuple(graph)
    given: Mapping[str, Any] = env if env is not None else {}
    constants: Mapping[str, Any] = graph.constants if isinstance(graph, Graph) else {}
    known = ChainMap[str, Any](given, constants)  # pyright: ignore[reportArgumentType] -- only read
    order = topological(roots)
    uses = Counter(x for node in order for x in node.inputs)
    uses.update(roots)
    values: dict[Node, tuple[Array, ...]] = {}
    with np.errstate(all="ignore"):
        for node in order:
            operands = [values[x] for x in node.inputs]
            values[node] = _results(node, operands, known, wide)
            if instead is not None:
                values[node] = instead(node, tuple([x[0] for x in operands]), values[node])
            for x in node.inputs:
                uses[x] -= 1
                if not uses[x]:
                    del values[x]
    return tuple([np.array(values[root][0], order="C") for root in roots])  # not views of operands


def _results(node: Node, operands: list[tuple[Array, ...]], env: Mapping[str, Array], wide: bool) -> tuple[Array, ...]:
    if node.op == "input":
        return (_argument(node, env, wide),)
    if node.op == "literal":
        return (np.asarray(node["value"], scalar.numpy_dtype(node.dtype, wide)),)
    if node.op == "result":
        return (operands[0][node["index"]],)
    arrays = [x[0] for x in operands]
    if node.op in _CONTROL:
        return _CONTROL[node.op](node, arrays, wide)
    return (apply_op(node, arrays, wide),)


def _argument(node: Node, env: Mapping[str, Array], wide: bool) -> Array:
    name = node["name"]
    if name not in env:
        raise ArgumentError(f"no value for the input {name!r} ({node.type})")
    array = np.asarray(env[name])
    if array.shape != node.shape:
        raise ArgumentError(f"the input {name!r} is {node.type}, got shape {array.shape}")
    if node.dtype not in scalar.DTYPE:
        raise InputError(f"the input {name!r} is {node.type}, which the interpreter has no numbers for")
    kind = scalar.numpy_dtype(node.dtype)
    if array.dtype != kind and not (node.dtype in FLOATS and array.dtype == np.float64 and wide):
        raise ArgumentError(f"the input {name!r} is {node.type}, got {array.dtype}")
    return array.astype(scalar.numpy_dtype(node.dtype, wide), copy=False)


def apply_op(node: Node, arrays: Sequence[Array], wide: bool = False) -> Array:
    """Return the value of a node over its whole grid, from the values of its operands.

    Raises:
        InputError: the node has no value at one index (opaque, control flow).
    """
    at = lookup(node.op).at
    if at is None:
        raise InputError(
            f"the interpreter cannot evaluate {node.op} ({dict(node.attrs).get('primitive', '')})",
            hint="opaque operations belong to the library that the program came from; run the program with a backend",
        )
    shape = _concrete(node.shape)
    kind = scalar.numpy_dtype(node.dtype, wide)
    size = int(np.prod(shape))
    if size == 0:
        return np.zeros(shape, kind)
    algebra = Numbers(len(shape), size, wide)
    whole = grid(shape)
    readers = [reader(x, whole if x.shape == shape else ()) for x in map(np.asarray, arrays)]
    value = at(algebra, whole, readers, denote.site_of(node))
    return np.broadcast_to(np.asarray(value, kind), shape)


def _concrete(shape: Shape) -> tuple[int, ...]:
    return tuple([int(n) for n in shape])  # pyright: ignore[reportArgumentType] (symbolic sizes have no grid)


# ---- control flow


def _call(body: Graph, arguments: Sequence[Array], wide: bool) -> tuple[Array, ...]:
    return evaluate(body, {n["name"]: x for n, x in zip(body.inputs, arguments, strict=True)}, wide)


def _scan(node: Node, xs: Sequence[Array], wide: bool) -> tuple[Array, ...]:
    consts, carries, length = node["num_consts"], node["num_carry"], node["length"]
    fixed, carry, rows = xs[:consts], list(xs[consts : consts + carries]), xs[consts + carries :]
    stacked: list[Array] = [
        np.zeros(_concrete(t.shape), scalar.numpy_dtype(t.dtype, wide)) for t in node.types[carries:]
    ]
    for t in reversed(range(length)) if node["reverse"] else range(length):
        results = _call(node["body"], [*fixed, *carry, *[x[t] for x in rows]], wide)
        carry = list(results[:carries])
        for whole, part in zip(stacked, results[carries:], strict=True):
            whole[t] = part
    return (*carry, *stacked)


def _while(node: Node, xs: Sequence[Array], wide: bool) -> tuple[Array, ...]:
    of_cond, of_body = node["cond_nconsts"], node["body_nconsts"]
    state = tuple(xs[of_cond + of_body :])
    while _call(node["cond"], [*xs[:of_cond], *state], wide)[0]:
        state = _call(node["body"], [*xs[of_cond : of_cond + of_body], *state], wide)
    return state


def _cond(node: Node, xs: Sequence[Array], wide: bool) -> tuple[Array, ...]:
    branches = node["branches"]
    chosen = min(max(int(xs[0]), 0), len(branches) - 1)
    return _call(branches[chosen], xs[1:], wide)


_CONTROL: dict[str, Callable[[Node, Sequence[Array], bool], tuple[Array, ...]]] = {
    "scan": _scan, "while": _while, "cond": _cond,
}  # fmt: skip
