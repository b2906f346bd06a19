"""The graph: immutable, hash-consed, typed nodes.

A `Node` is an op applied to nodes, with attributes (a sorted tuple of name and hashable value).  Two nodes with
equal op, inputs and attributes are the same object, so equality is identity and common subexpressions are shared
by construction.  The type of a node is computed by the op table when the node is made; an ill-typed node cannot exist.

Nodes without inputs: `input` (name, shape, dtype, frozen) and `literal` (a scalar).  An op with several results
(control flow, opaque) has a tuple of types and is read through `result{index}` nodes.  A `Graph` names the inputs and
outputs of a program; `constants` holds the values of frozen inputs that came with the program (weights of a model,
arrays closed over by a function).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superopt.ir.types import Shape, TensorType

if TYPE_CHECKING:
    import numpy as np

Attrs = tuple[tuple[str, Any], ...]


class Node:
    """One op applied to its inputs; made only through `mk`."""

    __slots__ = ("__weakref__", "attrs", "inputs", "op", "types")

    op: str
    inputs: tuple[Node, ...]
    attrs: Attrs
    types: tuple[TensorType, ...]

    def __getitem__(self, name: str) -> Any:
        """Value of an attribute."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}; it has {[k for k, _ in self.attrs]}")

    @property
    def type(self) -> TensorType:
        """Type of the single result."""
        if len(self.types) != 1:
            raise ValueError(f"{self.op} has {len(self.types)} results; read them through `result` nodes")
        return self.types[0]

    @property
    def shape(self) -> Shape:
        """Shape of the single result."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Dtype of the single result."""
        return self.type.dtype

    def __repr__(self) -> str:
        attrs = ", ".join(f"{k}={v}" for k, v in self.attrs)
        return f"<{self.op}{{{attrs}}} : {', '.join(map(str, self.types))}>"


_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def mk(op: str, /, *inputs: Node, **attrs: Any) -> Node:
    """Make the node `op{attrs}(inputs)`, typed by the op table and hash-consed.

    Attribute values must be hashable (tuples, not lists).

    Raises:
        ShapeError: the op does not accept these operand types or attributes.
        KeyError: unknown op.
    """
    from superopt.ir.ops.table import canonical  # late: the op families import this module

    return _intern(op, inputs, canonical(op, attrs))


def _intern(op: str, inputs: tuple[Node, ...], attrs: Attrs) -> Node:
    # 1 == 1.0 == True and 0.0 == -0.0 in Python: literals are keyed by their printed value
    key = (op, tuple(map(id, inputs)), attrs if op != "literal" else repr(attrs))
    known = _TABLE.get(key)
    if known is not None:
        return known
    node = Node()
    node.op, node.inputs, node.attrs = op, inputs, attrs
    from superopt.ir.ops.table import result_types  # late: the op families import this module

    node.types = result_types(op, inputs, attrs)
    with _LOCK:  # held for two look-ups: threads that wait for it wait for the interpreter as well
        known = _TABLE.get(key)
        if known is None:
            known = _TABLE[key] = node
    return known


def with_inputs(node: Node, inputs: Iterable[Node]) -> Node:
    """Return the same op and attributes applied to other inputs."""
    new = tuple(inputs)
    return node if all(a is b for a, b in zip(new, node.inputs, strict=True)) else _intern(node.op, new, node.attrs)


def make_input(name: str, shape: Shape, dtype: str = "float32", *, frozen: bool = False) -> Node:
    """An input of a program."""
    return mk("input", name=name, shape=tuple(shape), dtype=dtype, frozen=frozen)


def literal(value: bool | int | float, dtype: str = "float32") -> Node:
    """A scalar constant."""
    return mk("literal", value=value, dtype=dtype)


def topological(roots: Iterable[Node]) -> list[Node]:
    """Return every node reachable from the roots, inputs before users, each once (no recursion)."""
    order: list[Node] = []
    done: set[int] = set()
    for root in roots:
        stack: list[tuple[Node, int]] = [(root, 0)]
        while stack:
            node, i = stack.pop()
            if i == 0 and id(node) in done:
                continue
            if i < len(node.inputs):
                stack.append((node, i + 1))
                if id(node.inputs[i]) not in done:
                    stack.append((node.inputs[i], 0))
            elif id(node) not in done:
                done.add(id(node))
                order.append(node)
    return order


def every_node(graphs: Iterable[Graph]) -> Iterator[Node]:
    """Yield the nodes of graphs and of bodies in them, those of a body once."""
    todo = list(graphs)
    seen = set[Graph]()
    while todo:
        for node in todo.pop().nodes():
            yield node
            bodies = bodies_of(node)
            todo.extend(g for g in bodies if g not in seen)
            seen.update(bodies)


def bodies_of(node: Node) -> list[Graph]:
    """Return the graphs among the attributes of a node: bodies of control flow."""
    return [
        g
        for _, value in node.attrs
        for g in (value if isinstance(value, tuple) else (value,))  # pyright: ignore[reportUnknownVariableType]
        if isinstance(g, Graph)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A program: named inputs in call order, outputs, and the values of the inputs that came with it.

    Attributes:
        inputs: `input` nodes in call order; those flagged frozen may be computed on ahead of time.
        outputs: one node per result.
        constants: input name -> array, for the frozen inputs whose values are part of the program.  Such inputs are
            not arguments of the call; they stand after the arguments in `inputs`.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict[str, Any])

    def nodes(self) -> list[Node]:
        """Return all nodes in topological order."""
        return topological(self.outputs)

    def __hash__(self) -> int:
        return hash((tuple(map(id, self.inputs)), tuple(map(id, self.outputs)), tuple(self.constants)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Graph)
            and self.inputs == other.inputs
            and self.outputs == other.outputs
            and self.constants.keys() == other.constants.keys()
            and all(self.constants[k] is other.constants[k] for k in self.constants)
        )
