"""Two graphs walked together with labels: which axes of which tensors are one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rewrites.match.flow import Marks, OpSite, flow
from rewrites.match.labels import Axis, Labels, Layout
from superopt.errors import ShapeError
from superopt.ir import index
from superopt.ir.graph import Graph, Node
from superopt.ir.index import Poly, Size, Symbol
from superopt.ir.resize import resize

_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)


class Unliftable(ValueError):
    """Graphs that no rule text speaks of; the message says why."""


@dataclass(slots=True)
class Walked:
    """One op of the walk: printed once all labels are known."""

    op: str
    node: Node
    args: tuple[Walked, ...] = ()
    lay: Layout = ()
    marks: Marks = field(default_factory=dict[int, Any])


class GraphWalk:
    """Labels of the axes of two graphs over the same inputs."""

    def __init__(self, sizes: Sequence[str]) -> None:
        if len(sizes) > len(_PRIMES):
            raise Unliftable(f"{len(sizes)} sizes")
        self.number = dict(zip(sizes, _PRIMES, strict=False))
        self.labels = Labels()
        self.inputs: dict[str, Layout] = {}

    def concrete(self, graph: Graph) -> Graph:
        """The graph at sizes that are primes.

        Raises:
            Unliftable: the constraints do not allow these sizes.
        """
        symbols = {s for node in graph.nodes() for s in _symbols((node.types, *(v for _, v in node.attrs)))}
        try:
            return resize(graph, {s: self.number[s.name] for s in symbols})
        except ShapeError as error:
            raise Unliftable(f"no example at prime sizes: {error.args[0]}") from error

    def fresh(self, node: Node) -> Layout:
        """New labels for a result."""
        return tuple([((self.labels.fresh(), self.at(n)),) if n != 1 else () for n in node.shape])

    def at(self, n: Size) -> int:
        """A size as the number that it stands for here."""
        return index.concrete(n, self.number)

    def term(self, big: Node, small: Node, lay: Layout) -> Walked:
        """Walk a node of the symbolic and of the concrete graph together."""
        if big.op == "input":
            known = self.inputs.setdefault(big["name"], lay)
            if not self.labels.unify(known, lay):
                raise Unliftable(f"the axes of {big['name']} do not align")
            self.labels.note([lay])
            return Walked("input", big, (), lay)
        if big.op == "literal":
            return Walked("literal", big)
        if (n := counted(big)) is not None:
            return Walked("count", n)
        if big.op == "transpose":
            inner: list[Axis] = [()] * len(lay)
            for axis, p in zip(lay, big["permutation"], strict=True):
                inner[p] = axis
            return Walked("view", big, (self.term(big.inputs[0], small.inputs[0], tuple(inner)),), lay)
        shapes = [tuple(int(str(n)) for n in x.shape) for x in small.inputs]
        site = OpSite(dict(small.attrs), shapes, tuple(int(str(n)) for n in small.shape))
        flowed = flow(big.op, site, lay, self.labels)
        if flowed is None:
            raise Unliftable(f"{big.op} does not keep axes apart")
        lays, marks = flowed
        lays = [() if not shape else x for x, shape in zip(lays, shapes, strict=True)]
        self.labels.note([lay, *lays])
        pairs = zip(big.inputs, small.inputs, lays, strict=True)
        args = tuple([self.term(*three) for three in pairs])
        return Walked("view" if big.op == "reshape" else big.op, big, args, lay, marks)


def counted(node: Node) -> Node | None:
    """The iota whose last entry the node is: how a size comes as a number."""
    if node.op == "convert_element_type":
        return counted(node.inputs[0])
    if node.op != "reshape" or node.shape or node.inputs[0].op != "slice":
        return None
    iota = node.inputs[0].inputs[0]
    return iota if iota.op == "iota" and node.inputs[0]["start_indices"] == (iota.shape[0] - 1,) else None


def _symbols(value: Any) -> set[Symbol]:
    if isinstance(value, Poly):
        return set(value.symbols)
    if isinstance(value, tuple):
        return set().union(*(_symbols(x) for x in value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    shape = getattr(value, "shape", None)
    return _symbols(shape) if isinstance(shape, tuple) else set()
