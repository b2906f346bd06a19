"""What a rule's terms mean: a named shape and a scalar for every index, one case per op.

    sem(term) = (shape: {label: size},  at: {label: index} -> scalar)

It is written once against the abstract algebra of `verifier.equal.terms`: over symbols it is what the prover proves
things about, over numbers it must agree with the reference interpreter on every graph that is built from the rule (the
test of this file, and part of the trust base).  Shapes come from `rewrites.language.named.shape`, the matcher's own
function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeAlias, TypeVar

from rewrites.language.named import Env, NamedShape, labels_of, one, per_axis, shape, zero
from rewrites.language.term import Term, stem
from verifier.equal import conditions as c
from verifier.equal.conditions import Int
from verifier.equal.terms import TermAlgebra

S = TypeVar("S")
Where: TypeAlias = "Mapping[Any, Int]"
NEUTRAL: dict[str, Fraction | float] = {"sum": Fraction(0), "max": -math.inf, "min": math.inf, "prod": Fraction(1)}


class Meaning(Generic[S]):
    """The meaning of the terms of one instance.

    Args:
        env: axes, sizes and attributes.
        algebra: scalars and indices.
        metas: reducer meta-variable -> the reducer; elementwise meta-variables are the scalar functions `$f`.
    """

    def __init__(self, env: Env, algebra: TermAlgebra[S], metas: Mapping[str, str]) -> None:
        self.env, self.k, self.metas = env, algebra, metas
        self._shapes: dict[Term, NamedShape] = {}

    def shape(self, t: Term) -> NamedShape:
        """Named shape of a term."""
        if t not in self._shapes:
            self._shapes[t] = shape(t, self.env, [])
        return self._shapes[t]

    def at(self, t: Term, ix: Where) -> S:
        """The scalar at one index; labels that the term does not have are ignored.

        Raises:
            NotImplementedError: an op without a meaning here.
        """
        return _MEANING[t.op](self, t, ix)

    def of(self, t: Term, j: int, ix: Where) -> S:
        """Operand j at an index."""
        return self.at(t.args[j], ix)

    def axes(self, roles: tuple[str, ...]) -> list[Any]:
        """Axes of several roles."""
        return labels_of(self.env, roles)

    def size(self, t: Term, label: Any) -> Int:
        """Size of a term along an axis; an absent axis has size 1."""
        return self.shape(t).get(label, 1)

    def reducer(self, t: Term) -> str:
        """The reducer of a term, meta-variables replaced."""
        return self.metas.get(t["kind"], t["kind"])

    def over(self, kind: str, sizes: Mapping[Any, Int], body: Callable[[dict[Any, Int]], S]) -> S:
        """Fold over the box of several axes."""
        labels = list(sizes)

        def at(index: Any) -> S:
            return body(dict(zip(labels, index, strict=True)))

        return self.k.reduce(kind, list(sizes.values()), at) if labels else body({})


def _var(m: Meaning[S], t: Term, ix: Where) -> S:
    tokens = m.env.rule.vars[t["name"]]
    return m.k.read(t["name"], [ix[label] for tok in tokens for label in m.env.labels[stem(tok)]])


def _lit(m: Meaning[S], t: Term, ix: Where) -> S:
    value = t["value"]
    if value[0] == "n":
        return m.k.const(value[1])
    return m.k.size(m.env.value(value))


def _same(m: Meaning[S], t: Term, ix: Where) -> S:
    return m.of(t, 0, ix)


def _ew(m: Meaning[S], t: Term, ix: Where) -> S:
    f = t["f"]
    params = t.get("params", ())
    name = f"${f}" if f in m.env.rule.metas else f + "".join(f"[{v}]" for _, v in params)
    return m.k.op(name, *(m.of(t, j, ix) for j in range(len(t.args))))


def _dot(m: Meaning[S], t: Term, ix: Where) -> S:
    def body(k: dict[Any, Int]) -> S:
        return m.k.op("mul", m.of(t, 0, {**ix, **k}), m.of(t, 1, {**ix, **k}))

    return m.over("sum", {label: m.size(t.args[0], label) for label in m.axes(t["over"])}, body)


def _red(m: Meaning[S], t: Term, ix: Where) -> S:
    def body(k: dict[Any, Int]) -> S:
        return m.of(t, 0, {**ix, **k})

    return m.over(m.reducer(t), {label: m.size(t.args[0], label) for label in m.axes(t["over"])}, body)


def _cum(m: Meaning[S], t: Term, ix: Where) -> S:
    (label,) = m.axes(t["over"])
    kind = m.reducer(t)

    def body(k: dict[Any, Int]) -> S:
        seen = k[label] >= ix[label] if t["reverse"] else k[label] <= ix[label]
        return m.k.where(seen, lambda: m.of(t, 0, {**ix, **k}), lambda: m.k.const(NEUTRAL[kind]))

    return m.over(kind, {label: m.size(t.args[0], label)}, body)


def _fold(m: Meaning[S], t: Term, ix: Where) -> S:
    labels = m.env.labels[m.env.rule.owner[t["bound"]]]
    inner = t["idx"]

    def body(k: dict[Any, Int]) -> S:
        env = m.env.with_attrs({(inner, label): k[label] for label in labels})
        return Meaning(env, m.k, m.metas).of(t, 0, ix)

    return m.over(t["kind"], {label: m.env.look(t["bound"], label) for label in labels}, body)


def _stack(m: Meaning[S], t: Term, ix: Where) -> S:
    bound = m.env.labels[m.env.rule.owner[t["bound"]]]
    index = {(t["idx"], axis): ix[label] for label, axis in zip(m.axes(t["over"]), bound, strict=True)}
    return Meaning(m.env.with_attrs(index), m.k, m.metas).of(t, 0, ix)


def _ren(m: Meaning[S], t: Term, ix: Where) -> S:
    old, new = (m.env.labels[r] for r in t["over"])
    return m.of(t, 0, {**ix, **{a: ix[b] for a, b in zip(old, new, strict=True)}})


def _diag(m: Meaning[S], t: Term, ix: Where) -> S:
    same = [ix[i] == ix[j] for i, j in zip(*(m.env.labels[r] for r in t["over"]), strict=True)]
    return m.k.where(c.conj(same), lambda: m.of(t, 0, ix), lambda: m.k.const(Fraction(0)))


def _concat(m: Meaning[S], t: Term, ix: Where) -> S:
    (label,) = m.axes(t["over"])

    def rest(j: int, i: Int) -> S:
        here = m.of(t, j, {**ix, label: i}) if j == len(t.args) - 1 else None
        if here is not None:
            return here
        n = m.size(t.args[j], label)
        return m.k.where(i < n, lambda: m.of(t, j, {**ix, label: i}), lambda: rest(j + 1, i - n))

    return rest(0, ix[label])


def _rev(m: Meaning[S], t: Term, ix: Where) -> S:
    return m.of(t, 0, {**ix, **{x: m.size(t, x) - 1 - ix[x] for x in m.axes(t["over"])}})


def _slice(m: Meaning[S], t: Term, ix: Where) -> S:
    moved = {label: start + ix[label] * step for label, (start, _, step) in per_axis(t, m.env)}
    return m.of(t, 0, {**ix, **moved})


def _at(m: Meaning[S], t: Term, ix: Where) -> S:
    return m.of(t, 0, {**ix, **{label: i for label, (i,) in per_axis(t, m.env)}})


def _iota(m: Meaning[S], t: Term, ix: Where) -> S:
    (label,) = m.axes(t["over"])
    return m.k.size(ix[label])


def _clip(m: Meaning[S], start: Int, last: Int) -> Int:
    """A start known at run time only, moved into 0 .. last."""
    return m.env.arith.max(0, m.env.arith.min(start, last))


def _dynslice(m: Meaning[S], t: Term, ix: Where) -> S:
    moved = dict(ix)
    for label, (start, size) in per_axis(t, m.env):
        moved[label] = ix[label] + _clip(m, start, m.size(t.args[0], label) - size)
    return m.of(t, 0, moved)


def _dynupdate(m: Meaning[S], t: Term, ix: Where) -> S:
    inside: list[Any] = []
    moved = dict(ix)
    for label, (start,) in per_axis(t, m.env):
        n = m.size(t.args[1], label)
        moved[label] = ix[label] - _clip(m, start, m.size(t.args[0], label) - n)
        inside += [moved[label] >= 0, moved[label] < n]
    return m.k.where(c.conj(inside), lambda: m.of(t, 1, moved), lambda: m.of(t, 0, ix))


def _pad(m: Meaning[S], t: Term, ix: Where) -> S:
    inside: list[Any] = []
    moved = dict(ix)
    for label, (lo, _, interior) in per_axis(t, m.env):
        p, n = ix[label] - lo, m.size(t.args[0], label)
        q = p if zero(interior) else p // (interior + 1)
        inside += [p >= 0, q < n] if zero(interior) else _on_grid(p, n, interior + 1)
        moved[label] = q
    return m.k.where(c.conj(inside), lambda: m.of(t, 0, moved), lambda: m.of(t, 1, {}))


def _conv(m: Meaning[S], t: Term, ix: Where) -> S:
    image, kernel = t.args
    windows = dict(per_axis(t, m.env))

    def body(k: dict[Any, Int]) -> S:
        at_kernel, at_image, inside = {**ix, **k}, {**ix, **k}, list[Any]()
        for label, (step, lo, hi, base, dil) in windows.items():
            r = k.get(label, 0)
            at_kernel[label] = r
            p = ix[label] * step + r * dil - lo
            at_image[label] = _inside(inside, p, m.size(image, label), lo, hi, base)
        value: Callable[[], S] = lambda: m.k.op("mul", m.of(t, 0, at_image), m.of(t, 1, at_kernel))  # noqa: E731
        return m.k.where(c.conj(inside), value, lambda: m.k.const(Fraction(0)))

    sizes = {label: m.size(image, label) for label in m.axes(t["over"])}
    return m.over("sum", {**sizes, **{label: m.size(kernel, label) for label in windows}}, body)


def _win(m: Meaning[S], t: Term, ix: Where) -> S:
    kind = m.reducer(t)
    windows = dict(per_axis(t, m.env))

    def body(k: dict[Any, Int]) -> S:
        moved, inside = dict(ix), list[Any]()
        for label, (_, step, lo, hi) in windows.items():
            p = ix[label] * step + k[label] - lo
            moved[label] = _inside(inside, p, m.size(t.args[0], label), lo, hi, 1)
        return m.k.where(c.conj(inside), lambda: m.of(t, 0, moved), lambda: m.k.const(NEUTRAL[kind]))

    return m.over(kind, {label: size for label, (size, *_) in windows.items()}, body)


def _inside(guards: list[Any], p: Any, n: Any, lo: Int, hi: Int, base: Int) -> Any:
    """Position p of the padded, dilated image as an index into the image, with the guards that it needs."""
    if one(base):
        # without padding on a side, the output length keeps the window inside on that side
        guards += ([] if zero(lo) else [p >= 0]) + ([] if zero(hi) else [p < n])
        return p
    guards += _on_grid(p, n, base)
    return p // base


def _on_grid(p: Any, n: Any, gap: Int) -> list[Any]:
    """Position p is one of 0, gap, ..., (n - 1) * gap."""
    return [p >= 0, p <= (n - 1) * gap, p % gap == 0]


def _take(m: Meaning[S], t: Term, ix: Where) -> S:
    (label,) = m.axes(t["over"])
    row = m.k.entry(m.of(t, 1, ix), m.size(t.args[0], label))
    return m.of(t, 0, {**ix, label: row})


def _split(m: Meaning[S], t: Term, ix: Where) -> S:
    whole, outer, inner = (m.env.labels[r] for r in t["over"])
    moved = {w: ix[o] * m.size(t, i) + ix[i] for w, o, i in zip(whole, outer, inner, strict=True)}
    return m.of(t, 0, {**ix, **moved})


def _merge(m: Meaning[S], t: Term, ix: Where) -> S:
    moved = dict(ix)
    for o, i, w in zip(*(m.env.labels[r] for r in t["over"]), strict=True):
        moved[o], moved[i] = m.k.divmod(ix[w], m.size(t.args[0], i))
    return m.of(t, 0, moved)


_MEANING: dict[str, Callable[[Meaning[Any], Term, Where], Any]] = {
    "var": _var, "lit": _lit, "view": _same, "lay": _same, "bcast": _same, "ew": _ew, "dot": _dot, "red": _red,
    "cum": _cum, "fold": _fold, "concat": _concat, "rev": _rev, "slice": _slice, "at": _at, "pad": _pad,
    "conv": _conv, "win": _win, "take": _take, "split": _split, "merge": _merge, "unit": _same, "ren": _ren,
    "diag": _diag, "stack": _stack, "iota": _iota, "expand": _same, "dynslice": _dynslice, "dynupdate": _dynupdate,
}  # fmt: skip
