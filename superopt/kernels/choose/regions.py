"""A region of a graph: one kernel, the cone of a value down to inputs and to the values of other regions."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from superopt.ir.graph import Graph, Node, make_input
from superopt.ir.ops.table import LINEAR, lookup
from superopt.ir.program import replace, type_bytes
from superopt.ir.scalar import DTYPE, SCALARS
from superopt.ir.text import print_graph
from superopt.ir.types import TensorType
from superopt.ir.views import begins_at
from superopt.kernels.math.table import has_code

DTYPES = DTYPE.keys() - {"float16"}
_UNREAD = "uint64"  # positions from 2^63 on are beyond those of kernels, which have a sign
UPDATES = frozenset(("dynamic_update_slice",))
"""Ops that XLA does in place and a kernel by a copy: kernels where a plan needs them."""
_UPDATED_BYTES = 1 << 16  # most that a plan updates: 64 kB are copied in 2.1 us, 1 MB in 34 us; XLA is in place, 0.2 us
APART = frozenset(("barrier", "segment_sum")) | UPDATES | LINEAR  # with XLA, whatever they cost


@dataclass(frozen=True, slots=True)
class Region:
    """One kernel: a value in memory and the nodes fused to compute it.

    Attributes:
        root: the value.
        nodes: the computed nodes, operands first; the root is the last.
        reads: inputs of the graph and roots of other regions, in order of first use, independent of the rest of the
            graph.
        runs: how often a call computes it, as far as trips of the loops around it are known.
    """

    root: Node
    nodes: tuple[Node, ...]
    reads: tuple[Node, ...]
    runs: int = 1

    @property
    def graph(self) -> Graph:
        """The region as a graph over its own inputs x0, x1 ...: equal regions have equal graphs."""
        return standing_alone(self.root, self.reads)

    @property
    def kind(self) -> str:
        """The region's kind: contraction, window, rows (it reduces), map or movement."""
        families = {lookup(n.op).family for n in self.nodes}
        if "contraction" in families:
            return "contraction"
        if any(n.op.startswith("reduce_window") for n in self.nodes):
            return "window"
        if "reduction" in families:
            return "rows"
        return "map" if "elementwise" in families else "movement"

    @property
    def is_free(self) -> bool:
        """Whether the region moves next to no data: reshapes of a value in memory, or what is made of scalars alone."""
        return all(n.op in ("reshape", "literal") or _is_of_scalars(n) for n in self.nodes)

    @property
    def is_same_bytes(self) -> bool:
        """Whether the region has the bytes of the value that it reads, in their order."""
        return all(n.op == "literal" or is_same_bytes(n) for n in self.nodes)

    def __str__(self) -> str:
        names = [n.op for n in self.nodes if lookup(n.op).family not in ("movement", "leaf")]
        shown = ", ".join(dict.fromkeys(names or [n.op for n in self.nodes]))
        heavy = next((n for n in self.nodes if lookup(n.op).family == "contraction"), None)
        reads = " x ".join(str(x.type) for x in heavy.inputs) + " -> " if heavy is not None else ""
        return f"{shown}: {reads}{self.root.type}"


def runs_of(regions: Iterable[Region]) -> Counter[Graph]:
    """Return how often a call computes the regions with each graph."""
    runs = Counter[Graph]()
    for region in regions:
        runs[region.graph] += region.runs
    return runs


def key_of(graph: Graph) -> str:
    """Return a short name of a region's graph: equal regions have equal names, on every machine."""
    return hashlib.blake2b(print_graph(graph).encode(), digest_size=5).hexdigest()


def region_of(root: Node, reads: Iterable[Node]) -> Region:
    """Return the cone of a node down to these nodes and to literals.

    Raises:
        ValueError: the cone reads something else, or holds a node that no kernel computes.
    """
    stop = set(reads)
    nodes = cone(root, stop)
    strange = next((n for n in nodes if not has_kernel(n)), None)
    if strange is not None:
        raise ValueError(f"no kernel computes {strange!r}")
    return Region(root, tuple(nodes), tuple(reads))


def cut(root: Node, stop: Set[Node]) -> Region:
    """Return the region of a node down to these nodes, to inputs, and to values that no kernel computes."""
    ends = {n for n in cone(root, set(stop) - {root}) if n.op == "input" or not is_inside(n)}
    nodes = cone(root, (set(stop) | ends) - {root})
    return Region(root, tuple(nodes), boundary(nodes))


def boundary(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the values from outside that nodes read, literals apart, in order of first use."""
    inside = set(nodes)
    return tuple(dict.fromkeys(x for n in nodes for x in n.inputs if x not in inside and x.op != "literal"))


def is_same_bytes(node: Node) -> bool:
    """Whether a node has the bytes of its operand, in their order."""
    return begins_at(node) == 0 and math.prod(node.shape) == math.prod(node.inputs[0].shape)


def _is_of_scalars(node: Node) -> bool:
    return bool(node.inputs) and all(x.shape == () for x in node.inputs)


def has_kernel(node: Node) -> bool:
    """Whether there is a kernel that computes the node: one of those inside, or an update of few bytes."""
    if node.op not in UPDATES:
        return is_inside(node)
    known = all(x.dtype in DTYPES and 0 not in x.shape for x in (node, *node.inputs))
    known = known and all(x.dtype != _UNREAD for x in node.inputs[2:])
    return known and type_bytes(node.type) <= _UPDATED_BYTES


def is_inside(node: Node) -> bool:
    """Whether a kernel can compute the node: it has a value at one index, of a supported type, and is not empty."""
    if node.op == "literal":
        return node.dtype in DTYPES
    if node.op == "macro" and node["op"] in APART:
        return False
    single = len(node.types) == 1 and all(len(x.types) == 1 for x in node.inputs)
    return single and is_computed(node.op, (node.type, *(x.type for x in node.inputs)))


def is_computed(op: str, kinds: Iterable[TensorType]) -> bool:
    """Whether a kernel can compute an op, other than a literal, with a result and operands of these types."""
    if op == "input" or op in APART or lookup(op).at is None or (op in SCALARS and not has_code(op)):
        return False
    _, *operands = kinds = tuple(kinds)
    if lookup(op).family == "indexing" and any(t.dtype == _UNREAD for t in operands[1:]):
        return False
    return all(t.dtype in DTYPES and 0 not in t.shape for t in kinds)


def is_contraction(node: Node) -> bool:
    """Whether a node is a product with a contracted axis or a convolution, as an op or as a lowering choice (macro)."""
    return lookup(node["op"] if node.op == "macro" else node.op).family == "contraction"


def is_chained(region: Region) -> bool:
    """Whether the region holds more than one contraction."""
    return sum(lookup(n["op"] if n.op == "macro" else n.op).family == "contraction" for n in region.nodes) > 1


def cone(root: Node, stop: Set[Node] | None, members: Set[Node] | None = None) -> list[Node]:
    """Return the nodes below a root, operands first: down to `stop`, or within `members`."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        for x in reversed(node.inputs):
            within = x in members if members is not None else x not in (stop or ())
            if within or (x.op == "literal" and members is None):
                stack.append((x, False))
    return order


@functools.lru_cache(maxsize=1024)  # asked again at each step of a load
def standing_alone(root: Node, reads: tuple[Node, ...]) -> Graph:
    """Return a value as a graph over inputs x0, x1 ... in the place of the values that it reads."""
    standins = {
        x: make_input(f"x{i}", x.shape, x.dtype, frozen=x.op == "input" and x["frozen"]) for i, x in enumerate(reads)
    }
    return Graph(tuple(standins.values()), replace((root,), standins))
