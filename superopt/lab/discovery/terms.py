"""Terms over anonymous axes: leaves, applications, values, canonical order of leaves.

A universe numbers its terms.  Leaves come in kinds by type.  Terms that differ only in the order of the leaves of a
kind, or in the axis order of a leaf, are equivalent, so only one of them (`canonical`) has to head a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.lab.discovery.algebra import (
    ELEMENTWISE,
    LENGTH,
    SAMPLES,
    SPACE,
    TAPS,
    AxesType,
    OpForm,
    apply,
    extents,
    result,
)

MATRIX: AxesType = ((LENGTH,), (LENGTH,))
VECTOR: AxesType = ((LENGTH,),)
IMAGE: AxesType = (*MATRIX, SPACE)
KERNEL: AxesType = (*MATRIX, TAPS)


@dataclass(frozen=True, slots=True)
class AnonymousTerm:
    """A leaf (no form) or a form applied to earlier terms, by number.

    Attributes:
        number: index in the universe.
        size: number of distinct ops in it.
        form, args: the form and its operands; a leaf has no form.
        type: type of its value.
        inside: numbers of its subterms that are no leaves, itself included.
    """

    number: int
    size: int
    form: OpForm | None
    args: tuple[int, ...]
    type: AxesType
    inside: frozenset[int]


@dataclass(slots=True)
class Universe:
    """Numbered terms and the values of their leaves."""

    terms: list[AnonymousTerm] = field(default_factory=list[AnonymousTerm])
    values: list[np.ndarray] = field(default_factory=list[np.ndarray])

    def leaf(self, t: AxesType) -> AnonymousTerm:
        """A further leaf of a type: small integers, every entry of both signs over the samples."""
        number = len(self.terms)
        rng = np.random.default_rng((23, number))
        self.terms.append(AnonymousTerm(number, 0, None, (), t, frozenset()))
        shape = extents(t)
        signs = rng.choice([-1, 1], shape) * np.resize([1, -1], SAMPLES).reshape(-1, *(1 for _ in shape))
        self.values.append((signs * rng.integers(1, 20, (SAMPLES, *shape))).astype(np.float64))
        return self.terms[-1]

    def add(self, form: OpForm, args: Sequence[int]) -> AnonymousTerm:
        """The application of a form, as a new term."""
        term = self.make(form, args, len(self.terms))
        self.terms.append(term)
        self.values.append(self.compute(form, [self.values[i] for i in args], [self.terms[i].type for i in args]))
        return term

    def make(self, form: OpForm, args: Sequence[int], number: int = -1) -> AnonymousTerm:
        """The application of a form, without adding it."""
        operands = [self.terms[i] for i in args]
        inside = frozenset({number}).union(*(x.inside for x in operands))
        t = result(form, *(x.type for x in operands))
        return AnonymousTerm(number, len(inside), form, tuple(args), t, inside)

    @staticmethod
    def compute(form: OpForm, values: Sequence[np.ndarray], types: Sequence[AxesType]) -> np.ndarray:
        """Value of one application."""
        b = values[1][None] if len(values) > 1 else None
        return apply(form, values[0][None], b, types)[0]

    def evaluate(self, term: AnonymousTerm, given: dict[int, np.ndarray]) -> np.ndarray:
        """Value of a term where some subterms have given values."""
        if term.number in given:
            return given[term.number]
        if term.form is None:
            return self.values[term.number]
        if term.number >= 0 and not any(k in term.inside or k < 0 for k in given):
            return self.values[term.number]
        args = [self.terms[i] for i in term.args]
        return self.compute(term.form, [self.evaluate(x, given) for x in args], [x.type for x in args])

    def leaves(self, term: AnonymousTerm) -> list[int]:
        """Leaves of a term in the order of their first use."""
        if term.form is None:
            return [term.number]
        return list(dict.fromkeys(n for i in term.args for n in self.leaves(self.terms[i])))

    def canonical(self, term: AnonymousTerm) -> bool:
        """Whether the leaves of each kind are used in order, and their axes where an op first distinguishes them."""
        order = self.leaves(term)
        used: dict[AxesType, int] = {}
        for n in order:
            t = self.terms[n].type
            first = n
            while first > 0 and self.terms[first - 1].form is None and self.terms[first - 1].type == t:
                first -= 1
            if n - first != used.get(t, 0):
                return False
            used[t] = n - first + 1
        return self._oriented(term, set())

    def _oriented(self, term: AnonymousTerm, seen: set[int]) -> bool:
        """Whether every op that uses a leaf for the first time uses its axes in order."""
        if term.form is None:
            return True
        args = [self.terms[i] for i in term.args]
        if not all(self._oriented(x, seen) for x in args):
            return False
        op, at = term.form.op, term.form.at
        new = [x.form is None and x.number not in seen for x in args]
        seen.update(x.number for n, x in enumerate(args) if x.form is None and (n or op not in (*ELEMENTWISE, "relu")))
        if op == "dot":
            return not any(n and axis for n, axis in zip(new, at[0], strict=True))
        if op in ("conv", "gconv"):
            return not any(n and axis for n, axis in zip(new, at, strict=True))
        if op in ("cut", "first", "rest", "sum", "max"):
            return not new[0] or at[0] == 0
        if op == "concat":
            return not (new[0] and at[0] != 0) and not (new[1] and list(at[1:]) != sorted(at[1:]))
        return len(args) == 1 or not new[1] or list(at) == sorted(at)

    def spelled(self, term: AnonymousTerm) -> str:
        """Key of a term that ignores which leaves of a kind it reads."""
        if term.form is None:
            return str(term.type)
        inner = ",".join(self.spelled(self.terms[i]) for i in term.args)
        return f"{term.form.op}{term.form.at}({inner})"

    def show(self, term: AnonymousTerm) -> str:
        """A term as text, for people."""
        if term.form is None:
            return f"x{term.number}"
        at = f"{list(term.form.at)}" if term.form.at else ""
        return f"{term.form.op}{at}({', '.join(self.show(self.terms[i]) for i in term.args)})"


def leaves_for(ops: Iterable[str], size: int) -> Universe:
    """A universe of leaves for terms of up to `size` ops: matrices, vectors, a scalar, images and kernels."""
    u = Universe()
    ops = set(ops)
    for t, count in ((MATRIX, size + 1), (VECTOR, min(size, 2)), ((), 1 if set(ELEMENTWISE) & ops else 0)):
        for _ in range(count):
            u.leaf(t)
    if {"conv", "wmax", "wsum"} & ops:
        for t in (IMAGE, KERNEL) if "conv" in ops else (IMAGE,):
            for _ in range(min(size, 3)):
                u.leaf(t)
    return u


def sizes(u: Universe, size: int) -> list[AnonymousTerm]:
    """The terms of a universe with this number of ops."""
    return [x for x in u.terms if x.size == size]
