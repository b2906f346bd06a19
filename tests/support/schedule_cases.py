"""Loop programs to schedule, by name, and random ones from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from superopt.ir.graph import Node, literal, make_input, mk
from superopt.ir.scalar import DTYPE
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram


def arrays(program: LoopProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the inputs of a program: small integers, standard normal floats."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for b in program.buffers:
        if b.scope in ("input", "frozen"):
            kind = DTYPE[b.dtype]
            high = 2 if b.dtype == "bool" else 9
            x = rng.integers(0, high, b.shape) if kind.kind in "iub" else rng.standard_normal(b.shape)
            found[b.name] = np.asarray(x).astype(kind)
    return found


def same(found: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], exact: bool = True) -> None:
    """Raise unless the outputs are equal, bit for bit or to 1e-12 of their size."""
    assert found.keys() == want.keys()
    for name, w in want.items():
        f = found[name]
        assert f.dtype == w.dtype
        assert f.shape == w.shape
        if exact:
            np.testing.assert_array_equal(np.asarray(f), np.asarray(w))
        else:
            np.testing.assert_allclose(np.asarray(f, np.float64), np.asarray(w, np.float64), rtol=1e-12, atol=1e-12)


def pointwise(*shape: int, dtype: str = "float32") -> LoopProgram:
    """exp of an array."""
    return from_graph([mk("exp", make_input("x", shape, dtype))])


def total(x: Node, *axes: int) -> Node:
    """The sum over axes."""
    return mk("reduce_sum", x, axes=axes)


def rows(x: Node, like: Node) -> Node:
    """A vector of row values over the rows of a matrix."""
    return mk("broadcast_in_dim", x, shape=like.shape, broadcast_dimensions=(0,))


def product(m: int, k: int, n: int, dtype: str = "float32") -> LoopProgram:
    """A product of matrices and nothing else."""
    x, w = make_input("x", (m, k), dtype), make_input("w", (k, n), dtype, frozen=True)
    return from_graph([mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))])


def matmul(m: int, k: int, n: int, dtype: str = "float32", **options: Any) -> LoopProgram:
    """A product of matrices, the right one frozen, with bias and max(., 0)."""
    x, w = make_input("x", (m, k), dtype), make_input("w", (k, n), dtype, frozen=True)
    b = make_input("b", (n,), dtype, frozen=True)
    dot = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    biased = mk("add", dot, mk("broadcast_in_dim", b, shape=(m, n), broadcast_dimensions=(1,)))
    zero = mk("broadcast_in_dim", literal(0, dtype), shape=(m, n), broadcast_dimensions=())
    keep = {dot} if options.pop("keep", False) else set()
    return from_graph([mk("max", biased, zero)], scratch=keep, **options)


def softmax(m: int, n: int, dtype: str = "float32") -> LoopProgram:
    """Softmax of rows, as one expression."""
    x = make_input("x", (m, n), dtype)
    e = mk("exp", mk("sub", x, rows(mk("reduce_max", x, axes=(1,)), x)))
    return from_graph([mk("div", e, rows(total(e, 1), e))])


def convolution(size: int, depth: int, features: int, stride: int = 1, dtype: str = "float32") -> LoopProgram:
    """A 3x3 convolution with padding, channels last, weights frozen."""
    x = make_input("x", (1, size, size, depth), dtype)
    w = make_input("w", (3, 3, depth, features), dtype, frozen=True)
    dims = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    strides, padding = (stride, stride), ((1, 1), (1, 1))
    return from_graph(
        [mk("conv_general_dilated", x, w, window_strides=strides, padding=padding, dimension_numbers=dims)]
    )


def two_stages(m: int, n: int, shift: int = 0, dtype: str = "float32") -> LoopProgram:
    """exp kept in memory, then a sum of it and of itself shifted along rows."""
    x = make_input("x", (m, n), dtype)
    e = mk("exp", x) if dtype.startswith("float") else mk("add", x, x)
    out = n - shift
    a = mk("slice", e, start_indices=(0, 0), limit_indices=(m, out))
    b = mk("slice", e, start_indices=(0, shift), limit_indices=(m, n))
    return from_graph([mk("add", a, b)], scratch={e})
