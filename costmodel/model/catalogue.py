"""Cache of facts about nodes and kinds of nodes, and tables of features of kernels made from it.

An entry is made once per node and dropped with the node.  Facts that depend on op, attributes and operand types alone
are made once for all nodes that agree in them.  A kernel that is new to a search then costs the entries of its one or
two new nodes and a walk over its loops.  All arithmetic on features is done for a whole batch of kernels at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from costmodel.features import counts as features
from costmodel.features.counts import INDEX, SHARE_BYTES, VECTORS
from costmodel.features.operands import Counts, Source
from costmodel.features.steps import CONTROL, LITERAL, KernelLoops, Kind, NodeFacts, Reached, folded, roots
from costmodel.model.analytical import FeatureTable
from superopt.ir.graph import Graph, Node

_COUNT = len(INDEX)
_CALLED = _COUNT  # a column of its own until remainders are known
_EVALUATION, _LOAD, _STRIDED = INDEX["evaluation"], INDEX["load"], INDEX["load_strided"]
_LEFT_OVER = [(INDEX[f"evaluation_rest{size}"], INDEX[f"fn_rest{size}"]) for size in VECTORS]
_LEVELS = slice(INDEX["read_l2"], INDEX["write_dram"] + 1)


class _Grown:
    """An array that rows are appended to."""

    def __init__(self, width: int, dtype: type = float) -> None:
        self.used = 0
        self.values = np.zeros((64, width), dtype)

    def append(self, row: Sequence[float] | np.ndarray) -> int:
        if self.used == len(self.values):
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.values[self.used] = row
        self.used += 1
        return self.used - 1


class Catalogue:
    """Entries of nodes, kinds, and the rows of features that tables are assembled from."""

    def __init__(self) -> None:
        self.entries: dict[int, NodeFacts] = {}
        self._kinds: dict[Hashable, Kind] = {}
        self._types: dict[Hashable, int] = {}
        self._heavy: dict[Hashable, tuple[int, ...]] = {}
        self._loop: dict[int, int] = {}  # kind -> row of the loop that it is the root of
        self._codes: list[int] = []  # of each kind, as its readers see it
        self._columns = _Grown(3, np.int64)  # of each kind, the features that evaluating it counts in,
        self._times = _Grown(3)  # and how often
        self._rows = _Grown(_COUNT + 1)
        # of each row: shares left over, bytes written, parts at most, parts at least, repetitions
        self._facts = _Grown(len(VECTORS) + 4)
        self._unit(None, 0.0)  # number 0 means none

        def forget(ref: weakref.KeyedRef[int, Node]) -> None:
            del entries[ref.key]

        entries = self.entries  # not the catalogue itself, which would then outlive its users
        self._forget = forget

    # ---- nodes

    def entry(self, node: Node) -> NodeFacts:
        """Return the facts about a node."""
        entries = self.entries
        entry = entries.get(id(node))
        if entry is not None:
            return entry
        stack = [node]
        while stack:
            top = stack[-1]
            inputs: list[NodeFacts] = []
            for x in top.inputs:
                below = entries.get(id(x))
                if below is None:
                    stack.append(x)
                else:
                    inputs.append(below)
            if stack[-1] is top:
                stack.pop()
                if id(top) not in entries:
                    entry = entries[id(top)] = self._entry(top, tuple(inputs))
        assert entry is not None
        return entry

    def _entry(self, node: Node, inputs: tuple[NodeFacts, ...]) -> NodeFacts:
        op = node.op
        codes = self._codes
        if op in ("input", "literal"):
            kind = node.types[0]
            key = (op, kind.shape, kind.dtype, op == "input" and node["frozen"])
        else:
            key = (op, node.attrs, tuple([codes[x.kind.number] for x in inputs]), len(inputs) > 1 and len({*inputs}))
        known = self._kinds.get(key)
        if known is None:
            known = self._kinds[key] = self._kind(node)
        entry = NodeFacts(known, inputs)
        if known.heavy:
            entry.rows = self._routine(entry, node)
        entry.ref = weakref.KeyedRef(node, self._forget, id(node))
        return entry

    def _kind(self, node: Node) -> Kind:
        known = features.unit(node)
        number = self._unit(known.feature, known.times, known.evaluated, known.called)
        kind = Kind(number, node)
        types = tuple([(t.shape, t.dtype) for t in node.types])
        code = self._types.setdefault((types, kind.role == LITERAL), len(self._types))
        self._codes += [code] * (number + 1 - len(self._codes))
        if known.rows:
            kind.also = self._unit("gather_row", known.rows)
        return kind

    def _unit(self, feature: str | None, times: float, evaluated: bool = False, called: bool = False) -> int:
        self._times.append((times if feature else 0.0, evaluated, called))
        return self._columns.append((INDEX[feature] if feature else 0, _EVALUATION, _CALLED))

    # ---- rows of features

    def _row(self, counts: Counts, facts: Sequence[float]) -> int:
        row = np.zeros(_COUNT + 1)
        for name, value in counts.items():
            row[INDEX[name]] = value
        self._facts.append(facts)
        return self._rows.append(row)

    def _finished(self, counts: Counts, repeat: float = 1.0) -> int:
        return self._row(counts, (*[0.0] * len(VECTORS), 0.0, 1.0, 1.0, repeat))

    def _root(self, kind: Kind) -> int:
        entry = self._loop.get(kind.number)
        if entry is None:
            root = features.root(kind.example)
            entry = self._loop[kind.number] = self._row(root.counts, (*root.rests, root.written, root.parts, 1.0, 1.0))
        return entry

    def _routine(self, entry: NodeFacts, node: Node) -> tuple[int, ...]:
        """Return the rows of a heavy op; they depend on its operands' kinds, and on which operands are the same."""
        read = [folded(entry, x) for x in entry.inputs]
        leaves = [x.source for x in read]
        sources = [_source(x) for x in node.inputs] if entry.kind.folding else ()
        key = (
            entry.kind.number, *[(x.kind.number, leaves.index(x)) for x in leaves],
            *[(source.types[0].shape, order) for source, order in sources],
        )  # fmt: skip
        routine = self._heavy.get(key)
        if routine is None:
            if node.op in CONTROL:
                routine = self._control(node)
            else:
                touched: dict[NodeFacts, float] = {}
                for x, leaf in zip(entry.inputs, leaves, strict=True):
                    touched[leaf] = min(touched.get(leaf, 0.0) + x.kind.size, float(leaf.kind.size))
                read_bytes = sum([n * x.kind.item for x, n in touched.items() if x.kind.role != LITERAL])
                routine = (self._finished(features.heavy(node, sources, read_bytes)),)
            self._heavy[key] = routine
        return routine

    def _control(self, node: Node) -> tuple[int, ...]:
        counts, trips = features.control(node)
        costs = [self._finished(counts)]
        for _, value in node.attrs:
            for body in value if isinstance(value, tuple) else (value,):
                if isinstance(body, Graph):
                    table = self.table(self.reached([body]))
                    for row, spread, repeat in zip(table.counts, table.spread, table.repeat, strict=True):
                        self._facts.append((*[0.0] * len(VECTORS), 0.0, 1.0, spread, repeat * trips))
                        costs.append(self._rows.append([*row, 0.0]))
        return tuple(costs)

    # ---- kernels

    def reached(self, kernels: Iterable[Graph]) -> list[Reached]:
        """Return the entries of kernels without macros."""
        entry = self.entry
        return [Reached([entry(node) for node in kernel.outputs]) for kernel in kernels]

    def table(self, kernels: Sequence[Reached]) -> FeatureTable:
        """Return the features of every step of kernels."""
        loops = KernelLoops()
        rows: list[int] = []
        walked: list[int] = []  # places in `rows` of the loops
        steps: list[int] = []
        for kernel in kernels:
            before = len(rows)
            tops = roots(kernel)
            for root in tops:
                if root.kind.heavy:
                    rows += root.rows
                else:
                    walked.append(len(rows))
                    rows.append(self._root(root.kind))
                    loops.add(root, tops, kernel)
            steps.append(len(rows) - before)
        return self._table(loops, rows, walked, steps)

    def _table(self, loops: KernelLoops, rows: list[int], walked: list[int], steps: list[int]) -> FeatureTable:
        """Return the features of kernels, gathered from the rows of their steps and loops."""
        counts = self._rows.values.take(rows, axis=0)
        facts = self._facts.values.take(rows, axis=0)
        at = np.array(walked, np.int64)
        kinds = np.array(loops.kinds, np.int64)
        amounts = self._times.values.take(kinds, axis=0)
        amounts *= np.array(loops.counts)[:, None]
        columns = self._columns.values.take(kinds, axis=0)
        columns += np.repeat(at * (_COUNT + 1), loops.lengths)[:, None]
        counts += np.bincount(columns.ravel(), amounts.ravel(), counts.size).reshape(counts.shape)
        read, loads, strided = np.zeros((3, len(rows)))
        read[at], loads[at], strided[at] = loops.read, loops.loads, loops.strided
        counts[:, _LOAD] += loads - strided
        counts[:, _STRIDED] += strided
        for k, (evaluation, called) in enumerate(_LEFT_OVER):
            counts[:, evaluation] += counts[:, _EVALUATION] * facts[:, k]
            counts[:, called] += counts[:, _CALLED] * facts[:, k]
        written, most, least, repeat = facts[:, len(VECTORS) :].T
        counts[:, _LEVELS] += np.stack(features.traffic(read, written), axis=1)
        spread = np.maximum(least, np.minimum(most, (read + written) / SHARE_BYTES))
        owner = np.repeat(np.arange(len(steps)), steps)
        return FeatureTable(np.ascontiguousarray(counts[:, :_COUNT]), spread, repeat, owner, len(steps))


def _source(x: Node) -> Source:
    """Return the value behind transposes of an operand, and the permutation that leads from there to it."""
    order = tuple(range(len(x.types[0].shape)))
    while x.op == "transpose":
        order = tuple([int(x["permutation"][axis]) for axis in order])
        x = x.inputs[0]
    return x, order


def tabulate(kernels: Sequence[Graph]) -> FeatureTable:
    """Return the features of kernels without macros, by a catalogue of their own."""
    catalogue = Catalogue()
    return catalogue.table(catalogue.reached(kernels))
