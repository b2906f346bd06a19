"""Substitution into polynomials and their evaluation over other integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from superopt.ir.index import division, ranges
from superopt.ir.index.poly import Atom, Guard, Mono, Size, Symbol, Truth, make, of_atom


def substitute(x: Size, mapping: Mapping[Symbol, Size]) -> Size:
    """The polynomial with symbols replaced, in normal form again."""
    if isinstance(x, int) or x.symbols.isdisjoint(mapping):
        return x
    total: Size = 0
    kept: dict[Mono, int] = {}
    for mono, c in x.terms:
        if all(a.symbols.isdisjoint(mapping) for a in mono):
            kept[mono] = c
            continue
        term: Size = c
        for a in mono:
            term = term * _substitute_atom(a, mapping)
        total = total + term
    return total + make(kept)


def _substitute_atom(atom: Atom, mapping: Mapping[Symbol, Size]) -> Size:
    if isinstance(atom, Symbol):
        return mapping[atom] if atom in mapping else of_atom(atom)
    if atom.symbols.isdisjoint(mapping):
        return of_atom(atom)
    if atom.op == "value":
        return atom.args[0].substitute(mapping).as_index()
    return division.APPLY[atom.op](*(substitute(x, mapping) for x in atom.args))


def substitute_guard(guard: Truth, mapping: Mapping[Symbol, Size]) -> Truth:
    """The condition with symbols replaced."""
    if not isinstance(guard, Guard):
        return guard
    return ranges.all_of(*[ranges.nonnegative(substitute(p, mapping)) for p in guard.terms])


def evaluate(x: Size, atom: Callable[[Atom], Any]) -> Any:
    """The polynomial over other integers: `atom` gives the meaning of each atom."""
    if isinstance(x, int):
        return x
    total: Any = None
    for mono, c in x.terms:
        term: Any = None
        for a in mono:
            term = atom(a) if term is None else term * atom(a)
        term = c if term is None else term if c == 1 else term * c
        total = term if total is None else total + term
    return total


def concrete(x: Size, values: Mapping[str, int]) -> int:
    """The integer that the polynomial is for these values of its symbols.

    Raises:
        KeyError: a symbol has no value.
    """

    def atom(a: Atom) -> int:
        if isinstance(a, Symbol):
            return values[a.name]
        args = [concrete(y, values) for y in a.args]
        return int(division.APPLY[a.op](*args))  # pyright: ignore[reportArgumentType]

    return evaluate(x, atom)
