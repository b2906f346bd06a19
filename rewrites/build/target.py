"""Where right sides are built: an e-graph, or IR nodes.

`Target` is the interface that the builder uses.  `EGraph` implements it: its constructors bring terms into normal form,
and transposes vanish into references.  `IRTarget` makes IR nodes and folds chains of transposes and of reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from superopt.ir.graph import Node, mk


class Target(Protocol):
    """Interface of the builder's output: constructs values and reports their types."""

    def mk(self, op: str, /, *children: Any, **attrs: Any) -> Any:
        """The value `op{attrs}(children)`."""
        ...

    def transpose(self, value: Any, perm: Sequence[int], /) -> Any:
        """`numpy.transpose(value, perm)`."""
        ...

    def shape(self, value: Any, /) -> tuple[Any, ...]:
        """Shape of a value."""
        ...

    def dtype(self, value: Any, /) -> str:
        """Dtype of a value."""
        ...


class IRTarget:
    """IR nodes, with transposes of transposes and reshapes of reshapes folded."""

    def mk(self, op: str, /, *children: Node, **attrs: Any) -> Node:
        """The node `op{attrs}(children)`."""
        if op == "reshape":
            source = children[0]
            while source.op == "reshape":
                source = source.inputs[0]
            return source if source.shape == attrs["new_sizes"] else mk(op, source, **attrs)
        return mk(op, *children, **attrs)

    def transpose(self, value: Node, perm: Sequence[int], /) -> Node:
        """The transposed node; no node where nothing moves."""
        order = tuple(perm)
        if value.op == "transpose":
            inner = value["permutation"]
            value, order = value.inputs[0], tuple(inner[i] for i in order)
        return value if order == tuple(range(len(order))) else mk("transpose", value, permutation=order)

    def shape(self, value: Node, /) -> tuple[Any, ...]:
        """Shape of a node."""
        return value.shape

    def dtype(self, value: Node, /) -> str:
        """Dtype of a node."""
        return value.dtype
