"""A program in two parts: one computed once from frozen inputs, one computed on every call.

`prepare` maps the frozen inputs (weights declared frozen by the user, ONNX initializers, arrays closed over by a
function) to prepared tensors; it is run once.  `hot` maps the live arguments, followed by inputs named `prepared0`,
`prepared1` ..., to the results of the program; a call runs it, and it alone is timed.  Prepared inputs keep the frozen
flag, so that a kernel of the hot part still shows which operands never change.

Only tensors cross from one part to the other; nothing here runs either part (the backends do).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, make_input, topological, with_inputs
from superopt.ir.ops.table import lookup
from superopt.ir.scalar import SCALARS
from superopt.ir.types import STORED_BYTES, TensorType

PREPARED = "prepared"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program as a prepare part that is run once and a hot part that is run on each call.

    Attributes:
        prepare: frozen inputs (constants last, with their values) to prepared tensors; None when there are none.
        hot: live inputs in call order, then `prepared0` ...; its outputs are those of the program.
    """

    prepare: Graph | None
    hot: Graph

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The parts of the program."""
        return (self.hot,) if self.prepare is None else (self.hot, self.prepare)

    @property
    def live_inputs(self) -> tuple[Node, ...]:
        """The inputs of the hot part that a caller passes."""
        count = 0 if self.prepare is None else len(self.prepare.outputs)
        return self.hot.inputs[: len(self.hot.inputs) - count]

    @property
    def prepared_inputs(self) -> tuple[Node, ...]:
        """The inputs of the hot part that hold prepared tensors."""
        return self.hot.inputs[len(self.live_inputs) :]

    @property
    def computes_ahead(self) -> bool:
        """Whether anything is computed of the frozen inputs once; otherwise they are passed on unchanged."""
        return self.prepare is not None and any(node.op != "input" for node in self.prepare.outputs)

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the frozen inputs."""
        return 0 if self.prepare is None else sum(type_bytes(node.type) for node in self.prepare.inputs)

    @property
    def prepared_bytes(self) -> int:
        """Bytes of the prepared tensors, each counted once."""
        return 0 if self.prepare is None else sum(type_bytes(node.type) for node in set(self.prepare.outputs))


def type_bytes(kind: TensorType) -> int:
    """Return the bytes of a tensor of this type; an unknown dtype counts as eight bytes an element."""
    return STORED_BYTES.get(kind.dtype, 8) * math.prod(int(n) for n in kind.shape)  # pyright: ignore[reportArgumentType] (sizes are concrete here)


def frozen_bytes(graph: Graph) -> int:
    """Return the bytes of the frozen inputs of a graph."""
    return sum(type_bytes(node.type) for node in graph.inputs if node["frozen"])


def original_program(graph: Graph) -> Program:
    """Return the program that computes `graph` unchanged: every frozen input is passed through, nothing is prepared."""
    frozen = tuple(node for node in graph.inputs if node["frozen"])
    return split(graph, frozen)


def split(graph: Graph, cut: Iterable[Node]) -> Program:
    """Compute the nodes of `cut` ahead of time and the rest of `graph` on each call.

    Args:
        graph: the whole program.
        cut: nodes that depend on frozen inputs alone, in the order of the prepared inputs; together with the live
            inputs they must feed every output.

    Raises:
        SuperoptError: a node of the cut depends on a live input, or an output needs a frozen input beside the cut.
    """
    prepared = tuple(dict.fromkeys(cut))
    live = tuple(node for node in graph.inputs if not node["frozen"])
    frozen = tuple(node for node in graph.inputs if node["frozen"])
    for node in topological(prepared):
        if node.op == "input" and not node["frozen"]:
            raise SuperoptError(f"a prepared tensor depends on the live input {node['name']!r}")
    if not frozen and not prepared:
        return Program(None, graph)
    taken = {node["name"] for node in live}
    stem = PREPARED
    while any(name.startswith(stem) for name in taken):
        stem += "_"
    standin = {node: make_input(f"{stem}{i}", node.shape, node.dtype, frozen=True) for i, node in enumerate(prepared)}
    outputs = replace(graph.outputs, standin)
    inputs = (*live, *standin.values())
    known = set(inputs)
    for node in topological(outputs):
        if node.op == "input" and node not in known:
            raise SuperoptError(f"the hot part needs the input {node['name']!r}, which is neither live nor prepared")
    return Program(Graph(frozen, prepared, graph.constants), Graph(inputs, outputs))


def frozen_cut(graph: Graph) -> tuple[Node, ...]:
    """Return the last nodes that depend on frozen inputs alone: the best cut for `split`.

    A tensor that depends on no input is part of it where it is costlier to compute than to read.
    """
    nodes = graph.nodes()
    frozen: dict[Node, bool] = {}  # whether a node's inputs are all frozen; absent where it has none and costs little
    for node in nodes:
        if node.op == "input":
            frozen[node] = bool(node["frozen"])
        else:
            below = [frozen[x] for x in node.inputs if x in frozen]
            if below or (node.inputs and _is_costly(node)):
                frozen[node] = all(below) and len(node.types) == 1
    cut: dict[Node, None] = {}
    for node in nodes:
        if not frozen.get(node, True):
            cut.update(dict.fromkeys(_source(x) for x in node.inputs if frozen.get(x, False)))
    cut.update(dict.fromkeys(_source(x) for x in graph.outputs if frozen.get(x, False)))
    return tuple(cut)


def _is_costly(node: Node) -> bool:
    """Whether an op on positions and constants is more than the selections, sums and products that kernels repeat."""
    entry, scalar = lookup(node.op), SCALARS.get(node.op)
    if entry.at is None or all(n == 1 for n in node.shape):
        return False
    return entry.family not in ("leaf", "elementwise", "movement") or (scalar is not None and scalar.transcendental)


def _source(node: Node) -> Node:
    """Return the tensor to store for a frozen value, before its last broadcasts and reshapes.

    These are cheaper recomputed than read from memory.
    """
    while node.op in ("broadcast_in_dim", "reshape"):
        node = node.inputs[0]
    return node


def hot_part(graph: Graph) -> Graph:
    """Return the graph with everything that depends on frozen inputs alone computed ahead of time."""
    return split(graph, frozen_cut(graph)).hot


def replace(roots: Iterable[Node], mapping: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Return the roots with every node of `mapping` replaced by its image (images are not searched again)."""
    roots = tuple(roots)
    done = map_nodes(roots, given=mapping)
    return tuple(done[root] for root in roots)


def map_nodes(
    roots: Iterable[Node],
    change: Callable[[Node, Node], Node] = lambda node, fresh: fresh,
    given: Mapping[Node, Node] | None = None,
) -> dict[Node, Node]:
    """Return the image of every node that the roots need, operands first.

    Args:
        roots: the nodes whose images are wanted.
        change: maps a node, and the same op on the images of its operands, to its image.
        given: images that are known; nodes below them are not visited.
    """
    done = dict(given or {})
    stack = list(roots)
    while stack:
        node = stack[-1]
        waiting = [] if node in done else [x for x in node.inputs if x not in done]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        if node not in done:
            done[node] = change(node, with_inputs(node, (done[x] for x in node.inputs)))
    return done
