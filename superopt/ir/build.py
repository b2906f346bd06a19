"""One-line constructors of nodes and graphs, for benchmarks, corpora and tests."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.types import Shape, Size


def kernel(*outputs: Node) -> Graph:
    """The graph of these outputs over the inputs that they reach."""
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), outputs)


def tensor(name: str, *shape: Size, dtype: str = "float32", frozen: bool = False) -> Node:
    """An input."""
    return make_input(name, shape, dtype, frozen=frozen)


def fill(value: float, shape: Shape, dtype: str = "float32") -> Node:
    """A tensor of one value."""
    return mk("broadcast_in_dim", literal(value, dtype), shape=shape, broadcast_dimensions=())


def spread(x: Node, shape: Shape, *dims: int) -> Node:
    """A tensor broadcast into `shape`, its axes becoming `dims`."""
    return mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=dims)


def dot(a: Node, b: Node, contract: tuple[Sequence[int], Sequence[int]], batch: Sequence[int] = ()) -> Node:
    """A product contracting the given axes; batch axes have equal numbers in both operands."""
    return mk("dot_general", a, b, dimension_numbers=(contract, (batch, batch)))


def conv(x: Node, w: Node, layouts: tuple[str, str, str], stride: int = 1, pad: int = 0, groups: int = 1) -> Node:
    """A two-dimensional convolution; layouts of the data, the kernel and the result."""
    lhs, rhs, out = layouts
    numbers = (
        tuple(lhs.index(a) for a in "NCHW"),
        tuple(rhs.index(a) for a in "OIHW"),
        tuple(out.index(a) for a in "NCHW"),
    )
    return mk(
        "conv_general_dilated", x, w, window_strides=(stride, stride), padding=((pad, pad), (pad, pad)),
        dimension_numbers=numbers, feature_group_count=groups,
    )  # fmt: skip
