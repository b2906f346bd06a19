"""The e-graph: all equivalent forms found so far, each tensor once whatever the order of its axes.

A *reference* is one int, `class << PERM_BITS | permutation`: its value is the class's value transposed by an interned
permutation.  Union-find edges carry permutations too (a labelled union-find), so that a transpose exists nowhere as
an e-node and a class holds every layout of a tensor at once:

    value(ref) = transpose(value(class), perm),          uf[c] = r   means   value(c) = value(r).

An *e-node* is a tuple of ints: an interned (op, attributes) pair, then child references.  It is stored in canonical
form (`rewrites.egraph.enode`), which may pull a permutation out; hash-consing therefore maps an e-node to the
*reference* that it equals.  `add` first applies the normal forms (`rewrites.egraph.normal`), then type-checks and
inserts. Congruence is repaired by `rebuild` after a batch of unions, as in egg (Willsey et al., POPL 2021).

Analyses kept per class: shape, dtype, `frozen` (some e-node has only frozen children) and the scalar constant that
fills the tensor, if any.  E-nodes that contain their own class are not listed in it: no finite program needs them.
A union of a class with itself under another permutation (a symmetric tensor) is skipped and counted: sound, incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rewrites.egraph import normal
from rewrites.egraph.enode import ENode, LimitReachedError, OpAttrs, Origin, Ref
from rewrites.egraph.perm import CLASS_MASK, PERM_BITS, PERM_MASK, PERMS, compose, intern, inverse, perm_of
from superopt.errors import ShapeError
from superopt.ir.graph import Attrs
from superopt.ir.ops import table
from superopt.ir.types import TensorType
from superopt.machine.deadline import Deadline

__all__ = ["EGraph", "ENode", "LimitReachedError", "Origin", "Ref"]


class EGraph:
    """Equivalence classes of tensor terms modulo transposition."""

    def __init__(self, *, max_enodes: int | None = None, deadline: Deadline | None = None, exact: bool = False) -> None:
        """Make an empty e-graph; it grows until `deadline`; with `exact`, only laws that keep bits hold in it."""
        self.max_enodes, self.deadline, self.exact = max_enodes, deadline, exact
        self.roots: list[Ref] = []
        self.inputs: dict[str, Ref] = {}
        self.imported: list[Ref] = []  # every node of the program in topological order, in its own axis order
        self.origin: dict[ENode, Origin] = {}
        self.unions: list[tuple[Ref, Ref, Origin | None]] = []
        self.current_origin: Origin | None = None
        self.dirty: set[int] = set()
        self.merged: set[int] = set()
        self.merge_keys: set[tuple[str, int, tuple[int, ...]]] = set()
        self.symmetric_unions = 0
        self._uf: list[Ref] = []
        self._nodes: list[dict[ENode, None]] = []
        self._parents: list[dict[ENode, None]] = []
        self._shape: list[tuple[int, ...]] = []
        self._dtype: list[str] = []
        self._frozen: list[bool] = []
        self._value: list[bool | int | float | None] = []
        self._results: dict[int, tuple[TensorType, ...]] = {}
        self._hashcons: dict[ENode, Ref] = {}
        self._hidden: set[ENode] = set()
        self._pending: list[dict[ENode, None]] = []
        self._ops: list[OpAttrs] = []
        self._op_ids: dict[tuple[str, Attrs | str], int] = {}
        self._types: dict[tuple[Any, ...], tuple[TensorType, ...]] = {}

    # ---- references

    def find(self, ref: Ref) -> Ref:
        """The same value as a reference to the root of its class; compresses the path."""
        uf = self._uf
        c = ref >> PERM_BITS
        up = uf[c]
        if up == c << PERM_BITS:
            return ref
        path = [c]
        c = up >> PERM_BITS
        while uf[c] != c << PERM_BITS:
            path.append(c)
            c = uf[c] >> PERM_BITS
        path.pop()  # points at the root already
        for x in reversed(path):  # from the root downwards: labels above are final when they are composed with
            step = uf[x]
            up = uf[step >> PERM_BITS]
            uf[x] = up & CLASS_MASK | compose(up & PERM_MASK, step & PERM_MASK)
        up = uf[ref >> PERM_BITS]
        return up & CLASS_MASK | compose(up & PERM_MASK, ref & PERM_MASK)

    def find_class(self, ref: Ref) -> int:
        """The root class of a reference."""
        return self.find(ref) >> PERM_BITS

    def transpose(self, ref: Ref, perm: Sequence[int]) -> Ref:
        """The reference to `numpy.transpose(value, perm)`."""
        return ref & CLASS_MASK | compose(ref & PERM_MASK, intern(perm))

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Shape of the value."""
        ref = self.find(ref)
        base = self._shape[ref >> PERM_BITS]
        p = ref & PERM_MASK
        return tuple([base[i] for i in PERMS[p]]) if p else base

    def dtype(self, ref: Ref) -> str:
        """Dtype of the value."""
        return self._dtype[self.find(ref) >> PERM_BITS]

    def type(self, ref: Ref) -> TensorType:
        """Type of the value."""
        return TensorType(self.shape(ref), self.dtype(ref))

    def result_types(self, ref: Ref) -> tuple[TensorType, ...]:
        """Types of all results of the class: one, but for nodes with several results."""
        many = self._results.get(self.find(ref) >> PERM_BITS)
        return (self.type(ref),) if many is None else many

    def frozen(self, ref: Ref) -> bool:
        """Whether the value is computable from frozen inputs and constants alone."""
        return self._frozen[self.find(ref) >> PERM_BITS]

    def scalar(self, ref: Ref) -> bool | int | float | None:
        """The constant that fills the tensor, or None."""
        return self._value[self.find(ref) >> PERM_BITS]

    # ---- classes and e-nodes

    def classes(self) -> list[int]:
        """Root classes in order of creation."""
        return [c for c, up in enumerate(self._uf) if up == c << PERM_BITS]

    def enodes(self, cls: int) -> Sequence[ENode]:
        """E-nodes of a class, oldest first."""
        return tuple(self._nodes[self.find(cls << PERM_BITS) >> PERM_BITS])

    def rank_of_class(self, cls: int) -> int:
        """Rank of a root class."""
        return len(self._shape[cls])

    def parents(self, cls: int) -> Sequence[ENode]:
        """E-nodes that have the class as a child."""
        return tuple(self._parents[self.find(cls << PERM_BITS) >> PERM_BITS])

    def op_of(self, enode: ENode) -> str:
        """Op of an e-node."""
        return self._ops[enode[0]].op

    def attrs_of(self, enode: ENode) -> Attrs:
        """Attributes of an e-node."""
        return self._ops[enode[0]].attrs

    def values_of(self, enode: ENode) -> dict[str, Any]:
        """Attributes of an e-node as a dict, not to be changed."""
        return self._ops[enode[0]].values

    def ref_of(self, enode: ENode) -> Ref:
        """The reference with the value of the e-node."""
        return self.find(self._hashcons[enode])

    def __contains__(self, enode: ENode) -> bool:
        return enode in self._hashcons

    @property
    def enode_count(self) -> int:
        """Number of e-nodes."""
        return len(self._hashcons)

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return len(self.classes())

    def views(self, ref: Ref, op: str) -> Iterator[tuple[ENode, tuple[int, ...]]]:
        """The e-nodes of this op in the class: value(ref) = transpose(value(e-node), perm)."""
        ref = self.find(ref)
        cls = ref >> PERM_BITS
        for node in tuple(self._nodes[cls]):
            if self._ops[node[0]].op == op:
                yield node, perm_of(self.perm_from(node, ref), len(self._shape[cls]))

    def perm_from(self, enode: ENode, ref: Ref) -> int:
        """Name of the permutation p with value(ref) = transpose(value(e-node), p), for an e-node of ref's class."""
        own = self.find(self._hashcons[enode])
        return compose(inverse(own & PERM_MASK), self.find(ref) & PERM_MASK)

    # ---- construction

    def add(self, op: str, /, *children: Ref, **attrs: Any) -> Ref:
        """The reference to `op{attrs}(children)` in normal form.

        Raises:
            ShapeError: the op does not accept these operand types or attributes.
            LimitReachedError: the e-graph is full or out of time.
        """
        return normal.construct(self, op, children, table.canonical(op, attrs))

    mk = add

    def add_node(self, op: str, children: Sequence[Ref], attrs: Attrs) -> Ref:
        """As `add`, with attributes that are already canonical."""
        return normal.construct(self, op, children, attrs)

    def intern_op(self, op: str, attrs: Attrs) -> int:
        """Number of an op with its attributes."""
        # 1 == 1.0 == True and 0.0 == -0.0 in Python: literals are keyed by their printed value
        key = (op, repr(attrs) if op == "literal" else attrs)
        number = self._op_ids.get(key)
        if number is None:
            number = self._op_ids[key] = len(self._ops)
            self._ops.append(OpAttrs(op, attrs))
        return number

    def insert(self, op: str, attrs: Attrs, children: Sequence[Ref]) -> Ref:
        """The reference to an e-node as it stands, without normal forms (canonicalised and type-checked)."""
        node, p = self.canonical((self.intern_op(op, attrs), *children))
        ref = self._hashcons.get(node)
        ref = self._new_class(node) if ref is None else self.find(ref)
        return ref & CLASS_MASK | compose(ref & PERM_MASK, p) if p else ref

    def canonical(self, node: ENode) -> tuple[ENode, int]:
        """The canonical e-node and a permutation p: value(node) = transpose(value(canonical), p)."""
        uf, find = self._uf, self.find
        children = [r if uf[r >> PERM_BITS] == r & CLASS_MASK else find(r) for r in node[1:]]
        spec = self._ops[node[0]]
        return spec.canon(self, node[0], spec, children)

    def _new_class(self, node: ENode) -> Ref:
        """Make a class of one e-node; raise where the limits of the graph are reached."""
        if self.max_enodes is not None and len(self._hashcons) >= self.max_enodes:
            raise LimitReachedError("enodes")
        if self.deadline is not None and not len(self._hashcons) & 63 and self.deadline.is_over:
            raise LimitReachedError("seconds")
        types = self._infer(node)
        spec = self._ops[node[0]]
        cls = len(self._uf)
        ref = cls << PERM_BITS
        self._uf.append(ref)
        self._nodes.append({node: None})
        self._parents.append({})
        if len(types) == 1:
            self._shape.append(types[0].shape)  # type: ignore[arg-type]  # sizes are ints in an e-graph
            self._dtype.append(types[0].dtype)
        else:
            self._shape.append(())
            self._dtype.append("tuple")
            self._results[cls] = types
        self._frozen.append(self._is_frozen(node, spec))
        self._value.append(
            spec.values["value"] if spec.op == "literal"
            else self._value[node[1] >> PERM_BITS] if spec.op == "broadcast_in_dim"
            else None
        )  # fmt: skip
        self._hashcons[node] = ref
        for child in node[1:]:
            self._parents[child >> PERM_BITS][node] = None
        if self.current_origin is not None:
            self.origin[node] = self.current_origin
        self.dirty.add(cls)
        return ref

    def _infer(self, node: ENode) -> tuple[TensorType, ...]:
        """Types of an e-node, cached by op and operand types."""
        spec = self._ops[node[0]]
        if spec.op == "result":
            index: int = spec.values["index"]
            return (self.result_types(node[1])[index],)
        shapes = [self.shape(child) for child in node[1:]]
        dtypes = [self._dtype[child >> PERM_BITS] for child in node[1:]]
        key = (node[0], *shapes, *dtypes)
        types = self._types.get(key)
        if types is None:
            types = self._types[key] = spec.infer(shapes, dtypes)
        return types

    def _is_frozen(self, node: ENode, spec: OpAttrs) -> bool:
        if spec.op == "input":
            return bool(spec.values["frozen"])
        if spec.op == "opaque":  # never moved ahead of time: nothing is known about it
            return False
        return all(self._frozen[self.find(child) >> PERM_BITS] for child in node[1:])

    # ---- unions

    def union(self, a: Ref, b: Ref, origin: Origin | None = None) -> bool:
        """Record that two references are equal; True if the e-graph changed.  Call `rebuild` after a batch.

        Raises:
            ShapeError: the two values differ in type.
        """
        a, b = self.find(a), self.find(b)
        ca, cb = a >> PERM_BITS, b >> PERM_BITS
        if ca == cb:
            if a != b:
                self.symmetric_unions += 1
            return False
        if self.result_types(a) != self.result_types(b):
            raise ShapeError(f"union of {self.type(a)} with {self.type(b)}" + (f" by {origin.rule}" if origin else ""))
        if len(self._parents[ca]) + len(self._nodes[ca]) < len(self._parents[cb]) + len(self._nodes[cb]):
            a, b, ca, cb = b, a, cb, ca
        self.unions.append((a, b, origin))
        self._uf[cb] = a & CLASS_MASK | compose(a & PERM_MASK, inverse(b & PERM_MASK))
        if self._value[ca] is None:
            self._value[ca] = self._value[cb]
        if self._frozen[ca] != self._frozen[cb]:
            loser = cb if self._frozen[ca] else ca
            self._frozen[ca] = self._frozen[cb] = True
            self._push_frozen(loser)
        mine = self._nodes[ca]
        for node in self._nodes[cb]:
            if all(self.find(child) >> PERM_BITS != ca for child in node[1:]):
                mine[node] = None
        self._nodes[cb] = {}
        self._pending.append(self._parents[cb])
        self._parents[cb] = {}
        self.dirty.discard(cb)
        self.dirty.add(ca)
        return True

    def _push_frozen(self, cls: int) -> None:
        """Propagate to the classes above that this class has become frozen."""
        self.dirty.add(self.find_class(cls << PERM_BITS))
        stack = list(self._parents[cls])
        while stack:
            node = stack.pop()
            ref = self._hashcons.get(node)
            if ref is None:
                continue
            above = self.find(ref) >> PERM_BITS
            if not self._frozen[above] and self._is_frozen(node, self._ops[node[0]]):
                self._frozen[above] = True
                self.dirty.add(above)
                stack.extend(self._parents[above])

    def rebuild(self) -> None:
        """Restore canonical e-nodes and congruence after unions."""
        while self._pending:
            pending, self._pending = self._pending, []
            for parents in pending:
                for node in parents:
                    self._repair(node)

    def _repair(self, node: ENode) -> None:
        """Replace an e-node, one of whose children was united into another class, by its canonical form."""
        ref = self._hashcons.pop(node, None)
        if ref is None:
            return
        fresh, p = self.canonical(node)
        ref = self.find(ref)
        if p:
            ref = ref & CLASS_MASK | compose(ref & PERM_MASK, inverse(p))
        cls = ref >> PERM_BITS
        hidden = node in self._hidden
        listed = node in self._nodes[cls]
        self._hidden.discard(node)
        self._nodes[cls].pop(node, None)
        for child in node[1:]:
            self._parents[self.find(child) >> PERM_BITS].pop(node, None)
        origin = self.origin.pop(node, None)
        known = self._hashcons.get(fresh)
        if known is not None:
            if origin is None:  # the program's own form stays the program's
                self.origin.pop(fresh, None)
            self.union(known, ref)
            if listed and fresh in self._hidden:
                self._hidden.discard(fresh)
                self._list(fresh)
            return
        self._hashcons[fresh] = ref
        if origin is not None:
            self.origin[fresh] = origin
        for child in fresh[1:]:
            self._parents[child >> PERM_BITS][fresh] = None
        if hidden:
            self._hidden.add(fresh)
        else:
            self._list(fresh)
        if not self._frozen[cls] and self._is_frozen(fresh, self._ops[fresh[0]]):
            self._frozen[cls] = True
            self._push_frozen(cls)
        self.dirty.add(cls)

    def _list(self, node: ENode) -> None:
        """List an e-node in its class, unless it contains that class."""
        cls = self.find(self._hashcons[node]) >> PERM_BITS
        if all(self.find(child) >> PERM_BITS != cls for child in node[1:]):
            self._nodes[cls][node] = None

    def hide(self, enode: ENode) -> None:
        """Remove an e-node from the list of its class, which keeps others; hash-consing still finds the class by it."""
        del self._nodes[self.find_class(self._hashcons[enode])][enode]
        self._hidden.add(enode)
