"""Lowers a selection with layouts to a program: the part prepared once from frozen inputs, and the part of each call.

The hot part is made by the same emitter that makes kernels for pricing, with the nodes of other kernels in place of
fresh inputs.  A frozen operand is prepared in exactly the order in which it is read; of a frozen broadcast, only the
source is prepared.  Frozen values themselves are built from the program's own e-nodes wherever these exist, in natural
order.  Macros are expanded last, in the layouts that were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rewrites.build.expander import Expand, expand_macros
from rewrites.egraph import perm
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, make_input
from superopt.ir.program import PREPARED, Program, frozen_cut, replace, split, type_bytes
from superopt.ir.types import TensorType
from superopt.search.emit import ClassEmitter, Wants, arrange, build, frozen_operand
from superopt.search.graphs import cheapest
from superopt.search.layout import Order
from superopt.search.snapshot import MASK, SHIFT, FrozenLeaf, Selection, Snapshot
from superopt.search.state import FORBID


class FrozenValues:
    """Nodes of frozen references, each class by its cheapest e-node (the program's own before any other)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.eg = snapshot.eg
        self.forms = snapshot.forms
        self._choice = self._choose()
        self._nodes: dict[int, Node] = {}

    def _choose(self) -> dict[int, tuple[int, ...]]:
        """Bottom-up: the e-node of least cost per frozen class, all of whose children are frozen."""
        eg = self.eg
        classes = [cls for cls in eg.classes() if eg.frozen(cls << SHIFT)]
        number = {cls: c for c, cls in enumerate(classes)}
        rows = [
            [enode for enode in sorted(eg.enodes(cls)) if all(k in number and k != cls for k in self._kids(enode))]
            for cls in classes
        ]
        kids = [[tuple(number[k] for k in self._kids(enode)) for enode in row] for row in rows]
        picked, _ = cheapest(kids, lambda c, i: self._cost(rows[c][i]), max)
        return {cls: row[i] for cls, row, i in zip(classes, rows, picked, strict=True) if i is not None}

    def _kids(self, enode: tuple[int, ...]) -> list[int]:
        return [self.eg.find(x) >> SHIFT for x in enode[1:]]

    def _cost(self, enode: tuple[int, ...]) -> float:
        cost = 1.0 if self.eg.origin.get(enode) is None else 1e6
        return cost + (1e3 if self.eg.op_of(enode) == "macro" else 0.0)

    def choice(self, cls: int) -> tuple[int, ...]:
        """The e-node that computes a frozen class."""
        return self._choice[cls]

    def node(self, ref: int) -> Node:
        """The value of a frozen reference, axes in the reference's order."""
        ref = self.eg.find(ref)
        root = ref >> SHIFT
        stack = [root]
        while stack:
            cls = stack[-1]
            if cls in self._nodes:
                stack.pop()
                continue
            enode = self._choice[cls]
            missing = [k for k in self._kids(enode) if k not in self._nodes]
            if missing:
                stack.extend(missing)
                continue
            self._nodes[cls] = self._make(cls, enode)
            stack.pop()
        return self._seen_through(ref)

    def _seen_through(self, ref: int) -> Node:
        node = self._nodes[ref >> SHIFT]
        rank = len(node.shape) if len(node.types) == 1 else 0
        return arrange(node, tuple(range(rank)), perm.perm_of(ref & MASK, rank)) if ref & MASK else node

    def _make(self, cls: int, enode: tuple[int, ...]) -> Node:
        eg = self.eg
        children = [eg.find(x) for x in enode[1:]]
        own = eg.ref_of(enode)
        form = self.forms.intern(
            eg.op_of(enode),
            eg.attrs_of(enode),
            tuple(eg.shape(x) for x in children),
            tuple(eg.dtype(x) for x in children),
            (None,) * len(children),
            TensorType(eg.shape(own), eg.dtype(own)),
        )
        orders = [tuple(range(len(s))) for s in form.shapes]
        natural = tuple(range(len(form.shape)))
        node = build(form, natural, orders, [self._seen_through(x) for x in children])
        if own & MASK:  # value(e-node) = transpose(value(class), own)
            node = arrange(node, perm.perm_of(own & MASK, len(natural)), natural)
        return node


class Lowering:
    """Lowers selections of the snapshot of `wants`; frozen values and layout wants are shared between them."""

    def __init__(self, wants: Wants) -> None:
        self.snapshot, self.wants = wants.snapshot, wants
        self._frozen: FrozenValues | None = None

    @property
    def frozen(self) -> FrozenValues:
        """The values of frozen classes, made on first use."""
        if self._frozen is None:
            self._frozen = FrozenValues(self.snapshot)
        return self._frozen

    def order(self, selection: Selection) -> list[int]:
        """Materialised classes in use, operands first."""
        options = self.snapshot.options
        done: dict[int, bool] = {}
        out: list[int] = []
        stack = [(root.cls, False) for root in reversed(self.snapshot.roots) if root.cls >= 0]
        while stack:
            c, ready = stack.pop()
            if ready:
                if not done[c]:
                    done[c] = True
                    if selection.materialised[c]:
                        out.append(c)
            elif c not in done:
                done[c] = False
                stack.append((c, True))
                kids = options[c][selection.options[c]].kids
                if any(done.get(k) is False for k in kids):  # popped and not finished: above us on the path
                    raise SuperoptError("the selection has a cycle")
                stack.extend((k, False) for k in reversed(kids) if not done.get(k))
        return out

    def emit(
        self, selection: Selection, stored: Callable[[FrozenLeaf, Order], Node]
    ) -> tuple[tuple[Node, ...], dict[Node, int]]:
        """Output nodes, and the class of which each node is the value, with macros still in place."""
        nodes: dict[int, Node] = {}
        classes: dict[Node, int] = {}
        emitter = ClassEmitter(self.wants, selection, nodes.__getitem__, stored, self._apart(selection))
        for c in self.order(selection):
            nodes[c] = emitter.kernel(c)
            classes |= {node: k for (k, _), node in emitter.memo.items() if k == c or node not in classes}
        outputs: list[Node] = []
        for root in self.snapshot.roots:
            if root.leaf is not None:
                outputs.append(frozen_operand(root.leaf, tuple(range(len(root.leaf.full))), stored))
            else:
                outputs.append(emitter.operand(root.cls, root.perm))
        return tuple(outputs), classes

    def _apart(self, selection: Selection) -> frozenset[int]:
        """Classes that an override makes every reading kernel compute again."""
        options = self.snapshot.options
        return frozenset(
            c
            for c, bit in enumerate(selection.bits)
            if bit == FORBID and not selection.materialised[c] and not options[c][selection.options[c]].cheap
        )

    def prepared_bytes(self, selection: Selection) -> int:
        """Bytes of the tensors that the selection would prepare."""
        seen: dict[tuple[int, Order], int] = {}

        def stored(leaf: FrozenLeaf, order: Order) -> Node:
            shape = tuple(leaf.shape[axis] for axis in order)
            kind = TensorType(shape, leaf.dtype)
            seen[(self.snapshot.eg.find(leaf.source), order)] = type_bytes(kind)
            return make_input(f"w{len(seen)}", shape, leaf.dtype, frozen=True)

        self.emit(selection, stored)
        return sum(seen.values())

    def lower(self, selection: Selection, graph: Graph, expand: Expand | None = None) -> Program:
        """The program of a selection.

        Args:
            graph: the program that the e-graph was imported from; gives inputs, constants and result types.
            expand: replaces a macro node by code of the same type; macros are kept without it.
        """
        return self.lower_stored(selection, graph, expand)[0]

    def lower_stored(
        self, selection: Selection, graph: Graph, expand: Expand | None = None
    ) -> tuple[Program, frozenset[Node]]:
        """The program of a selection, and the nodes of its hot part that are materialised."""
        program, outputs = self._lowered(selection, graph, expand, selection.materialised)
        return program, frozenset(outputs)

    def lower_classes(
        self, selection: Selection, graph: Graph, expand: Expand | None = None
    ) -> tuple[Program, dict[Node, int]]:
        """The program of a selection, and the classes of which nodes of its hot part are the values."""
        return self._lowered(selection, graph, expand, [True] * len(selection.materialised))

    def _lowered(
        self, selection: Selection, graph: Graph, expand: Expand | None, followed: Sequence[bool]
    ) -> tuple[Program, dict[Node, int]]:
        """The program of a selection, and the nodes of its hot part that are values of the `followed` classes."""
        live = tuple(node for node in graph.inputs if not node["frozen"])
        frozen = tuple(node for node in graph.inputs if node["frozen"])
        stem = PREPARED
        while any(str(node["name"]).startswith(stem) for node in live):
            stem += "_"
        standins: dict[Node, Node] = {}

        def stored(leaf: FrozenLeaf, order: Order) -> Node:
            value = arrange(self.frozen.node(leaf.source), tuple(range(len(order))), order)
            standin = standins.get(value)
            if standin is None:
                standin = make_input(f"{stem}{len(standins)}", value.shape, value.dtype, frozen=True)
                standins[value] = standin
            return standin

        outputs, classes = self.emit(selection, stored)
        for have, want in zip(outputs, graph.outputs, strict=True):
            if have.types != want.types:
                raise SuperoptError(f"the lowered program returns {have.types}, the original {want.types}")
        count = len(outputs)
        marked = {node: c for node, c in classes.items() if followed[c]}
        outputs = (*outputs, *marked)  # the same passes lead to these
        prepared = tuple(standins)
        if expand is not None:
            outputs = expand_macros(outputs, expand)
            prepared = expand_macros(prepared, expand)
        hot = Graph((*live, *standins.values()), outputs)
        if (frozen or prepared) and expand is not None:
            # results of macros on prepared tensors alone are prepared, too
            inner = split(hot, frozen_cut(hot))
            if inner.prepare is not None:
                values = dict(zip(standins.values(), prepared, strict=True))
                prepared, hot = replace(inner.prepare.outputs, values), inner.hot
        prepare = Graph(frozen, prepared, graph.constants) if frozen or prepared else None
        lowered = dict(zip(hot.outputs[count:], marked.values(), strict=True))
        return Program(prepare, Graph(hot.inputs, hot.outputs[:count])), lowered
