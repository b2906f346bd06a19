"""Loop programs with a contraction, by name, and random ones from a seed; running them against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from superopt.ir.graph import Node, literal, make_input, mk
from superopt.ir.scalar import DTYPE
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import checked, from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build

Arrays = dict[str, np.ndarray]
NHWC = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
NCHW = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))


def dot(a: Node, b: Node, contract: Any = ((1,), (0,)), batch: Any = ((), ()), wide: str | None = None) -> Node:
    """A product of arrays."""
    return mk("dot_general", a, b, dimension_numbers=(contract, batch), preferred_element_type=wide)


def matmul(m: int, n: int, k: int, dtype: str = "float32", wide: str | None = None, live: bool = False) -> Node:
    """[m, k] times [k, n], the second frozen."""
    return dot(make_input("x", (m, k), dtype), make_input("w", (k, n), dtype, frozen=not live), wide=wide)


def conv(
    size: tuple[int, int],
    channels: tuple[int, int],
    window: int = 3,
    stride: int = 1,
    pad: int = 1,
    dilation: int = 1,
    groups: int = 1,
    first: bool = False,
    dtype: str = "float32",
    batch: int = 1,
) -> Node:
    """A convolution of an image, channels last unless `first`, the window frozen."""
    (h, w), (c, f) = size, channels
    x = make_input("x", (batch, c, h, w) if first else (batch, h, w, c), dtype)
    shape = (f, c // groups, window, window) if first else (window, window, c // groups, f)
    return mk(
        "conv_general_dilated", x, make_input("w", shape, dtype, frozen=True), window_strides=(stride, stride),
        padding=((pad, pad), (pad, pad)), rhs_dilation=(dilation, dilation), feature_group_count=groups,
        dimension_numbers=NCHW if first else NHWC, preferred_element_type="int32" if dtype == "int8" else None,
    )  # fmt: skip


def over(x: Node, like: Node, axis: int) -> Node:
    """A vector along one axis of a shape."""
    return mk("broadcast_in_dim", x, shape=like.shape, broadcast_dimensions=(axis,))


def finished(total: Node, axis: int = -1) -> Node:
    """max(total + bias, 0) * 0.5 + residual."""
    at = axis % len(total.shape)
    bias = make_input("b", (total.shape[at],), total.dtype, frozen=True)
    zero, half = [
        mk("broadcast_in_dim", literal(v, total.dtype), shape=total.shape, broadcast_dimensions=()) for v in (0.0, 0.5)
    ]
    active = mk("mul", mk("max", mk("add", total, over(bias, total, at)), zero), half)
    return mk("add", active, make_input("r", total.shape, total.dtype))


def program(node: Node) -> LoopProgram:
    """One stage."""
    return from_graph([node])


def arrays(p: LoopProgram, seed: int = 0) -> Arrays:
    """Values of the inputs: standard normal floats, integers over their whole range."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for b in p.buffers:
        if b.scope in ("input", "frozen"):
            kind = DTYPE[b.dtype]
            if kind.kind in "iu":
                info = np.iinfo(kind)
                found[b.name] = rng.integers(info.min, info.max + 1, b.shape, dtype=kind)
            else:
                found[b.name] = rng.standard_normal(b.shape).astype(kind)
    return found


def close(found: np.ndarray, want: np.ndarray, steps: int) -> None:
    """Raise unless sums of so many products agree: exactly for integers, to their rounding for floats."""
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, want)
        return
    unit = 2.0**-8 if found.dtype.name == "bfloat16" else float(np.finfo(found.dtype).eps)
    bound = 8 * unit * max(steps, 4) ** 0.5
    np.testing.assert_allclose(found.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound * 4)


def check(p: LoopProgram, q: LoopProgram, steps: int, cpu: Cpu | None = None, threads: int = 1) -> None:
    """Raise unless a scheduled program means what the original does, and its code computes that within its buffers."""
    given = arrays(p)
    want = evaluate(p, given, wide=True)
    q = checked(q)
    meant = evaluate(q, given)
    made = build(generate(q, cpu), pipeline="none").run(given, threads=threads, guard=True)
    for name, value in want.items():
        close(meant[name], value, steps)
        close(made[name], value, steps)
