"""Divides a kernel into the steps that XLA:CPU runs.

XLA calls a routine for each heavy op (product, convolution, window reduction, prefix reduction) and compiles everything
else into loops: one per materialised value, elementwise producers and views fused into it.  A value is materialised
when it is a result, a heavy op reads or makes it, a reduction makes it, or it is expensive and several steps read it.

Inside a loop a node is *evaluated* once per element that its readers need (broadcasts repeat, slices leave out).  A
leaf is *touched* in as many distinct elements as the loop reads of it.

Kernels of a search share most of their nodes, and nodes differ by little.  Facts that depend on op, attributes and
types alone are a `Kind`; facts that depend on the operands are a `NodeFacts`.  Both are made once
(`costmodel.model.catalogue`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.ir.graph import Node
from superopt.ir.ops import table
from superopt.ir.ops.table import CONTRACTIONS, ELEMENTWISE, LINEAR, PREFIXES, PRODUCTS, REDUCTIONS, VIEWS, WINDOWS
from superopt.ir.program import type_bytes
from superopt.ir.scalar import SCALARS

FUNCTIONS = (
    "div", "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "sqrt",
    "rsqrt", "cbrt", "pow", "rem", "atan", "sinh", "acosh", "asin", "lgamma", "atan2",
)  # fmt: skip
"""Elementwise ops whose cost is a coefficient of its own."""
SAME_COST = {
    name: fn.like or "lgamma"
    for name, fn in SCALARS.items()
    if fn.like or (fn.transcendental and name not in FUNCTIONS)
}
"""Ops that cost the same as another; a function of unknown cost counts as the slowest."""
CONTROL = table.CONTROL - {"result"}
HEAVY = WINDOWS | PREFIXES | CONTROL | CONTRACTIONS | LINEAR | {"dynamic_update_slice", "segment_sum"}
VIEW = VIEWS | {"concatenate", "dynamic_slice", "gather"}
CHEAP = ELEMENTWISE - {*FUNCTIONS, *SAME_COST}
LEAF = frozenset(("input", "literal", "result"))  # a result of an op with several is read like an input
_DEEP = 200  # deeper kernels are walked without recursion
COMPUTED, READ, LITERAL = range(3)
PLAIN, MOVED, REDUCED, SPREAD, JOINED, PADDED, PICKED = range(7)
_READS = {"broadcast_in_dim": SPREAD, **dict.fromkeys(PRODUCTS, SPREAD), "concatenate": JOINED, "pad": PADDED}
_READS |= {"gather": PICKED, "dynamic_slice": PICKED, **dict.fromkeys(REDUCTIONS, REDUCED)}


class Kind:
    """Facts shared by all nodes of one op, attributes and types of operands.

    Attributes:
        number: in the order in which kinds were first seen.
        example: a node of the kind.
        size, item: elements of the (first) result, and bytes of one.
        role: COMPUTED, READ (inputs, results of ops with several) or LITERAL.
        reads: how operands are read (PLAIN: elementwise, MOVED: at other indices, ...; see `Loop`).
        heavy: whether XLA calls a routine; it multiplies elementwise where a product sums over one element only.
        turns: whether reading through the node leaves the order of memory.
        free: whether the node only renames its operand's memory, without cost.
        cheap: whether repeating the node is cheap; `costly`: neither that nor materialised anyhow.
        row: place in the encoder's table, -1 until it is made.
        given, result: bytes if the node is an input, and if it is a result of the kernel.
        also: number that is counted once wherever the kind is evaluated; 0: none.
    """

    __slots__ = (
        "also", "cheap", "costly", "example", "folding", "free", "given", "heavy", "item", "number", "op",
        "reads", "reduces", "result", "role", "row", "size", "turns",
    )  # fmt: skip

    def __init__(self, number: int, node: Node) -> None:
        op, bytes_ = node.op, type_bytes(node.types[0])
        self.number, self.op, self.example = number, op, node
        self.size = elements(node)
        self.item = bytes_ / max(1, self.size)
        self.role = LITERAL if op == "literal" else READ if op in LEAF else COMPUTED
        self.reads = _READS.get(op, MOVED if op in VIEW else PLAIN)
        self.heavy, self.reduces = is_heavy(node), op in REDUCTIONS
        self.folding = self.heavy and op in CONTRACTIONS  # takes transposes into its dimension numbers
        self.turns = _turns(node)
        self.free = op == "reshape" or (op == "broadcast_in_dim" and self.size == elements(node.inputs[0]))
        self.cheap = op in VIEW or op in CHEAP
        self.costly = not (self.cheap or self.heavy or self.reduces or self.role)
        self.row = -1
        self.given = bytes_ if op == "input" else 0
        self.result = bytes_ if len(node.types) == 1 else sum([type_bytes(t) for t in node.types])
        self.also = 0


class NodeFacts:
    """Facts about one node.

    Attributes:
        kind, inputs: kind of the node; entries of its operands.
        depth: longest path to a node without operands.
        forced: entries that are materialised in any kernel with this node.
        costly: whether it reaches a node whose kind is `costly`.
        source: the value behind free reshapes: a reshape of a row-major tensor is the same memory.
        unturned: the value behind transposes.
        rows: for a heavy op, its finished rows in the catalogue.
        price: seconds and relative deviation of the kernel that ends here, once an objective has priced it.
    """

    __slots__ = (
        "costly", "depth", "forced", "inputs", "kind", "price", "ref", "rows", "source", "unturned",
    )  # fmt: skip

    rows: tuple[int, ...]
    ref: object
    price: tuple[float, float] | None

    def __init__(self, kind: Kind, inputs: tuple[NodeFacts, ...]) -> None:
        self.kind, self.inputs = kind, inputs
        self.rows = ()
        self.price = None
        self.source = inputs[0].source if kind.free else self
        self.unturned = inputs[0].unturned if kind.op == "transpose" else self
        self.costly = kind.costly
        forced, depth = _NONE, 0
        for x in inputs:
            if x.costly:
                self.costly = True
            if x.depth >= depth:
                depth = x.depth + 1
            if x.forced and x.forced is not forced:
                forced = forced | x.forced if forced else x.forced
        if kind.heavy or kind.reduces or kind.reads == SPREAD:
            own = _forces(self)
            forced = forced | own if own else forced
        self.forced, self.depth = forced, depth


_NONE: frozenset[NodeFacts] = frozenset()


class Reached:
    """The nodes that the results of a kernel reach.

    Attributes:
        outputs: entries of the results.
        place: entry -> number, operands before their readers.
    """

    __slots__ = ("outputs", "place")

    def __init__(self, outputs: Sequence[NodeFacts]) -> None:
        self.outputs = outputs
        self.place: dict[NodeFacts, int] = {}
        for output in outputs:
            if output not in self.place:
                (_visit_long if output.depth > _DEEP else _visit)(output, self.place)

    @property
    def operands(self) -> list[int]:
        """Numbers of the operands of each entry, one after the other."""
        place = self.place
        return [place[x] for e in place for x in e.inputs]


def _visit(entry: NodeFacts, place: dict[NodeFacts, int]) -> None:
    for x in entry.inputs:
        if x not in place:
            _visit(x, place)
    place[entry] = len(place)


def _visit_long(entry: NodeFacts, place: dict[NodeFacts, int]) -> None:
    """Number entries as `_visit` does, without recursion."""
    stack = [entry]
    while stack:
        entry = stack[-1]
        if entry in place:
            stack.pop()
            continue
        missing = [x for x in reversed(entry.inputs) if x not in place]
        if missing:
            stack.extend(missing)
        else:
            place[stack.pop()] = len(place)


def elements(node: Node) -> int:
    """Return the number of elements of a tensor."""
    return math.prod(node.types[0].shape)  # pyright: ignore[reportCallIssue, reportArgumentType, reportReturnType] (concrete sizes)


def is_heavy(node: Node) -> bool:
    """Whether XLA calls a routine for the op."""
    if node.op not in PRODUCTS:
        return node.op in HEAVY
    shape = node.inputs[0].shape
    return any(shape[axis] != 1 for axis in node["dimension_numbers"][0][0])


def _turns(node: Node) -> bool:
    """Whether reading through this node leaves the order of memory."""
    if node.op == "transpose":
        order = [int(axis) for axis in node["permutation"] if node.inputs[0].shape[axis] != 1]
        return bool(order) and order[-1] != max(order)
    if node.op == "slice":
        return int(node["strides"][-1]) > 1 if node["strides"] else False
    if node.op == "rev":
        return bool(node["dimensions"]) and max(node["dimensions"]) == node.type.rank - 1
    return False


# ---- materialised values


def _kept(entry: NodeFacts) -> NodeFacts | None:
    """Return the entry that is materialised when this value has to lie in memory; None if none is."""
    source = entry.source
    if source.kind.role == COMPUTED:
        return source
    return source.inputs[0] if source.kind.op == "result" else None


def _forces(entry: NodeFacts) -> frozenset[NodeFacts]:
    """Return the entries that this node forces to be materialised: heavy ops, reductions, and operands of some."""
    kind = entry.kind
    if kind.heavy:
        read = [_kept(folded(entry, x)) for x in entry.inputs]
        return frozenset((entry, *[x for x in read if x is not None]))
    if kind.reduces:
        return frozenset((entry,))
    if kind.op == "broadcast_in_dim" and not kind.free:
        source = entry.inputs[0].source
        if source.kind.role == COMPUTED and not source.kind.cheap:  # would be computed once per copy
            return frozenset((source,))
    return _NONE


def folded(entry: NodeFacts, x: NodeFacts) -> NodeFacts:
    """Return the operand that a heavy op reads: products and convolutions absorb transposes into dimension numbers."""
    return x.unturned if entry.kind.folding else x


def roots(kernel: Reached) -> list[NodeFacts]:
    """Return the roots of the steps of a kernel in execution order."""
    outputs, order = kernel.outputs, kernel.place
    kept = {e for e in map(_kept, outputs) if e is not None}
    for output in outputs:
        kept |= output.forced
    if len(kept) <= 1:
        return list(kept)
    if len(outputs) == 1 and len(order) == 1 + len(outputs[0].inputs) and outputs[0].kind.heavy:
        return [outputs[0]]  # one routine on the kernel's inputs
    if any(output.costly for output in outputs):
        _keep_shared(kept, order)
    return [e for e in order if e in kept]


def _keep_shared(kept: set[NodeFacts], order: dict[NodeFacts, int]) -> None:
    """Materialise values that are expensive and would be computed in several steps."""
    readers: dict[NodeFacts, set[NodeFacts]] = {}
    for entry in reversed(order):
        into = {entry} if entry in kept else set[NodeFacts]()
        if entry not in kept and entry.kind.role == COMPUTED:
            into = readers.get(entry, into)
            if len(into) > 1 and not entry.kind.cheap:
                kept.add(entry)
                into = {entry}
        for x in entry.inputs:
            readers.setdefault(x, set()).update(into)


# ---- loops


class KernelLoops:
    """Loops of many kernels in flat lists, appended as they are walked and then turned into arrays.

    Attributes:
        kinds, counts: numbers of the kinds of evaluated nodes, and how many elements of each are computed.
        lengths: for each loop, how many of these entries are its own.
        read: for each loop, bytes of the distinct elements of leaves.
        loads, strided: for each loop, element reads of leaves, and those whose neighbours in the loop are not
            neighbours
            in memory.
    """

    def __init__(self) -> None:
        self.kinds: list[int] = []
        self.counts: list[float] = []
        self.lengths: list[int] = []
        self.read: list[float] = []
        self.loads: list[float] = []
        self.strided: list[float] = []

    def add(self, root: NodeFacts, kept: Sequence[NodeFacts], kernel: Reached) -> None:
        """Walk the loop of a root down to materialised or given values, readers before operands."""
        size = float(root.kind.size)
        # asked for by elementwise readers (at one index: computed once), through views (at other indices: computed
        # again), distinct elements, out of order
        states: dict[NodeFacts, list[float]] = {root: [size, 0.0, size, False]}
        touched: dict[NodeFacts, float] = {}
        kinds, counts = self.kinds, self.counts
        before, loads, strided = len(kinds), 0.0, 0.0
        for entry in reversed(kernel.place):
            state = states.get(entry)
            if state is None:
                continue
            same, moved, seen, turned = state
            count = same + moved
            kind = entry.kind
            kinds.append(kind.number)
            counts.append(count)
            reads = kind.reads
            asked, visible, moves = count, seen, reads != PLAIN
            turned = turned or kind.turns
            for k, x in enumerate(entry.inputs):
                of = x.kind
                role = of.role
                if role == LITERAL:
                    continue
                size = of.size
                if reads > MOVED:
                    asked, visible = _asked(reads, k, size, kind.size, count, seen)
                    if kind.also and k == 0:
                        kinds.append(kind.also)
                        counts.append(1.0)
                most = visible if visible < size else float(size)
                if role or x in kept:
                    loads += asked
                    if turned:
                        strided += asked
                    known = touched.get(x)
                    touched[x] = most if known is None else min(known + visible, float(size))
                    continue
                state = states.get(x)
                if state is None:
                    states[x] = [0.0, asked, most, turned] if moves else [asked, 0.0, most, turned]
                    continue
                if moves:
                    state[1] += asked
                elif asked > state[0]:
                    state[0] = asked
                state[2] = min(state[2] + visible, float(size))
                if turned:
                    state[3] = True
        self.lengths.append(len(kinds) - before)
        self.read.append(sum([count * x.kind.item for x, count in touched.items()]))
        self.loads.append(loads)
        self.strided.append(strided)


def _asked(reads: int, k: int, size: int, whole: int, count: float, seen: float) -> tuple[float, float]:
    """Return the evaluations and distinct elements of operand `k` that a node needs."""
    if reads == REDUCED:
        return size, size
    if reads == SPREAD:
        return count, size
    if reads == JOINED:
        share = size / max(1.0, float(whole))
        return count * share, seen * share
    if reads == PADDED:
        return (min(count, size * math.ceil(count / max(1.0, float(whole)))), size) if k == 0 else (0.0, 0.0)
    return (count, seen) if k == 0 else (size, size)
