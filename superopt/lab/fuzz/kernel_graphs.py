"""Random fused graphs at awkward sizes, and arrays for their inputs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from superopt.errors import ShapeError
from superopt.ir.build import dot
from superopt.ir.graph import Node, literal, make_input, mk, topological
from superopt.ir.scalar import DTYPE
from superopt.ir.types import FLOATS, SIGNED
from superopt.kernels.loops.stage import Buffer

Rng = np.random.Generator
SIZES = [1, 2, 3, 5, 7, 8, 16, 17, 24, 33, 40]
MOST_ELEMENTS = 20_000
MOST_WORK = 3_000_000
_DTYPES = ["float32"] * 8 + ["float64", "bfloat16", "float16", "int32", "int32", "int8", "uint8", "int64", "bool"]


class _Graph:
    """A graph that grows at its root."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.inputs, self.work = rng, 0, 1

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def new(self, shape: tuple[int, ...], dtype: str) -> Node:
        self.inputs += 1
        return make_input(f"a{self.inputs}", shape, dtype)


def graph(rng: Rng) -> Node:
    """A random graph of two to seven steps."""
    g = _Graph(rng)
    shape = tuple(int(g.pick(SIZES)) for _ in range(g.pick([0, 1, 2, 2, 2, 3, 3])))
    x = g.new(shape, g.pick(_DTYPES))
    for _ in range(int(rng.integers(2, 8))):
        if not 0 < _size(x) <= MOST_ELEMENTS:
            break
        step = g.pick(_STEPS)
        try:
            y = step(g, x)
        except ShapeError:  # the step does not accept this dtype, or yields a negative size
            continue
        if y is None or _size(y) > 4 * MOST_ELEMENTS or g.work * max(_size(y), 1) > MOST_WORK:
            continue
        x = y
    return x


def kept(root: Node, rng: Rng) -> frozenset[Node]:
    """Nodes in the middle that are to be kept in memory, now and then."""
    inner = [n for n in topological([root]) if n.op not in ("input", "literal") and n is not root and 0 not in n.shape]
    if not inner or rng.random() < 0.6:
        return frozenset()
    return frozenset([inner[int(rng.integers(len(inner)))]])


def array(buffer: Buffer, rng: Rng) -> np.ndarray[Any, Any]:
    """Values for an input."""
    kind = DTYPE[buffer.dtype]
    if buffer.dtype == "bool":
        return rng.random(buffer.shape) < 0.5
    if buffer.dtype in FLOATS:
        return rng.standard_normal(buffer.shape).astype(kind)
    low = -4 if buffer.dtype in SIGNED else 0
    made = rng.integers(low, 6, buffer.shape).astype(kind)
    if rng.random() < 0.3:  # values that wrap, and values that no shift or quotient allows
        ends = np.iinfo(kind)
        special = np.array([ends.min, ends.min + 1, ends.max, ends.max - 1, ends.max // 2 + 1, 0, 1], kind)
        made = np.where(rng.random(buffer.shape) < 0.5, rng.choice(special, buffer.shape), made)
    return made


def _size(x: Node) -> int:
    return prod(int(n) for n in x.shape)  # pyright: ignore[reportArgumentType] (sizes are concrete)


def _shape(x: Node) -> tuple[int, ...]:
    return tuple([int(n) for n in x.shape])  # pyright: ignore[reportArgumentType]


def _bc(x: Node, shape: tuple[int, ...], dims: tuple[int, ...]) -> Node:
    return mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=dims)


def _axis(g: _Graph, x: Node) -> int:
    if not x.shape:
        raise ShapeError("no axis")
    return int(g.rng.integers(len(x.shape)))


def _unary(g: _Graph, x: Node) -> Node:
    return mk(g.pick(["neg", "tanh", "abs", "erf", "exp", "logistic", "square", "sqrt", "not", "sign"]), x)


def _bias(g: _Graph, x: Node) -> Node:
    d = _axis(g, x)
    s = _shape(x)
    return mk(g.pick(["add", "mul", "max", "and", "div"]), x, _bc(g.new((s[d],), x.dtype), s, (d,)))


def _same(g: _Graph, x: Node) -> Node:
    return mk(g.pick(["add", "sub", "min", "mul", "or"]), x, g.new(_shape(x), x.dtype))


def _transpose(g: _Graph, x: Node) -> Node:
    return mk("transpose", x, permutation=g.rng.permutation(len(x.shape)))


def _reshape(g: _Graph, x: Node) -> Node:
    left, sizes = _size(x), list[int]()
    while left > 1 and len(sizes) < 3:
        sizes.append(int(g.pick([d for d in range(1, left + 1) if left % d == 0])))
        left //= sizes[-1]
    return mk("reshape", x, new_sizes=tuple(sizes) if left == 1 and sizes else (*sizes, left))


def _slice(g: _Graph, x: Node) -> Node:
    start = [int(g.rng.integers(0, max(1, n // 3))) for n in _shape(x)]
    limit = [int(g.rng.integers(a + 1, n + 1)) for a, n in zip(start, _shape(x), strict=True)]
    strides = [int(g.pick([1, 1, 2, 3])) for _ in start]
    return mk("slice", x, start_indices=start, limit_indices=limit, strides=strides)


def _pad(g: _Graph, x: Node) -> Node:
    config = [(g.pick([0, 1, 2, -1]), g.pick([0, 0, 3, -1]), g.pick([0, 0, 0, 1, 2])) for _ in x.shape]
    return mk("pad", x, literal(DTYPE[x.dtype].type(1).item(), x.dtype), padding_config=config)


def _rev(g: _Graph, x: Node) -> Node:
    return mk("rev", x, dimensions=[_axis(g, x)])


def _concatenate(g: _Graph, x: Node) -> Node:
    d = _axis(g, x)
    s = list(_shape(x))
    s[d] = int(g.pick([0, 1, 4, 16]))
    y = g.new(tuple(s), x.dtype)
    return mk("concatenate", *((x, y) if g.rng.random() < 0.5 else (y, x)), dimension=d)


def _part(x: Node, d: int, start: int, limit: int, step: int = 1) -> Node:
    """A slice along one axis."""
    s = _shape(x)
    return mk(
        "slice", x, start_indices=[start if k == d else 0 for k in range(len(s))],
        limit_indices=[limit if k == d else n for k, n in enumerate(s)],
        strides=[step if k == d else 1 for k in range(len(s))],
    )  # fmt: skip


def _turned(x: Node, d: int) -> Node:
    return mk("rev", x, dimensions=[d])


def _mirror(g: _Graph, x: Node) -> Node:
    """An array padded with its own elements: reflected, symmetric, edge or wrapped; along one axis or all."""
    mode = g.pick(["reflect", "symmetric", "edge", "wrap"])
    for d in range(len(x.shape)) if g.rng.random() < 0.4 else [_axis(g, x)]:
        n = _shape(x)[d]
        k, skip = int(g.pick([1, 1, 2, 3])), int(mode == "reflect")
        if mode == "edge":
            before, after = [[_part(x, d, j, j + 1)] * k for j in (0, n - 1)]
        elif k + skip > n:
            raise ShapeError("too short to be mirrored")
        elif mode == "wrap":
            before, after = [_part(x, d, n - k, n)], [_part(x, d, 0, k)]
        else:
            before, after = [_turned(_part(x, d, a, a + k), d) for a in (skip, n - k - skip)], []
            before, after = before[:1], before[1:]
        x = mk("concatenate", *before, x, *after, dimension=d)
    return x


def _view(g: _Graph, x: Node, d: int, size: int) -> Node:
    """So many elements along an axis, one or several apart, from a random start, forward or backward."""
    n = _shape(x)[d]
    step = int(g.pick([k for k in (1, 1, 1, 2, 3) if (size - 1) * k < n]))
    start = int(g.rng.integers(0, n - (size - 1) * step))
    if g.rng.random() < 0.3:
        start = int(g.pick([0, n - (size - 1) * step - 1]))
    found = _part(x, d, start, start + (size - 1) * step + 1, step)
    return _turned(found, d) if g.rng.random() < 0.5 else found


def _views(g: _Graph, x: Node) -> Node:
    """Two views of one array, beside each other or combined."""
    d = _axis(g, x)
    size = int(g.rng.integers(1, _shape(x)[d] + 1))
    a, b = [_view(g, x, d, size) for _ in range(2)]
    if g.rng.random() < 0.3:
        return mk("concatenate", a, b, dimension=d)
    return mk(g.pick(["add", "sub", "min", "xor"]), a, b)


def _roll(g: _Graph, x: Node) -> Node:
    d = _axis(g, x)
    n = _shape(x)[d]
    k = int(g.rng.integers(0, n))
    return mk("concatenate", _part(x, d, k, n), _part(x, d, 0, k), dimension=d) if 0 < k < n else x


def _many(g: _Graph, x: Node) -> Node:
    """Many parts beside each other, of other arrays and of this one."""
    d, s = _axis(g, x), _shape(x)
    parts = [x]
    for _ in range(int(g.pick([2, 5, 12]))):
        size = int(g.pick([1, 2, 8, 16]))
        own = size <= s[d] and g.rng.random() < 0.3
        parts.append(
            _view(g, x, d, size) if own else g.new(tuple(size if k == d else n for k, n in enumerate(s)), x.dtype)
        )
    return mk("concatenate", *[parts[int(j)] for j in g.rng.permutation(len(parts))], dimension=d)


def _bits(g: _Graph, x: Node) -> Node:
    """Functions of integers that are special at the ends of their range."""
    if x.dtype in FLOATS or x.dtype == "bool":
        raise ShapeError("integers only")
    name = g.pick(["rem", "div", "shift_left", "shift_right_logical", "shift_right_arithmetic", "abs", "clz", "neg"])
    return mk(name, x) if name in ("abs", "clz", "neg") else mk(name, x, g.new(_shape(x), x.dtype))


def _reduce(g: _Graph, x: Node) -> Node:
    over = sorted({_axis(g, x) for _ in range(g.pick([1, 1, 2]))})
    made = mk(f"reduce_{g.pick(['sum', 'sum', 'max', 'min', 'and', 'or', 'xor'])}", x, axes=over)
    g.work *= prod(_shape(x)[d] for d in over)
    return made


def _normalized(g: _Graph, x: Node) -> Node:
    """Row statistics used at every element: the phases of softmax and of layer norm."""
    if x.dtype not in FLOATS:
        raise ShapeError("floats only")
    d, s = _axis(g, x), _shape(x)
    rest = tuple(k for k in range(len(s)) if k != d)
    top = _bc(mk("reduce_max", x, axes=(d,)), s, rest)
    e = mk(g.pick(["exp", "tanh"]), mk("sub", x, top))
    total = mk("add", mk("reduce_sum", mk("abs", e), axes=(d,)), mk("reduce_sum", mk("abs", e), axes=(d,)))
    g.work *= s[d]
    return mk("div", e, mk("add", _bc(total, s, rest), _one(s, x.dtype)))


def _one(s: tuple[int, ...], dtype: str) -> Node:
    return _bc(literal(1, dtype), s, ())


def _window(g: _Graph, x: Node) -> Node:
    if not x.shape:
        raise ShapeError("no axis")
    size = [int(g.pick([1, 2, 3])) for _ in x.shape]
    made = mk(
        f"reduce_window_{g.pick(['max', 'sum', 'min'])}", x, window_dimensions=size,
        window_strides=[g.pick([1, 2]) for _ in size], padding=[(n - 1, g.pick([0, 1])) for n in size],
        base_dilation=[g.pick([1, 1, 1, 2]) for _ in size], window_dilation=[g.pick([1, 1, 1, 2]) for _ in size],
    )  # fmt: skip
    g.work *= prod(size)
    return made


def _dot(g: _Graph, x: Node) -> Node:
    d, s = _axis(g, x), _shape(x)
    y = g.new((s[d], int(g.pick([3, 16, 20]))), x.dtype)
    made = dot(x, y, ((d,), (0,)))
    g.work *= s[d]
    return made


def _conv(g: _Graph, x: Node) -> Node:
    s = _shape(x)
    if len(s) != 3 or x.dtype not in FLOATS:
        raise ShapeError("an image is needed")
    w = g.new((int(g.pick([2, 16])), s[0], 3), x.dtype)
    image = mk("transpose", x, permutation=(1, 0, 2))
    made = mk(
        "conv_general_dilated", image, w, window_strides=[g.pick([1, 2])], padding=[(1, 1)],
        lhs_dilation=[g.pick([1, 1, 2])], dimension_numbers=((0, 1, 2),) * 3,
    )  # fmt: skip
    g.work *= 3 * s[0]
    return made


def _stack(g: _Graph, x: Node) -> Node:
    return _bc(x, (int(g.pick([2, 9, 16])), *_shape(x)), tuple(range(1, len(x.shape) + 1)))


def _choice(g: _Graph, x: Node) -> Node:
    y = g.new(_shape(x), x.dtype)
    return mk("select_n", mk("lt", x, y), y, x)


def _iota(g: _Graph, x: Node) -> Node:
    i = mk("iota", shape=_shape(x), dimension=_axis(g, x), dtype=x.dtype)
    return mk("add", x, i)


def _causal(g: _Graph, x: Node) -> Node:
    if len(x.shape) < 2:
        raise ShapeError("two axes are needed")
    i, j = [mk("iota", shape=_shape(x), dimension=d, dtype="int32") for d in (0, 1)]
    low = _bc(literal(DTYPE[x.dtype].type(0).item(), x.dtype), _shape(x), ())
    return mk("select_n", mk("ge", i, j), low, x)


def _prefix(g: _Graph, x: Node) -> Node:
    name = g.pick(["cumsum", "cumsum", "cummax", "cummin"])
    d = _axis(g, x)
    g.work *= _shape(x)[d]
    return mk(name, x, axis=d, reverse=bool(g.rng.random() < 0.4))


def _gather(g: _Graph, x: Node) -> Node:
    """Rows, or elements, at random places."""
    d, s = _axis(g, x), _shape(x)
    count = int(g.pick([1, 5, 17]))
    rows = g.new((count, 1), "int32")
    others = [k for k in range(len(s)) if k != d]
    return mk(
        "gather", x, rows, offset_dims=others, collapsed_slice_dims=[d], start_index_map=[d],
        slice_sizes=[1 if k == d else s[k] for k in range(len(s))], mode=g.pick(["clip", "fill"]),
    )  # fmt: skip


def _update(g: _Graph, x: Node) -> Node:
    s = _shape(x)
    part = g.new(tuple(max(1, n // 2) for n in s), x.dtype)
    starts = [g.new((), "int32") for _ in s]
    return mk("dynamic_update_slice", x, part, *starts)


def _convert(g: _Graph, x: Node) -> Node:
    if x.dtype in FLOATS:
        return mk("convert_element_type", x, new_dtype=g.pick(["float32", "float64", "bfloat16", "float16"]))
    return mk("convert_element_type", x, new_dtype=g.pick(["float32", "int32", "int8", "uint8", "bool", "int64"]))


def _arg(g: _Graph, x: Node) -> Node:
    d = _axis(g, x)
    g.work *= 2 * _shape(x)[d]
    return mk(g.pick(["argmax", "argmin"]), x, axes=[d])


_STEPS: list[Callable[[_Graph, Node], Node]] = [
    _unary, _unary, _bias, _same, _transpose, _reshape, _slice, _pad, _rev, _concatenate, _reduce, _reduce,
    _normalized, _window, _dot, _conv, _stack, _choice, _iota, _causal, _prefix, _gather, _update, _convert, _arg,
    _mirror, _mirror, _views, _views, _roll, _many, _bits,
]  # fmt: skip
