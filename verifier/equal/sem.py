"""What a rule's terms mean: which entry of the op table a term is, over which of its named axes.

    at(term, {label: index}) -> scalar

An op acts on the axes that it names and is mapped over all others: `pad(A, v, n(1, 1))` is the table's `pad` of a
vector along n, for every index of the other axes of A.  So what stands here is the name of an entry, the axes of each
operand in an order, and the attributes in that order; what the entry computes is said by its denotation alone
(`superopt.ir.ops`), in any algebra: over symbols it is what the prover proves things about, over numbers it must agree
with the reference interpreter on every graph that is built from the rule (the test of this file, and part of the trust
base).  Names themselves are no ops: an absent axis has size 1, a broadcast reads its operand without the new axis, a
fold binds an index that attributes may mention.  Shapes come from `rewrites.language.named.shape`, the matcher's own
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rewrites.language.kinds import kind_of
from rewrites.language.named import Env, NamedShape, labels_of, per_axis, shape
from rewrites.language.term import PHYSICAL, Term, stem
from superopt.ir.algebra import Reader
from superopt.ir.ops.record import Site
from superopt.ir.ops.table import lookup
from superopt.ir.types import TensorType
from verifier.equal.conditions import Int

S = TypeVar("S")
Where: TypeAlias = "Mapping[Any, Int]"
Label: TypeAlias = Any
"""An axis; None is an axis of size 1 that no term has."""
Operand: TypeAlias = "tuple[Reader, TensorType]"
NUMBER, POSITION = "float64", "int32"
"""Types in which numbers and indices of a rule are denoted: nothing is rounded or converted on the way."""


def dtype_of(kind: str) -> str:
    """The type in which tensors of a kind are denoted."""
    return {"bool": "bool", "int": POSITION}.get(kind, NUMBER)


@dataclass
class Meaning(Generic[S]):
    """The meaning of the terms of one instance.

    Attributes:
        env: axes, sizes and attributes.
        k: scalars and indices, an algebra whose sizes may be symbols.
        read: the entry of an input.
        metas: reducer meta-variable -> the reducer, elementwise meta-variable -> the op; one that is not named is the
            scalar function `$f`.
    """

    env: Env
    k: Any
    read: Callable[[str, Sequence[Int]], S]
    metas: Mapping[str, str]
    _shapes: dict[Term, NamedShape] = field(default_factory=dict[Term, NamedShape])
    _kinds: dict[Term, str] = field(default_factory=dict[Term, str])

    def shape(self, t: Term) -> NamedShape:
        """Named shape of a term."""
        if t not in self._shapes:
            self._shapes[t] = shape(t, self.env, [])
        return self._shapes[t]

    def at(self, t: Term, ix: Where) -> S:
        """The scalar at one index; labels that the term does not have are ignored."""
        return _MEANING[t.op](self, t, ix)

    def of(self, t: Term, j: int, ix: Where) -> S:
        """Operand j at an index."""
        return self.at(t.args[j], ix)

    def axes(self, roles: Sequence[str]) -> list[Label]:
        """Axes of several roles."""
        return labels_of(self.env, roles)

    def size(self, t: Term, label: Label) -> Any:
        """Size of a term along an axis; an absent axis has size 1."""
        return self.shape(t).get(label, 1)

    def named(self, name: str) -> str:
        """A reducer or function, meta-variables replaced where that is possible."""
        return self.metas.get(name, name)

    def typed(self, t: Term, labels: Sequence[Label]) -> TensorType:
        """The type of a term, taken along some axes."""
        sizes = tuple([self.size(t, x) for x in labels])
        return TensorType(sizes, dtype_of(kind_of(self.env.rule.kinds, t, self._kinds)))

    def operand(self, t: Term, labels: Sequence[Label], ix: Where) -> Operand:
        """A term along some axes, at an index of all others."""
        return lambda *i: self.at(t, {**ix, **dict(zip(labels, i, strict=True))}), self.typed(t, labels)

    def position(self, index: Int) -> Operand:
        """An index as a scalar tensor."""
        return lambda: self.k.from_index(index, POSITION), TensorType((), POSITION)

    def apply(
        self, op: str, t: Term, labels: Sequence[Label], ix: Where, operands: Sequence[Operand], **attrs: Any
    ) -> S:
        """What an entry of the op table computes along some axes of a term, at an index of the term."""
        entry = lookup(op)
        assert entry.at is not None
        assert attrs.keys() <= {a.name for a in entry.attrs}
        site = Site(
            tuple([kind for _, kind in operands]),
            self.typed(t, labels),
            {a.name: attrs.get(a.name, a.default) for a in entry.attrs},
        )
        index = tuple([0 if x is None else ix[x] for x in labels])
        return entry.at(self.k, index, [read for read, _ in operands], site)

    def along(self, op: str, t: Term, ix: Where, labels: Sequence[Label], **attrs: Any) -> S:
        """An entry that acts on some axes of its one operand and keeps them."""
        return self.apply(op, t, labels, ix, [self.operand(t.args[0], labels, ix)], **attrs)

    def over(self, kind: str, sizes: Mapping[Label, Int], body: Callable[[dict[Label, Int]], S]) -> S:
        """Fold over the box of several axes."""

        def at(*index: Any) -> S:
            return body(dict(zip(sizes, index, strict=True)))

        return self.k.reduce(kind, list(sizes.values()), at, NUMBER)

    def inside(self, attrs: Mapping[tuple[str, Label], Int]) -> Meaning[S]:
        """The meaning under a binder of indices that attributes may mention."""
        return Meaning(self.env.with_attrs(dict(attrs)), self.k, self.read, self.metas)


def _columns(windows: Mapping[Label, tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """Attributes per axis as one tuple over the axes for each attribute."""
    return [tuple([values[j] for values in windows.values()]) for j in range(count)]


# ---- names: variables, literals, broadcasts, binders


def _var(m: Meaning[S], t: Term, ix: Where) -> S:
    tokens = m.env.rule.vars[t["name"]]
    return m.read(t["name"], [ix[label] for tok in tokens for label in m.env.labels[stem(tok)]])


def _lit(m: Meaning[S], t: Term, ix: Where) -> S:
    value = t["value"]
    if value[0] == "n":
        return m.k.const(value[1], m.typed(t, ()).dtype)
    return m.k.from_index(m.env.value(value), NUMBER)


def _same(m: Meaning[S], t: Term, ix: Where) -> S:
    return m.of(t, 0, ix)


def _ren(m: Meaning[S], t: Term, ix: Where) -> S:
    old, new = (m.env.labels[r] for r in t["over"])
    return m.of(t, 0, {**ix, **{a: ix[b] for a, b in zip(old, new, strict=True)}})


def _diag(m: Meaning[S], t: Term, ix: Where) -> S:
    same = [m.k.eq(ix[i], ix[j]) for i, j in zip(*(m.env.labels[r] for r in t["over"]), strict=True)]
    return m.k.where(m.k.all(*same), lambda: m.of(t, 0, ix), lambda: m.k.const(0.0, NUMBER))


def _fold(m: Meaning[S], t: Term, ix: Where) -> S:
    labels = m.env.labels[m.env.rule.owner[t["bound"]]]

    def body(k: dict[Label, Int]) -> S:
        return m.inside({(t["idx"], label): k[label] for label in labels}).of(t, 0, ix)

    return m.over(t["kind"], {label: m.env.look(t["bound"], label) for label in labels}, body)


def _stack(m: Meaning[S], t: Term, ix: Where) -> S:
    bound = m.env.labels[m.env.rule.owner[t["bound"]]]
    index = {(t["idx"], axis): ix[label] for label, axis in zip(m.axes(t["over"]), bound, strict=True)}
    return m.inside(index).of(t, 0, ix)


# ---- entries of the op table


def _ew(m: Meaning[S], t: Term, ix: Where) -> S:
    f = m.named(t["f"])
    if f in m.env.rule.metas:
        return m.k.op(f"${f}", NUMBER, *[m.at(a, ix) for a in t.args])
    return m.apply(f, t, (), ix, [m.operand(a, (), ix) for a in t.args], **dict(t.get("params", ())))


def _dot(m: Meaning[S], t: Term, ix: Where) -> S:
    over = m.axes(t["over"])
    both = tuple(range(len(over)))
    operands = [m.operand(a, over, ix) for a in t.args]
    return m.apply(PHYSICAL["dot"], t, (), ix, operands, dimension_numbers=((both, both), ((), ())))


def _conv(m: Meaning[S], t: Term, ix: Where) -> S:
    """A convolution of one image with one output feature; over further input features it is summed."""
    windows = dict(per_axis(t, m.env))
    if not windows:
        return _dot(m, t, ix)
    features = m.axes(t["over"]) or [None]
    step, lo, hi, base, dil = _columns(windows, 5)
    labels = [None, features[0], *windows]
    order = (tuple(range(len(labels))),) * 3

    def body(k: dict[Label, Int]) -> S:
        operands = [m.operand(a, labels, {**ix, **k}) for a in t.args]
        return m.apply(
            PHYSICAL["conv"], t, [None, None, *windows], ix, operands, window_strides=step, lhs_dilation=base,
            rhs_dilation=dil, padding=tuple(zip(lo, hi, strict=True)), dimension_numbers=order,
        )  # fmt: skip

    return m.over("sum", {x: m.size(t.args[0], x) for x in features[1:]}, body)


def _red(m: Meaning[S], t: Term, ix: Where) -> S:
    over = m.axes(t["over"])
    operand = m.operand(t.args[0], over, ix)
    return m.apply(f"reduce_{m.named(t['kind'])}", t, (), ix, [operand], axes=tuple(range(len(over))))


def _cum(m: Meaning[S], t: Term, ix: Where) -> S:
    return m.along(f"cum{m.named(t['kind'])}", t, ix, m.axes(t["over"]), axis=0, reverse=t["reverse"])


def _win(m: Meaning[S], t: Term, ix: Where) -> S:
    windows = dict(per_axis(t, m.env))
    size, step, lo, hi = _columns(windows, 4)
    ones = (1,) * len(windows)
    return m.along(
        f"reduce_window_{m.named(t['kind'])}", t, ix, list(windows), window_dimensions=size, window_strides=step,
        padding=tuple(zip(lo, hi, strict=True)), base_dilation=ones, window_dilation=ones,
    )  # fmt: skip


def _concat(m: Meaning[S], t: Term, ix: Where) -> S:
    along = m.axes(t["over"])
    return m.apply("concatenate", t, along, ix, [m.operand(a, along, ix) for a in t.args], dimension=0)


def _rev(m: Meaning[S], t: Term, ix: Where) -> S:
    over = m.axes(t["over"])
    return m.along("rev", t, ix, over, dimensions=tuple(range(len(over))))


def _slice(m: Meaning[S], t: Term, ix: Where) -> S:
    windows = dict(per_axis(t, m.env))
    start, stop, step = _columns(windows, 3)
    ends = [m.size(t.args[0], x) if end is None else end for x, end in zip(windows, stop, strict=True)]
    return m.along("slice", t, ix, list(windows), start_indices=start, limit_indices=tuple(ends), strides=step)


def _at(m: Meaning[S], t: Term, ix: Where) -> S:
    """The slice of length 1 from there, at its one index."""
    windows = dict(per_axis(t, m.env))
    (start,) = _columns(windows, 1)
    one = {**ix, **dict.fromkeys(windows, 0)}
    stop, step = tuple([i + 1 for i in start]), (1,) * len(start)
    return m.along("slice", t, one, list(windows), start_indices=start, limit_indices=stop, strides=step)


def _pad(m: Meaning[S], t: Term, ix: Where) -> S:
    windows = dict(per_axis(t, m.env))
    operands = [m.operand(t.args[0], list(windows), ix), m.operand(t.args[1], (), {})]
    return m.apply("pad", t, list(windows), ix, operands, padding_config=tuple(windows.values()))


def _iota(m: Meaning[S], t: Term, ix: Where) -> S:
    labels = m.axes(t["over"])
    return m.apply("iota", t, labels, ix, [], dtype=NUMBER, shape=m.typed(t, labels).shape, dimension=0)


def _take(m: Meaning[S], t: Term, ix: Where) -> S:
    """One row, at the index that is the one entry of a vector of indices."""
    operands = [m.operand(t.args[0], m.axes(t["over"]), ix), m.operand(t.args[1], [None], ix)]
    numbers = {"offset_dims": (), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
    return m.apply(PHYSICAL["take"], t, (), ix, operands, **numbers, slice_sizes=(1,))


def _dynslice(m: Meaning[S], t: Term, ix: Where) -> S:
    windows = dict(per_axis(t, m.env))
    start, size = _columns(windows, 2)
    operands = [m.operand(t.args[0], list(windows), ix), *map(m.position, start)]
    return m.apply("dynamic_slice", t, list(windows), ix, operands, slice_sizes=size)


def _dynupdate(m: Meaning[S], t: Term, ix: Where) -> S:
    windows = dict(per_axis(t, m.env))
    operands = [m.operand(a, list(windows), ix) for a in t.args]
    return m.apply("dynamic_update_slice", t, list(windows), ix, [*operands, *map(m.position, *_columns(windows, 1))])


def _split(m: Meaning[S], t: Term, ix: Where) -> S:
    """Each axis apart from the others becomes two."""
    whole, outer, inner = (m.env.labels[r] for r in t["over"])
    parts = list(zip(outer, inner, strict=True))
    groups = tuple([((d,), m.typed(t, pair).shape) for d, pair in enumerate(parts)])
    labels = [x for pair in parts for x in pair]
    return m.apply("regroup", t, labels, ix, [m.operand(t.args[0], whole, ix)], groups=groups)


def _merge(m: Meaning[S], t: Term, ix: Where) -> S:
    """Each pair of axes apart from the others becomes one."""
    outer, inner, whole = (m.env.labels[r] for r in t["over"])
    labels = [x for pair in zip(outer, inner, strict=True) for x in pair]
    groups = tuple([((2 * d, 2 * d + 1), m.typed(t, [w]).shape) for d, w in enumerate(whole)])
    return m.apply("regroup", t, whole, ix, [m.operand(t.args[0], labels, ix)], groups=groups)


_MEANING: dict[str, Callable[[Meaning[Any], Term, Where], Any]] = {
    "var": _var, "lit": _lit, "view": _same, "lay": _same, "bcast": _same, "expand": _same, "unit": _same, "ren": _ren,
    "diag": _diag, "fold": _fold, "stack": _stack, "ew": _ew, "dot": _dot, "conv": _conv, "red": _red, "cum": _cum,
    "win": _win, "concat": _concat, "rev": _rev, "slice": _slice, "at": _at, "pad": _pad, "iota": _iota, "take": _take,
    "dynslice": _dynslice, "dynupdate": _dynupdate, "split": _split, "merge": _merge,
}  # fmt: skip
