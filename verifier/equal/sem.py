"""Denotations of rule terms, by the entries of the op table for which they stand, over named axes.

    at(term, {label: index}) -> scalar.

`rewrites.language.entries` translates a term into an entry, with its axes and attributes.  The entry's own denotation
(`superopt.ir.ops`) computes its values, in any algebra.  Over symbols it gives the terms of the prover.  Over numbers
it must agree with the reference interpreter on every graph that is built from the rule, which the test of this file
checks; this file is part of the trust base.  It defines only the meaning of names, which are no ops: an absent axis has
size 1, a broadcast reads its operand without the new axis, a fold binds an index that attributes may mention.  Shapes
come from `rewrites.language.shapes`, the matcher's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rewrites.language.entries import NUMBER, POSITION, TermEntry, entry_of
from rewrites.language.kinds import kind_of
from rewrites.language.named import Env, NamedShape, labels_of
from rewrites.language.shapes import shape
from rewrites.language.term import Term, halves, stem
from superopt.ir.algebra import Reader
from superopt.ir.ops.record import Site
from superopt.ir.ops.table import lookup
from superopt.ir.types import TensorType
from verifier.equal.conditions import Int

S = TypeVar("S")
AxisPositions: TypeAlias = "Mapping[Any, Int]"
AxisLabel: TypeAlias = Any
"""An axis; None is an axis of size 1 that no term has."""
TypedReader: TypeAlias = "tuple[Reader, TensorType]"


def dtype_of(kind: str) -> str:
    """The dtype in which tensors of a kind are denoted."""
    return {"bool": "bool", "int": POSITION}.get(kind, NUMBER)


@dataclass
class Meaning(Generic[S]):
    """The meaning of the terms of one instance.

    Attributes:
        env: axes, sizes and attributes.
        k: scalars and indices, an algebra whose sizes may be symbols.
        read: the entry of an input.
        metas: reducer meta-variable -> the reducer, elementwise meta-variable -> the op; one that is absent is the
            uninterpreted function `$f`.
    """

    env: Env
    k: Any
    read: Callable[[str, Sequence[Int]], S]
    metas: Mapping[str, str]
    _shapes: dict[Term, NamedShape] = field(default_factory=dict[Term, NamedShape])
    _entries: dict[Term, TermEntry] = field(default_factory=dict[Term, TermEntry])
    _kinds: dict[Term, str] = field(default_factory=dict[Term, str])

    def shape(self, t: Term) -> NamedShape:
        """Named shape of a term."""
        if t not in self._shapes:
            self._shapes[t] = shape(t, self.env, [], self._shapes)
        return self._shapes[t]

    def at(self, t: Term, ix: AxisPositions) -> S:
        """The scalar at one index; labels that the term does not have are ignored."""
        return _MEANING.get(t.op, _entry)(self, t, ix)

    def of(self, t: Term, j: int, ix: AxisPositions) -> S:
        """Operand j at an index."""
        return self.at(t.args[j], ix)

    def axes(self, roles: Sequence[str]) -> list[AxisLabel]:
        """Axes of several roles."""
        return labels_of(self.env, roles)

    def size(self, t: Term, label: AxisLabel) -> Any:
        """Size of a term along an axis; an absent axis has size 1."""
        return self.shape(t).get(label, 1)

    def named(self, name: str) -> str:
        """A reducer or function, with a meta-variable replaced by its binding where it has one."""
        return self.metas.get(name, name)

    def typed(self, t: Term, labels: Sequence[AxisLabel]) -> TensorType:
        """The type of a term as a tensor with these axes."""
        sizes = tuple([self.size(t, x) for x in labels])
        return TensorType(sizes, dtype_of(kind_of(self.env.rule.kinds, t, self._kinds)))

    def operand(self, t: Term, labels: Sequence[AxisLabel], ix: AxisPositions) -> TypedReader:
        """A term as an operand tensor with these axes, at a fixed index of all others."""
        return lambda *i: self.at(t, {**ix, **dict(zip(labels, i, strict=True))}), self.typed(t, labels)

    def position(self, index: Int) -> TypedReader:
        """An index as a scalar tensor."""
        return lambda: self.k.from_index(index, POSITION), TensorType((), POSITION)

    def entry(self, t: Term) -> TermEntry:
        """The entry of the op table for which a term stands."""
        value = self._entries.get(t)
        if value is None:
            value = entry_of(t, self.env, [self.shape(a) for a in t.args], self.metas)
            assert value is not None
            self._entries[t] = value
        return value

    def apply(self, entry: TermEntry, t: Term, ix: AxisPositions) -> S:
        """The value of an entry of the op table, applied along some axes of a term, at an index of the term."""
        operands = [self.operand(a, labels, ix) for a, labels in zip(t.args, entry.operands, strict=True)]
        operands += map(self.position, entry.positions)
        site = Site(tuple([kind for _, kind in operands]), self.typed(t, entry.out), entry.attrs)
        index = tuple([0 if x is None else ix[x] for x in entry.out])
        at = lookup(entry.op).at
        assert at is not None
        return at(self.k, index, [read for read, _ in operands], site)

    def over(self, kind: str, sizes: Mapping[AxisLabel, Int], body: Callable[[dict[AxisLabel, Int]], S]) -> S:
        """Fold over the box of several axes."""

        def at(*index: Any) -> S:
            return body(dict(zip(sizes, index, strict=True)))

        return self.k.reduce(kind, list(sizes.values()), at, NUMBER)

    def inside(self, attrs: Mapping[tuple[str, AxisLabel], Int]) -> Meaning[S]:
        """The meaning under a binder of indices that attributes may mention."""
        return Meaning(self.env.with_attrs(dict(attrs)), self.k, self.read, self.metas)


# ---- names: variables, literals, broadcasts, binders


def _var(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    tokens = m.env.rule.vars[t["name"]]
    return m.read(t["name"], [ix[label] for tok in tokens for label in m.env.labels[stem(tok)]])


def _lit(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    value = t["value"]
    if value[0] == "n":
        return m.k.const(value[1], m.typed(t, ()).dtype)
    return m.k.from_index(m.env.value(value), NUMBER)


def _same(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    return m.of(t, 0, ix)


def _ren(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    old, new = (m.env.labels[r] for r in t["over"])
    return m.of(t, 0, {**ix, **{a: ix[b] for a, b in zip(old, new, strict=True)}})


def _diag(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    same = [m.k.eq(ix[i], ix[j]) for i, j in zip(*(m.env.labels[r] for r in t["over"]), strict=True)]
    return m.k.where(m.k.all(*same), lambda: m.of(t, 0, ix), lambda: m.k.const(0.0, NUMBER))


def _fold(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    labels = m.env.labels[m.env.rule.owner[t["bound"]]]

    def body(k: dict[AxisLabel, Int]) -> S:
        return m.inside({(t["idx"], label): k[label] for label in labels}).of(t, 0, ix)

    return m.over(t["kind"], {label: m.env.look(t["bound"], label) for label in labels}, body)


def _stack(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    bound = m.env.labels[m.env.rule.owner[t["bound"]]]
    index = {(t["idx"], axis): ix[label] for label, axis in zip(m.axes(t["over"]), bound, strict=True)}
    return m.inside(index).of(t, 0, ix)


# ---- matrices


def _inverse(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    rows, columns = (m.axes(roles) for roles in halves(t))

    def entry(*place: Any) -> S:
        return m.of(t, 0, {**ix, **dict(zip((*rows, *columns), place, strict=True))})

    sizes = [tuple([m.size(t.args[0], x) for x in labels]) for labels in (rows, columns)]
    return m.k.inverse(*sizes, entry, [ix[x] for x in (*columns, *rows)], NUMBER)


def _solve(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    rows = m.axes(halves(t)[0])

    def body(row: dict[AxisLabel, Int]) -> S:
        return m.k.op("mul", NUMBER, _inverse(m, t, {**ix, **row}), m.of(t, 1, {**ix, **row}))

    return m.over("sum", {x: m.size(t.args[0], x) for x in rows}, body)


# ---- entries of the op table


def _ew(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    f = m.named(t["f"])
    if f in m.env.rule.metas:
        return m.k.op(f"${f}", NUMBER, *[m.at(a, ix) for a in t.args])
    attrs = {a.name: a.default for a in lookup(f).attrs} | dict(t.get("params", ()))
    return m.apply(TermEntry(f, ((),) * len(t.args), (), attrs), t, ix)


def _entry(m: Meaning[S], t: Term, ix: AxisPositions) -> S:
    entry = m.entry(t)
    if not entry.summed:
        return m.apply(entry, t, ix)
    return m.over("sum", {x: m.size(t.args[0], x) for x in entry.summed}, lambda k: m.apply(entry, t, {**ix, **k}))


_MEANING: dict[str, Callable[[Meaning[Any], Term, AxisPositions], Any]] = {
    "var": _var, "lit": _lit, "view": _same, "lay": _same, "bcast": _same, "expand": _same, "unit": _same, "ren": _ren,
    "diag": _diag, "fold": _fold, "stack": _stack, "ew": _ew, "inverse": _inverse, "solve": _solve,
}  # fmt: skip
"""Denotations of terms about names; all other terms stand for entries."""
