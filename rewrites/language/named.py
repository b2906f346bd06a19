"""Shape inference on named axes, generic over the number type.

A shape is {label: size}; a label is one axis of a role; a missing label means size 1.  The same function serves the
matcher (Python ints) and the prover (symbolic ints): `Arithmetic` says what division, remainder, max and min are.
`wf` collects what must hold for the term to be well formed (every access in bounds): a premise on the left side, a
proof goal on the right side.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from rewrites.language.term import Expr, Rule, Term, per_axis_names, stem

Label: TypeAlias = Hashable
Num: TypeAlias = Any  # int, or the prover's integer sort
NamedShape: TypeAlias = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Integer operations that Python operators do not give for every number type."""

    floordiv: Callable[[Num, Num], Num]
    mod: Callable[[Num, Num], Num]
    max: Callable[[Num, Num], Num]
    min: Callable[[Num, Num], Num]
    simplify: Callable[[Num], Num]


def _same(x: Num) -> Num:
    return x


def _floordiv(a: int, b: int) -> int:
    return a // b


INTEGERS = Arithmetic(_floordiv, operator.mod, max, min, _same)
_OPERATORS: dict[str, Callable[[Num, Num], Num]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Env:
    """One instance of a rule: the axes of every role, the sizes, the attributes.

    Attributes:
        labels: role -> its axes.
        tok: (size token, label) -> size.
        attr: (attribute or fold index, label) -> integer.
        params: free parameter -> integer.
    """

    rule: Rule
    labels: Mapping[str, Sequence[Any]]
    tok: dict[tuple[str, Any], Num]
    attr: dict[tuple[str, Any], Num] = field(default_factory=dict[tuple[str, Any], Any])
    params: Mapping[str, Num] = field(default_factory=dict[str, Any])
    arith: Arithmetic = INTEGERS

    def with_attrs(self, attrs: Mapping[tuple[str, Any], Num]) -> Env:
        """The same instance with further attributes (a fold index)."""
        return replace(self, attr={**self.attr, **attrs})

    def look(self, name: str, label: Label) -> Num:
        """Value of an integer name at one axis.

        Raises:
            KeyError: the name belongs to another role, or is not bound there.
        """
        if name in self.params:
            return self.params[name]
        axes = self.labels[self.rule.owner[name]]
        if label not in axes:
            if len(axes) != 1:
                raise KeyError(f"{name} is used at an axis of another role")
            label = axes[0]
        key = (name, label)
        found = self.attr.get(key)
        return self.tok[key] if found is None else found

    def count(self, token: str) -> Num:
        """Product of a size token or attribute over the axes of its role."""
        out: Num = 1
        for label in self.labels[self.rule.owner[token]]:
            out = out * self.look(token, label)
        return out

    def value(self, e: Expr, label: Label = None) -> Num:
        """Value of an integer expression or comparison at one axis."""
        op = e[0]
        if op == "n":
            return e[1]
        if op == "v":
            return self.look(e[1], label)
        if op == "prod":
            return self.count(e[1])
        a, b = self.value(e[1], label), self.value(e[2], label)
        if op == "//":
            return self.arith.floordiv(a, b)
        if op == "%":
            return self.arith.mod(a, b)
        if op in ("max", "min"):
            return (self.arith.max if op == "max" else self.arith.min)(a, b)
        return _OPERATORS[op](a, b)

    def axes_of(self, e: Expr) -> Sequence[Label]:
        """Axes at which a condition is stated: those of its one many-axis role, else a single axis."""
        roles = {self.rule.owner[n] for n in per_axis_names(e) if n in self.rule.owner}
        for r in roles:
            if r in self.rule.many:
                return self.labels[r]
        return [self.labels[next(iter(roles))][0]] if roles else [None]

    def conditions(self) -> list[Num]:
        """The rule's `if` conditions at every axis."""
        return [self.value(e, label) for e in self.rule.cond for label in self.axes_of(e)]

    def unmet(self) -> Expr | None:
        """The first `if` condition that does not hold at every axis (sizes must be numbers)."""
        return next((e for e in self.rule.cond if not all(self.value(e, x) for x in self.axes_of(e))), None)


def one(x: Num) -> bool:
    """Whether a number is the Python integer 1 (a symbolic number is never known to be)."""
    return isinstance(x, int) and x == 1


def zero(x: Num) -> bool:
    """Whether a number is the Python integer 0."""
    return isinstance(x, int) and x == 0


def per_axis(t: Term, env: Env) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """(label, attribute values) for every axis that an op with attributes acts on; None stays None."""
    for role, exprs in t["win"]:
        for label in env.labels[role]:
            yield label, tuple(None if e is None else env.value(e, label) for e in exprs)


def derived_labels(rule: Rule, labels: Mapping[str, Sequence[Any]], fresh: Iterator[Any]) -> dict[str, list[Any]]:
    """Labels for the roles that `split` and `merge` make: as many as the role they come from."""
    out: dict[str, list[Any]] = {}
    for r, of in rule.derived.items():
        out[r] = [next(fresh) for _ in (out[of] if of in out else labels[of])]
    return out


def labels_of(env: Env, roles: Sequence[str]) -> list[Any]:
    """Axes of several roles."""
    return [label for r in roles for label in env.labels[r]]


def shape(t: Term, env: Env, wf: list[Num]) -> NamedShape:
    """Named shape of a term; appends its well-formedness conditions to `wf`."""
    return _shape(t, env, wf, {})


def _shape(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    """The shape of a term; shared subterms are visited once."""
    found = done.get(t)
    if found is None:
        found = done[t] = _infer(t, env, wf, done)
    return found


def _infer(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    op = t.op
    if op == "var":
        return {label: env.tok[(tok, label)] for tok in env.rule.vars[t["name"]] for label in env.labels[stem(tok)]}
    if op == "lit":
        return {}
    if op == "iota":
        return {x: env.tok[t["size"][0], x] for x in labels_of(env, t["over"])}
    if op == "fold":
        return _fold(t, env, wf)
    if op == "stack":
        bound = env.labels[env.rule.owner[t["bound"]]]
        new = zip(labels_of(env, t["over"]), bound, strict=True)
        return {**_fold(t, env, wf), **{label: env.look(t["bound"], axis) for label, axis in new}}
    inner = [_shape(a, env, wf, done) for a in t.args]
    first = inner[0]
    if op in ("view", "lay", "rev", "cum"):
        return first
    if op == "ew":
        for c in inner[1:]:
            wf += [c[label] == first[label] for label in first if c[label] is not first[label]]
        return first
    if op == "bcast":
        return {**first, **_broadcast_sizes(t, env, wf, done)}
    if op == "dot":
        left, right = inner
        wf += [left[label] == right[label] for label in left if label in right]
        gone = set(labels_of(env, t["over"]))
        return {label: n for c in inner for label, n in c.items() if label not in gone}
    if op == "red":
        gone = set(labels_of(env, t["over"]))
        return {label: n for label, n in first.items() if label not in gone}
    if op == "concat":
        return _concat(t, env, inner, wf)
    if op == "take":
        (gone,) = labels_of(env, t["over"])
        wf.append(first[gone] >= 1)
        return {**{label: n for label, n in first.items() if label != gone}, **inner[1]}
    if op in ("split", "merge"):
        return _regroup(t, env, first, wf)
    if op == "unit":
        return {**first, **dict.fromkeys(labels_of(env, t["over"]), 1)}
    if op in ("ren", "diag"):
        pairs = dict(zip(*(env.labels[r] for r in t["over"]), strict=True))
        if op == "diag":
            return {**first, **{new: first[old] for old, new in pairs.items()}}
        return {pairs.get(label, label): n for label, n in first.items()}
    return _windowed(t, env, inner, wf)


def _fold(t: Term, env: Env, wf: list[Num]) -> NamedShape:
    """The shape of the body, which is one for all values of the index.

    Both ends well formed, and of one shape, is all of that where sizes are affine in it, which who proves looks at.
    """
    labels = env.labels[env.rule.owner[t["bound"]]]
    first = shape(t.args[0], env.with_attrs({(t["idx"], label): 0 for label in labels}), wf)
    ends = {(t["idx"], label): env.look(t["bound"], label) - 1 for label in labels}
    last = shape(t.args[0], env.with_attrs(ends), wf)
    wf += [first[label] == n for label, n in last.items() if first[label] is not n]
    return first


def _broadcast_sizes(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    like: NamedShape = {}
    for y in t["like"]:
        like.update(_shape(y, env, wf, done))  # y is an operand beside this one
    tokens = t["size"] or t["over"]
    return {
        label: like[label] if label in like else env.tok[(token, label)]
        for r, token in zip(t["over"], tokens, strict=True)
        for label in env.labels[r]
    }


def _concat(t: Term, env: Env, inner: list[NamedShape], wf: list[Num]) -> NamedShape:
    (along,) = labels_of(env, t["over"])
    first = inner[0]
    total: Num = 0
    for c in inner:
        total = total + c.get(along, 1)
    for c in inner[1:]:
        wf += [c[label] == first[label] for label in first if label != along]
    return {**first, along: env.arith.simplify(total)}


def _regroup(t: Term, env: Env, first: NamedShape, wf: list[Num]) -> NamedShape:
    out = dict(first)
    a, b, c = (env.labels[r] for r in t["over"])
    if t.op == "split":
        ((_, (size,)),) = t["win"]
        for whole, outer, inner in zip(a, b, c, strict=True):
            q, n = env.value(size, whole), out.pop(whole)
            wf += [q >= 1, env.arith.mod(n, q) == 0]
            out[outer], out[inner] = env.arith.simplify(env.arith.floordiv(n, q)), q
        return out
    for outer, inner, whole in zip(a, b, c, strict=True):
        out[whole] = env.arith.simplify(out.pop(outer) * out.pop(inner))
    return out


def _windowed(t: Term, env: Env, inner: list[NamedShape], wf: list[Num]) -> NamedShape:
    op, first, arith = t.op, inner[0], env.arith
    out = dict(first)
    if op == "conv":
        features, spatial = set(labels_of(env, t["over"])), set(labels_of(env, [r for r, _ in t["win"]]))
        kernel = inner[1]
        wf += [first[label] == n for label, n in kernel.items() if label in first and label not in spatial]
        out = {label: n for x in inner for label, n in x.items() if label not in features}
    if op == "dynupdate":
        written = set(labels_of(env, [r for r, _ in t["win"]]))
        wf += [inner[1][label] == size for label, size in first.items() if label not in written]
    for label, values in per_axis(t, env):
        n = first.get(label, 1)
        if op == "slice":
            start, stop, step = values
            stop = n if stop is None else stop
            wf += [start >= 0, start <= stop, stop <= n, step >= 1]
            out[label] = arith.simplify(stop - start if one(step) else arith.floordiv(stop - start + step - 1, step))
        elif op == "at":
            wf += [values[0] >= 0, values[0] < n]
            del out[label]
        elif op == "pad":
            lo, hi, interior = values
            m = n if zero(interior) else arith.max(0, n + (n - 1) * interior)
            wf += [interior >= 0, lo + hi + m >= 0]
            out[label] = arith.simplify(lo + hi + m)
        elif op == "dynslice":
            wf += [values[1] >= 0, values[1] <= n]
            out[label] = values[1]
        elif op == "dynupdate":
            wf += [inner[1].get(label, 1) <= n]
        elif op == "expand":
            wf += [values[0] >= 0]
            out[label] = values[0]
        elif op == "conv":
            step, lo, hi, base, dil = values
            out[label] = _window(arith, wf, (n, inner[1].get(label, 1)), (step, lo, hi, base, dil))
        elif op == "win":
            size, step, lo, hi = values
            out[label] = _window(arith, wf, (n, size), (step, lo, hi, 1, 1))
        else:
            raise ValueError(f"no shape rule for {op}")
    return out


def _window(arith: Arithmetic, wf: list[Num], sizes: tuple[Num, Num], attrs: tuple[Num, ...]) -> Num:
    """Output length of a window of `sizes[1]` elements over `sizes[0]`."""
    n, k = sizes
    step, lo, hi, base, dil = attrs
    image = n if one(base) else (n - 1) * base + 1
    extent = k if one(dil) else (k - 1) * dil + 1
    wf += [step >= 1, base >= 1, dil >= 1, k >= 1, image + lo + hi >= extent]
    if not one(base):
        wf.append(n >= 1)
    room = image + lo + hi - extent
    return arith.simplify(room + 1 if one(step) else arith.floordiv(room, step) + 1)
