"""Loop programs to check: operators as they come from graphs, each with a few schedules, by name.

`examples()` are right and must be proved; `superopt.lab.corpora.schedules.planted` holds wrong ones that must be
refuted.  The processor is a fixed one, so that the schedules are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.ir.build import conv, dot
from superopt.ir.graph import Node, literal, make_input, mk
from superopt.kernels.choose.defaults import default
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.tensorizing import ContractionDecisions, tiled
from superopt.kernels.schedule.trace import apply

CPU = Cpu("cascadelake", (), 512, 32, vnni=True, bf16=False, l1=32 << 10, l2=1 << 20, l3=16 << 20)
"""A processor with AVX-512 and byte products."""


@dataclass(frozen=True, slots=True)
class Example:
    """A program before and after a schedule."""

    name: str
    before: LoopProgram
    after: LoopProgram


# ---- graphs


def spread(x: Node, shape: Sequence[int], axes: Sequence[int]) -> Node:
    """The tensor broadcast along more axes."""
    return mk("broadcast_in_dim", x, shape=tuple(shape), broadcast_dimensions=tuple(axes))


def constant(value: float, like: Node) -> Node:
    """A constant in every element."""
    return spread(literal(value, like.dtype), _sizes(like), ())


def _sizes(x: Node) -> tuple[int, ...]:
    return tuple([n for n in x.shape if isinstance(n, int)])


def product(a: Node, b: Node, left: int = -1, right: int = 0, batch: int = 0) -> Node:
    """Contraction of one axis of each; the first `batch` axes are common."""
    return dot(a, b, ((left % len(a.shape),), (right,)), tuple(range(batch)))


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return mk("max", x, constant(0.0, x))


def softmax(x: Node) -> Node:
    """Softmax along the last axis."""
    axes = tuple(range(len(x.shape) - 1))
    top = mk("reduce_max", x, axes=(len(axes),))
    e = mk("exp", mk("sub", x, spread(top, _sizes(x), axes)))
    return mk("div", e, spread(mk("reduce_sum", e, axes=(len(axes),)), _sizes(x), axes))


def dense(rows: int, depth: int, columns: int) -> LoopProgram:
    """relu(x w + b) with a frozen w."""
    x, w = make_input("x", (rows, depth)), make_input("w", (depth, columns), frozen=True)
    b = spread(make_input("b", (columns,)), (rows, columns), (1,))
    return from_graph([relu(mk("add", product(x, w), b))], name=f"dense {rows}x{depth}x{columns}")


def image(size: int, channels: int, filters: int, stride: int = 1) -> LoopProgram:
    """relu of a 3x3 convolution with a frozen window."""
    x = make_input("x", (1, size, size, channels))
    w = make_input("w", (3, 3, channels, filters), frozen=True)
    name = f"conv3x3/{stride} {size}x{size}x{channels}x{filters}"
    return from_graph([relu(conv(x, w, ("NHWC", "HWIO", "NHWC"), stride, 1))], name=name)


def bytes_(rows: int, depth: int, columns: int, a: str, b: str) -> LoopProgram:
    """A product of bytes in int32."""
    x, w = make_input("x", (rows, depth), a), make_input("w", (depth, columns), b, frozen=True)
    sides = [mk("convert_element_type", n, new_dtype="int32") for n in (x, w)]
    return from_graph([product(sides[0], sides[1])], name=f"{a} x {b} {rows}x{depth}x{columns}")


def rows(count: int, length: int) -> LoopProgram:
    """Softmax of rows."""
    return from_graph([softmax(make_input("x", (count, length)))], name=f"softmax {count}x{length}")


def scores(heads: int, length: int, width: int) -> LoopProgram:
    """q k^T of every head."""
    q, k = make_input("q", (heads, length, width)), make_input("k", (heads, length, width))
    return from_graph([product(q, k, 2, 2, 1)], name=f"scores {heads}x{length}x{length}x{width}")


def attention(heads: int, length: int, width: int, dtype: str) -> LoopProgram:
    """softmax(q k^T) v of every head."""
    q, k, v = (make_input(n, (heads, length, width), dtype) for n in "qkv")
    name = f"attention {dtype} {heads}x{length}x{width}"
    return from_graph([product(softmax(product(q, k, 2, 2, 1)), v, 2, 1, 1)], name=name)


def prefix(count: int, length: int) -> LoopProgram:
    """Running sums of rows."""
    return from_graph([mk("cumsum", make_input("x", (count, length)), axis=1)], name=f"prefix {count}x{length}")


def stencil(rows_: int, columns: int) -> LoopProgram:
    """The sum of two neighbours of exp(x), with exp(x) stored."""
    e = mk("exp", make_input("x", (rows_, columns)))
    parts = [
        mk("slice", e, start_indices=(0, j), limit_indices=(rows_, columns - 1 + j), strides=(1, 1)) for j in (0, 1)
    ]
    return from_graph([mk("add", *parts)], scratch=frozenset([e]), name=f"stencil {rows_}x{columns}")


# ---- schedules

PACKED: list[list[Any]] = [
    ["cache_read", "out0", "w", "packed"],
    ["transform_layout", "packed", [["split", 1, 16], ["permute", [1, 0, 2]]]],
]


def examples() -> Iterator[Example]:
    """Right schedules: the default ones, and traces that use most primitives."""
    for program in (
        dense(128, 768, 3072), dense(37, 50, 70), image(28, 128, 128), image(15, 7, 20, 2), rows(96, 128),
        bytes_(64, 96, 80, "uint8", "int8"), bytes_(33, 50, 40, "int8", "int8"), scores(4, 60, 32), stencil(9, 14),
        attention(3, 70, 16, "float32"), attention(2, 40, 24, "bfloat16"), prefix(2, 50_001),
    ):  # fmt: skip
        yield Example(f"{program.name}, default", program, default(program, CPU, 4))
    for name, program, steps in _traced():
        yield Example(f"{program.name}, {name}", program, apply(program, steps))
    for name, program, decisions in _tiled():
        yield Example(f"{program.name}, {name}", program, tiled(program, "out0", decisions, CPU))


def _traced() -> Iterator[tuple[str, LoopProgram, list[list[Any]]]]:
    d, c, r, s = dense(37, 50, 70), image(10, 4, 9), rows(20, 33), stencil(9, 14)
    yield "tiles with tails", d, [
        ["split", "out0", "o0", [8]], ["split", "out0", "o1", [16]], ["reorder", "out0", ["o1_0", "o0_1"]],
        ["parallel", "out0", "o0_0"], ["vectorize", "out0", "o1_1"],
    ]  # fmt: skip
    yield "fused axes", d, [["fuse", "out0", ["o0", "o1"]], ["split", "out0", "o0_o1", [64]]]
    yield "parts of the sum", d, [["split_reduction", "out0", 0, 0, [8]], ["rfactor", "out0", 0, [0], "part"]]
    yield "accumulation", d, [
        ["materialize", "out0", "reduce:0", "acc"], ["split_reduction", "acc", 0, 0, [16]],
        ["decompose_reduction", "acc", [0], 0],
    ]  # fmt: skip
    yield "packed operand", d, PACKED
    yield "padded image", c, [["cache_read", "out0", 2, "padded"], ["split", "out0", "o2", [4]]]
    yield "rows of the maximum", r, [["materialize", "out0", "reduce:0", "peak"], ["compute_at", "peak", "out0", 1]]
    yield "rows where they are needed", s, [["split", "out0", "o0", [4]], ["compute_at", "s0", "out0", 1]]


def _tiled() -> Iterator[tuple[str, LoopProgram, ContractionDecisions]]:
    d, c = dense(37, 50, 70), image(10, 4, 20)
    yield "tile 6x32", d, ContractionDecisions(rows=(("o0", 6),), vectors=2)
    yield "tile 4x48, packed rows", d, ContractionDecisions(rows=(("o0", 4),), vectors=3, pack_a="phase")
    yield (
        "tile 2x3x16, packed image",
        c,
        ContractionDecisions(rows=(("o1", 2), ("o2", 3)), vectors=1, pack_a="phase", depth=("r0_1", "r0_0", "r0_2")),
    )
