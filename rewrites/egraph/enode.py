"""References, e-nodes and their origins, and the canonical forms of e-nodes.

In the canonical form, permutations are pulled out of the children as far as the attributes can absorb them.  For each
op, `canon(eg, number, spec, children)` gives an e-node and a permutation p with

    value(op{attrs}(children)) = transpose(value(e-node), p)

such that terms that differ only in the order of axes become one e-node.

* elementwise: the permutation of the first non-scalar child is divided out of all.  Operands of commutative ops are
  sorted, scalars last.
* others: the facet `axes` of the op's entry lays the op on children in natural order, as far as attributes can say
  that.  Operands of products are sorted.
* macros follow the op that they lower.  Control flow and opaque nodes keep the permutations on their children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rewrites.egraph.perm import CLASS_MASK, PERM_BITS, PERM_MASK, PERMS, compose, intern, inverse, inverse_of, perm_of
from superopt.errors import SuperoptError
from superopt.ir.graph import Attrs
from superopt.ir.ops import table
from superopt.ir.ops.axes import permuted
from superopt.ir.ops.table import ELEMENTWISE
from superopt.ir.scalar import COMMUTATIVE
from superopt.ir.types import TensorType

if TYPE_CHECKING:
    from rewrites.egraph.graph import EGraph

Ref: TypeAlias = int
ENode: TypeAlias = tuple[int, ...]
Canon: TypeAlias = "Callable[[EGraph, int, OpAttrs, list[Ref]], tuple[ENode, int]]"


class LimitReachedError(SuperoptError):
    """Raised when growth reaches a limit; `reason` is `enodes` or `seconds`.  The e-graph stays consistent."""

    code = "SO421"

    def __init__(self, reason: str) -> None:
        super().__init__(f"e-graph growth stopped by its limit of {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Origin:
    """The rule instance that introduced an e-node or a union."""

    rule: str
    step: int
    roots: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class CanonicalForm:
    """Canonical form of an op on children in given orders: attributes, children, and the outer permutation."""

    attrs: Attrs
    operands: tuple[tuple[int, int], ...]
    perm: int


class OpAttrs:
    """An interned op with its attributes."""

    __slots__ = ("attrs", "axes", "canon", "elementwise", "forms", "op", "values")

    def __init__(self, op: str, attrs: Attrs) -> None:
        self.op = op
        self.attrs = attrs
        self.values: dict[str, Any] = dict(attrs)
        self.elementwise = op in ELEMENTWISE
        self.axes = table.lookup(op).axes
        self.forms: dict[tuple[int, ...], CanonicalForm | None] = {}
        self.canon = canon_of(op)

    def infer(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> tuple[TensorType, ...]:
        """Types of the results; scalar operands of elementwise ops count as broadcast, a macro as its op.

        Raises:
            ShapeError: the op does not accept these operands.
        """
        if self.elementwise:
            full = max(shapes, key=len)
            shapes = [s or full for s in shapes]
        operands = tuple([TensorType(s, d) for s, d in zip(shapes, dtypes, strict=True)])
        if self.op == "macro":
            return table.infer(self.values["op"], operands, self.values["attrs"])
        return table.infer(self.op, operands, self.attrs)

    def form(self, eg: EGraph, children: Sequence[Ref], *, exchanged: bool = False) -> CanonicalForm | None:
        """The op laid on the classes of its children; `exchanged`: these are its operands in the other order."""
        parts = [part for r in children for part in (r & PERM_MASK, eg.rank_of_class(r >> PERM_BITS))]
        key = (exchanged, *parts)
        if key not in self.forms:
            self.forms[key] = self._laid(parts[::2], parts[1::2], exchanged)
        return self.forms[key]

    def _laid(self, perms: Sequence[int], ranks: Sequence[int], exchanged: bool) -> CanonicalForm | None:
        assert self.axes is not None
        attrs, turned = self.values, None
        if exchanged:
            commuted = self.axes.commuted(attrs, ranks[::-1])
            if commuted is None:
                return None
            attrs, turned = commuted
        lies = [inverse_of(perm_of(p, rank)) for p, rank in zip(perms, ranks, strict=True)]
        orders = self.axes.takes(attrs, lies)
        laid = self.axes.laid(attrs, orders)
        operands = tuple([(j, compose(perms[j], intern(orders[j]))) for j in laid.operands])
        order = laid.order if turned is None else permuted(turned, laid.order)
        values = tuple([(name, laid.attrs[name]) for name, _ in self.attrs])
        return CanonicalForm(values, operands, intern(inverse_of(order)))


# ---- canonical forms


def canon_of(op: str) -> Canon:
    """The function that canonicalises e-nodes of an op; without the facet `axes` they keep their children."""
    if op in COMMUTATIVE:
        return _commutative
    if op in ELEMENTWISE:
        return _elementwise
    if op == "macro":
        return _macro
    return _verbatim if table.lookup(op).axes is None else _by_axes


def _verbatim(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    return (number, *children), 0


def _divide(children: list[Ref], p: int, ranks: Sequence[int]) -> list[Ref]:
    """The children with `p` divided out of all that are not scalars."""
    q = inverse(p)
    return [
        r if not rank else r & CLASS_MASK | compose(r & PERM_MASK, q) for r, rank in zip(children, ranks, strict=True)
    ]


# ---- elementwise


def _elementwise(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    for r in children:
        if eg.rank_of_class(r >> PERM_BITS):
            p = r & PERM_MASK
            if p:
                children = _divide(children, p, [eg.rank_of_class(x >> PERM_BITS) for x in children])
            return (number, *children), p
    return (number, *children), 0


def _commutative(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    a, b = children
    ra, rb = eg.rank_of_class(a >> PERM_BITS), eg.rank_of_class(b >> PERM_BITS)
    if (a >> PERM_BITS) == (b >> PERM_BITS):
        return _twins(number, a, b)
    if (not ra, a >> PERM_BITS) > (not rb, b >> PERM_BITS):
        a, b, ra, rb = b, a, rb, ra
    p = a & PERM_MASK
    if p and rb:
        b = b & CLASS_MASK | compose(b & PERM_MASK, inverse(p))
    return (number, a & CLASS_MASK, b), p


def _twins(number: int, a: Ref, b: Ref) -> tuple[ENode, int]:
    """Canonical form of f(x^p, x^q), both operands of one class.

    (x, x^s) and (x, x^inverse(s)) differ by an outer permutation alone; the smaller one is kept.
    """
    p, q = a & PERM_MASK, b & PERM_MASK
    base = a & CLASS_MASK
    s, t = compose(q, inverse(p)), compose(p, inverse(q))
    if s and t and PERMS[t] < PERMS[s]:
        s, p = t, q
    return (number, base, base | s), p


# ---- all other ops


def _by_axes(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    form = spec.form(eg, children)
    assert form is not None, "in their own order operands always have a form"
    if len(children) == 2 and (a := children[0] >> PERM_BITS) >= (b := children[1] >> PERM_BITS):
        other = spec.form(eg, children[::-1], exchanged=True)
        if other is not None and (a > b or other.attrs < form.attrs):
            form, children = other, children[::-1]
    return (eg.intern_op(spec.op, form.attrs), *[children[j] & CLASS_MASK | p for j, p in form.operands]), form.perm


def _macro(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    """The canonical form of the op that the macro stands for, under the macro's name."""
    inner = eg.intern_op(spec.values["op"], spec.values["attrs"])
    node, p = eg.canonical((inner, *children))
    attrs = tuple([(name, eg.attrs_of(node) if name == "attrs" else value) for name, value in spec.attrs])
    return (eg.intern_op(spec.op, attrs), *node[1:]), p
