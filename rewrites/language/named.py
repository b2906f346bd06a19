"""Instances of rules: the axes of every role, and the values of sizes, attributes and conditions.

Numbers are Python ints for the matcher and symbols for the prover: `Arithmetic` defines division, remainder, max and
min for either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from rewrites.language.term import Rule, Term, TokenExpr, per_axis_names

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

    def numbers(self) -> tuple[Num | None, ...]:
        """The free parameters, and all sizes and attributes axis by axis, in the order of the rule's names."""
        out: list[Num | None] = [self.params.get(name) for name in self.rule.params]
        for name, role in self.rule.owner.items():
            for label in self.labels.get(role, ()):
                found = self.attr.get((name, label))
                out.append(self.tok.get((name, label)) if found is None else found)
        return tuple(out)

    def count(self, token: str) -> Num:
        """Product of a size token or attribute over the axes of its role."""
        out: Num = 1
        for label in self.labels[self.rule.owner[token]]:
            out = out * self.look(token, label)
        return out

    def value(self, e: TokenExpr, label: Label = None) -> Num:
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

    def axes_of(self, e: TokenExpr) -> Sequence[Label]:
        """Axes at which a condition must hold: those of its one many-axis role, else a single axis."""
        roles = {self.rule.owner[n] for n in per_axis_names(e) if n in self.rule.owner}
        for r in roles:
            if r in self.rule.many:
                return self.labels[r]
        return [self.labels[next(iter(roles))][0]] if roles else [None]

    def conditions(self) -> list[Num]:
        """The rule's `if` conditions at every axis."""
        return [self.value(e, label) for e in self.rule.cond for label in self.axes_of(e)]

    def unmet(self) -> TokenExpr | None:
        """The first `if` condition that fails at some axis, or None (sizes must be numbers)."""
        return next((e for e in self.rule.cond if not all(self.value(e, x) for x in self.axes_of(e))), None)


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
