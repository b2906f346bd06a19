"""Random programs over most ops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from superopt.ir.graph import Graph, Node, literal, make_input, mk

Rng = random.Random
UNARY = ("neg", "exp", "tanh", "abs", "square", "logistic", "sin", "floor")
BINARY = ("add", "sub", "mul", "max", "min", "atan2")
SCALARS = (0.0, 1.0, -1.0, 0.5, 2.0, float("-inf"))
FINITE = (0.0, 1.0, 0.5, 2.0)
RICH = ("algebra", "algebra", "dot", "dot", "reduce", "conv", "concatenate", "slice", "halves", "transpose", "reshape",
        "window", "unary", "pad")  # fmt: skip
"""Kinds of ops on which many rules apply."""
MAX_ELEMENTS = 4_000


class Builder:
    """Grows a random program in float32, with bounded values and sizes."""

    def __init__(self, seed: int, kinds: Sequence[str] = (), scalars: Sequence[float] = SCALARS) -> None:
        self.rng = Rng(seed)
        self.scalars = scalars
        self.kinds = list(kinds) or sorted(MAKERS)
        self.inputs: list[Node] = []
        self.pool: list[Node] = []
        self.made: list[str] = []

    def input(self, shape: tuple[int, ...]) -> Node:
        """A new input, frozen half of the time."""
        node = make_input(f"x{len(self.inputs)}", shape, frozen=self.rng.random() < 0.5)
        self.inputs.append(node)
        self.pool.append(node)
        return node

    def value(self, rank: tuple[int, int] = (0, 4)) -> Node:
        """A tensor of the program with a rank in the range, the newest ones more often; else a new input."""
        known = [n for n in self.pool if rank[0] <= len(n.shape) <= rank[1] and n.dtype == "float32"]
        if known and self.rng.random() < 0.9:
            return known[-1] if self.rng.random() < 0.5 else self.rng.choice(known)
        return self.input(self.shape(self.rng.randint(*rank)))

    def shape(self, rank: int) -> tuple[int, ...]:
        """A small shape; sizes recur so that operands meet."""
        return tuple(self.rng.choice((1, 2, 2, 3, 3, 4)) for _ in range(rank))

    def of_shape(self, shape: tuple[int, ...]) -> Node:
        """A tensor of this shape: known, broadcast, transposed or new."""
        known = [n for n in self.pool if n.shape == shape and n.dtype == "float32"]
        kind = self.rng.random()
        if known and kind < 0.4:
            return self.rng.choice(known)
        if kind < 0.55:
            value = literal(self.rng.choice(self.scalars))
            return mk("broadcast_in_dim", value, shape=shape, broadcast_dimensions=()) if shape else value
        if kind < 0.75 and shape:
            kept = sorted(self.rng.sample(range(len(shape)), self.rng.randint(0, len(shape) - 1)))
            source = self.input(tuple(shape[i] if self.rng.random() < 0.7 else 1 for i in kept))
            return mk("broadcast_in_dim", source, shape=shape, broadcast_dimensions=tuple(kept))
        for node in self.rng.sample(self.pool, len(self.pool)):
            if sorted(node.shape) == sorted(shape) and node.dtype == "float32":
                left = list(range(len(shape)))
                perm = []
                for size in shape:
                    axis = self.rng.choice([a for a in left if node.shape[a] == size])
                    left.remove(axis)
                    perm.append(axis)
                return mk("transpose", node, permutation=tuple(perm))
        return self.input(shape)

    def step(self) -> None:
        """Add one op to the program."""
        name = self.rng.choice(self.kinds)
        node = MAKERS[name](self)
        if node is not None and math.prod(node.shape) <= MAX_ELEMENTS:
            self.made.append(name)
            self.pool.append(node)

    def graph(self, steps: int) -> Graph:
        """A program of about this many ops; every sink and a few others are results."""
        for _ in range(steps):
            self.step()
        if not self.pool:
            self.input((2,))
        used = {id(x) for n in self.pool for x in n.inputs}
        outputs = [n for n in self.pool if id(n) not in used] or self.pool[-1:]
        return Graph(tuple(self.inputs), tuple(dict.fromkeys([*outputs, self.rng.choice(self.pool)])))


def arrays(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the inputs of a program."""
    rng = np.random.default_rng(seed)
    return {n["name"]: rng.uniform(-1.0, 1.0, n.shape).astype(np.float32) for n in graph.inputs}


# ---- one maker per kind of op


def _unary(b: Builder) -> Node | None:
    return mk(b.rng.choice(UNARY), b.value())


def _power(b: Builder) -> Node | None:
    return mk("integer_pow", b.value(), y=b.rng.choice((1, 2, 3)))


def _binary(b: Builder) -> Node | None:
    x = b.value()
    pair = [x, b.of_shape(x.shape)]
    b.rng.shuffle(pair)
    return mk(b.rng.choice(BINARY), *pair)


def _algebra(b: Builder) -> Node | None:
    """A step of the kind that rules move: a scale, a bias, a quotient."""
    x = b.value((1, 4))
    y = b.of_shape(x.shape)
    kind = b.rng.choice(("add", "sub", "mul", "mul", "div"))
    return mk("div", x, mk("exp", y)) if kind == "div" else mk(kind, x, y)


def _select(b: Builder) -> Node | None:
    x = b.value()
    which = mk(b.rng.choice(("lt", "eq", "ge")), x, b.of_shape(x.shape))
    return mk("select_n", which, b.of_shape(x.shape), b.of_shape(x.shape))


def _clamp(b: Builder) -> Node | None:
    return mk("clamp", literal(-0.5), b.value(), literal(0.5))


def _convert(b: Builder) -> Node | None:
    x = b.value()
    return mk("convert_element_type", mk("convert_element_type", x, new_dtype="int32"), new_dtype="float32")


def _transpose(b: Builder) -> Node | None:
    x = b.value((2, 4))
    return mk("transpose", x, permutation=tuple(b.rng.sample(range(len(x.shape)), len(x.shape))))


def _reshape(b: Builder) -> Node | None:
    x = b.value((1, 4))
    sizes = list(x.shape)
    for _ in range(b.rng.randint(1, 3)):
        kind = b.rng.random()
        if kind < 0.4 and len(sizes) > 1:
            i = b.rng.randrange(len(sizes) - 1)
            sizes[i : i + 2] = [sizes[i] * sizes[i + 1]]
        elif kind < 0.8 and sizes and len(sizes) < 5:
            i = b.rng.randrange(len(sizes))
            d = b.rng.choice([d for d in range(1, sizes[i] + 1) if sizes[i] % d == 0])
            sizes[i : i + 1] = [d, sizes[i] // d]
        elif 1 in sizes:
            sizes.remove(1)
    return mk("reshape", x, new_sizes=tuple(sizes))


def _broadcast(b: Builder) -> Node | None:
    x = b.value((0, 3))
    rank = len(x.shape) + b.rng.randint(0, 2)
    dims = sorted(b.rng.sample(range(rank), len(x.shape)))
    shape = [b.rng.choice((1, 2, 3)) for _ in range(rank)]
    for j, d in enumerate(dims):
        shape[d] = x.shape[j] if x.shape[j] != 1 or b.rng.random() < 0.5 else shape[d]
    return mk("broadcast_in_dim", x, shape=tuple(shape), broadcast_dimensions=tuple(dims))


def _rev(b: Builder) -> Node | None:
    x = b.value((1, 4))
    return mk("rev", x, dimensions=tuple(sorted(b.rng.sample(range(len(x.shape)), b.rng.randint(1, len(x.shape))))))


def _slice(b: Builder) -> Node | None:
    x = b.value((1, 4))
    starts, limits, strides = [], [], []
    for n in x.shape:
        lo, hi = (0, n) if b.rng.random() < 0.5 else (b.rng.randint(0, n - 1), n)
        hi = b.rng.randint(lo + 1, hi)
        starts.append(lo)
        limits.append(hi if b.rng.random() < 0.6 else n)
        strides.append(b.rng.choice((1, 1, 1, 2)))
    return mk("slice", x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides))


def _pad(b: Builder) -> Node | None:
    x = b.value((1, 4))
    config = []
    for n in x.shape:
        lo, hi, inner = b.rng.choice((0, 0, 1, -1)), b.rng.choice((0, 0, 2)), b.rng.choice((0, 0, 1))
        config.append((lo, hi, inner) if n + lo + hi > 0 else (0, 0, 0))
    return mk("pad", x, literal(b.rng.choice((0.0, 0.25))), padding_config=tuple(config))


def _concatenate(b: Builder) -> Node | None:
    x = b.value((1, 4))
    axis = b.rng.randrange(len(x.shape))
    parts = [x]
    for _ in range(b.rng.randint(1, 2)):
        shape = list(x.shape)
        shape[axis] = b.rng.choice((1, 2, shape[axis]))
        parts.append(b.of_shape(tuple(shape)))
    b.rng.shuffle(parts)
    return mk("concatenate", *parts, dimension=axis)


def _halves(b: Builder) -> Node | None:
    """Neighbouring slices joined again, in order or not."""
    x = b.value((1, 4))
    axis = b.rng.randrange(len(x.shape))
    if x.shape[axis] < 2:
        return None
    cut = b.rng.randint(1, x.shape[axis] - 1)
    parts = []
    for lo, hi in ((0, cut), (cut, x.shape[axis])):
        starts, limits = [0] * len(x.shape), list(x.shape)
        starts[axis], limits[axis] = lo, hi
        parts.append(mk("slice", x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=None))
    if b.rng.random() < 0.3:
        parts.reverse()
    return mk("concatenate", *parts, dimension=axis)


def _reduce(b: Builder) -> Node | None:
    x = b.value((1, 4))
    axes = tuple(sorted(b.rng.sample(range(len(x.shape)), b.rng.randint(0, len(x.shape)))))
    return mk(b.rng.choice(("reduce_sum", "reduce_max", "reduce_min")), x, axes=axes)


def _argmax(b: Builder) -> Node | None:
    x = b.value((1, 4))
    at = mk(b.rng.choice(("argmax", "argmin")), x, axes=(b.rng.randrange(len(x.shape)),), index_dtype="int32")
    return mk("convert_element_type", at, new_dtype="float32")


def _scan(b: Builder) -> Node | None:
    x = b.value((1, 4))
    kind = b.rng.choice(("cumsum", "cummax"))
    return mk(kind, x, axis=b.rng.randrange(len(x.shape)), reverse=b.rng.random() < 0.5)


def _window(b: Builder) -> Node | None:
    x = b.value((1, 4))
    sizes = tuple(b.rng.randint(1, min(2, n)) for n in x.shape)
    return mk(
        b.rng.choice(("reduce_window_sum", "reduce_window_max")), x, window_dimensions=sizes,
        window_strides=tuple(b.rng.choice((1, 1, 2)) for _ in x.shape),
        padding=tuple((b.rng.randint(0, k - 1), b.rng.randint(0, k - 1)) for k in sizes),
        base_dilation=(1,) * len(x.shape), window_dilation=(1,) * len(x.shape),
    )  # fmt: skip


def _dot(b: Builder) -> Node | None:
    x = b.value((1, 4))
    axes = b.rng.sample(range(len(x.shape)), b.rng.randint(0, len(x.shape)))
    contracted = axes[: b.rng.randint(0, min(2, len(axes)))]
    batch = axes[len(contracted) :][:1]
    free = list(b.shape(b.rng.randint(0, 2)))
    order = [("c", a) for a in contracted] + [("b", a) for a in batch] + [("f", k) for k in range(len(free))]
    b.rng.shuffle(order)
    y = b.of_shape(tuple(free[k] if kind == "f" else x.shape[k] for kind, k in order))
    numbers = (
        (tuple(contracted), tuple(order.index(("c", a)) for a in contracted)),
        (tuple(batch), tuple(order.index(("b", a)) for a in batch)),
    )
    if b.rng.random() < 0.5:
        x, y = y, x
        numbers = tuple((right, left) for left, right in numbers)  # type: ignore[assignment]
    return mk("dot_general", x, y, dimension_numbers=numbers)


def _conv(b: Builder) -> Node | None:
    spatial = b.rng.randint(1, 2)
    rank = spatial + 2
    groups, inner, outer = b.rng.choice((1, 1, 2)), b.rng.randint(1, 2), b.rng.randint(1, 2)
    image = [b.rng.randint(1, 2), groups * inner, *[b.rng.randint(2, 4) for _ in range(spatial)]]
    kernel = [groups * outer, inner, *[b.rng.randint(1, 2) for _ in range(spatial)]]
    specs = [tuple(b.rng.sample(range(rank), rank)) for _ in range(3)]  # role -> axis
    x = b.of_shape(tuple(image[specs[0].index(a)] for a in range(rank)))
    w = b.of_shape(tuple(kernel[specs[1].index(a)] for a in range(rank)))
    return mk(
        "conv_general_dilated", x, w, window_strides=tuple(b.rng.choice((1, 2)) for _ in range(spatial)),
        padding=tuple((b.rng.randint(0, 1), b.rng.randint(0, 1)) for _ in range(spatial)),
        lhs_dilation=tuple(b.rng.choice((1, 1, 2)) for _ in range(spatial)), rhs_dilation=(1,) * spatial,
        dimension_numbers=tuple(specs), feature_group_count=groups, batch_group_count=1,
    )  # fmt: skip


def _take(b: Builder) -> Node | None:
    x = b.value((1, 3))
    axis = b.rng.randrange(len(x.shape))
    count = b.shape(b.rng.randint(0, 2))
    indices = mk("iota", dtype="int32", shape=(*count, 1), dimension=b.rng.randrange(len(count) + 1))
    rank = len(count) + len(x.shape) - 1
    offsets = tuple(sorted(b.rng.sample(range(rank), len(x.shape) - 1)))
    sizes = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    return mk(
        "gather", x, indices, offset_dims=offsets, collapsed_slice_dims=(axis,), start_index_map=(axis,),
        operand_batching_dims=(), start_indices_batching_dims=(), slice_sizes=sizes, mode="clip",
    )  # fmt: skip


def _dynamic(b: Builder) -> Node | None:
    x = b.value((1, 3))
    starts = [literal(b.rng.randint(0, n), "int32") for n in x.shape]
    sizes = tuple(b.rng.randint(1, n) for n in x.shape)
    if b.rng.random() < 0.5:
        return mk("dynamic_slice", x, *starts, slice_sizes=sizes)
    return mk("dynamic_update_slice", x, b.of_shape(sizes), *starts)


def _iota(b: Builder) -> Node | None:
    shape = b.shape(b.rng.randint(1, 3))
    return mk("iota", dtype="float32", shape=shape, dimension=b.rng.randrange(len(shape)))


MAKERS: dict[str, Callable[[Builder], Node | None]] = {
    "algebra": _algebra,
    "unary": _unary,
    "power": _power,
    "binary": _binary,
    "binary again": _binary,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "transpose": _transpose,
    "transpose again": _transpose,
    "reshape": _reshape,
    "reshape again": _reshape,
    "broadcast": _broadcast,
    "rev": _rev,
    "slice": _slice,
    "slice again": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "halves": _halves,
    "reduce": _reduce,
    "argmax": _argmax,
    "scan": _scan,
    "window": _window,
    "dot": _dot,
    "conv": _conv,
    "take": _take,
    "dynamic": _dynamic,
    "iota": _iota,
}
