"""Small programs in which many rules of the library apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from superopt.ir.graph import Graph, Node, make_input, mk

LAYER = ((((1,), (0,))), ((), ()))


def dense(x: Node, name: str, size: int) -> Node:
    return mk("dot_general", x, make_input(name, (x.shape[1], size), frozen=True), dimension_numbers=LAYER)


def _programs() -> Iterable[tuple[str, Callable[[], Graph]]]:
    def normalised_convolution(groups: int) -> Graph:
        x = make_input("x", (1, 4, 6, 6))
        w = make_input("w", (4, 4 // groups, 3, 3), frozen=True)
        y = mk(
            "conv_general_dilated", x, w, window_strides=(1, 1), padding=((1, 1), (1, 1)),
            dimension_numbers=((0, 1, 2, 3),) * 3, feature_group_count=groups,
        )  # fmt: skip
        for op, name in (("sub", "mean"), ("mul", "scale"), ("add", "bias")):
            vector = make_input(name, (4,), frozen=True)
            y = mk(op, y, mk("broadcast_in_dim", vector, shape=y.shape, broadcast_dimensions=(1,)))
        v = make_input("v", (5, 4, 1, 1), frozen=True)
        z = mk(
            "conv_general_dilated", y, v, window_strides=(2, 2), padding=((0, 0), (0, 0)),
            dimension_numbers=((0, 1, 2, 3),) * 3,
        )  # fmt: skip
        return Graph((x, w, *inputs_of(z)), (z,))

    def attention() -> Graph:
        x = make_input("x", (6, 4))
        q, k, v = (dense(x, name, 4) for name in ("wq", "wk", "wv"))
        scores = mk("dot_general", q, k, dimension_numbers=(((1,), (1,)), ((), ())))
        top = mk("reduce_max", scores, axes=(1,))
        e = mk("exp", mk("sub", scores, mk("broadcast_in_dim", top, shape=(6, 6), broadcast_dimensions=(0,))))
        total = mk("reduce_sum", e, axes=(1,))
        p = mk("div", e, mk("broadcast_in_dim", total, shape=(6, 6), broadcast_dimensions=(0,)))
        return Graph(inputs_of(mk("tanh", x), p, v), (product(p, v),))

    def gates() -> Graph:
        x, h = make_input("x", (2, 3)), make_input("h", (2, 4))
        parts = [mk("add", dense(x, f"w{i}", 5), dense(h, f"u{i}", 5)) for i in range(3)]
        return Graph(inputs_of(*parts), tuple(mk("tanh", part) for part in parts))

    def chain() -> Graph:
        x, a, b = make_input("x", (5, 2)), make_input("a", (5, 4)), make_input("b", (4, 5))
        y = product(product(a, b), x)
        total = mk("reduce_sum", y, axes=(0,))
        return Graph((x, a, b), (y, total))

    def pooling() -> Graph:
        x = make_input("x", (1, 6, 6, 2))
        sizes = {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1)}
        pads = {"padding": ((0, 0), (1, 1), (1, 1), (0, 0))}
        y = mk("reduce_window_max", x, **sizes, **pads)
        z = mk("reduce_window_sum", x, **sizes, **pads)
        return Graph((x,), (y, z))

    yield "convolution", lambda: normalised_convolution(1)
    yield "depthwise", lambda: normalised_convolution(4)
    yield "attention", attention
    yield "gates", gates
    yield "chain", chain
    yield "pooling", pooling


def inputs_of(*roots: Node) -> tuple[Node, ...]:
    return tuple(node for node in Graph((), roots).nodes() if node.op == "input")


def product(x: Node, y: Node) -> Node:
    return mk("dot_general", x, y, dimension_numbers=LAYER)


PROGRAMS = dict(_programs())


def program(name: str) -> Graph:
    """One of the programs, with all its inputs."""
    outputs = PROGRAMS[name]().outputs
    return Graph(inputs_of(*outputs), outputs)
