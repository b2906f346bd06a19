"""Ranges of polynomials, and the comparisons that they decide.

Numeric bounds come from interval arithmetic.  Where symbols have symbolic bounds (an iterator below `n`), a lower bound
of a polynomial is found by putting, one symbol after another, the end of its range at which the polynomial is least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from superopt.ir.index import walk
from superopt.ir.index.poly import Atom, Form, Guard, Poly, Size, Symbol, Truth, atom_key, make

INF = math.inf
_DEPTH = 8  # symbolic bounds are substituted at most this often


def bounds(x: Size, within: Mapping[Symbol, tuple[float, float]] | None = None) -> tuple[float, float]:
    """Inclusive numeric bounds (-inf and inf when unknown); `within` narrows symbols."""
    if isinstance(x, int):
        return x, x
    low: float = 0
    high: float = 0
    for mono, c in x.terms:
        a: float = c
        b: float = c
        for atom in mono:
            l, h = _atom_bounds(atom, within)
            a, b = product((a, b), (l, h))
        low, high = low + a, high + b
    return low, high


def product(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    """Inclusive bounds of a product from those of its factors."""
    (a, b), (l, h) = x, y
    ends = (_times(a, l), _times(a, h), _times(b, l), _times(b, h))
    return min(ends), max(ends)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _atom_bounds(atom: Atom, within: Mapping[Symbol, tuple[float, float]] | None) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        if within is not None and atom in within:
            return within[atom]
        low = -INF if atom.low is None else bounds(atom.low, within)[0]
        high = INF if atom.high is None else bounds(atom.high, within)[1]
        return low, high
    if atom.op == "value":
        return -INF, INF
    return applied(atom.op, [bounds(x, within) for x in atom.args])


def applied(op: str, args: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Inclusive bounds of a form (`//`, `%`, `min`, `max` or `clip`) from those of its arguments."""
    (l, h), (l2, h2) = args[:2]
    match op:
        case "//":
            ends = [_floor(p, q) for p in (l, h) for q in (max(l2, 1), h2)]
            return min(ends), max(ends)
        case "%":
            return 0, min(h2 - 1, h) if l >= 0 else h2 - 1
        case "min":
            return min(l, l2), min(h, h2)
        case "max":
            return max(l, l2), max(h, h2)
        case _:  # clip: high wins where low > high
            l3, h3 = args[2]
            return min(max(l, l2), l3), min(max(h, h2), h3)


def _floor(p: float, q: float) -> float:
    if q == INF:
        return 0 if p >= 0 else -1
    return p if abs(p) == INF else p // q


def decide(x: Size) -> bool | None:
    """Is x >= 0?  None when ranges do not say."""
    low, high = bounds(x)
    if low >= 0:
        return True
    if high < 0:
        return False
    if _proved(x):
        return True
    return False if _proved(-1 - x) else None


def _proved(x: Size) -> bool:
    """Is a lower bound of x, taken symbol by symbol, >= 0?"""
    for _ in range(_DEPTH):
        if not isinstance(x, Poly):
            break
        smaller = _lowest(x)
        if smaller is None:
            return False
        x = smaller
        if bounds(x)[0] >= 0:
            return True
    return False


def _lowest(x: Poly) -> Size | None:
    """A lower bound of x without one of its symbols: a symbol with a symbolic bound, in which x is monotone."""
    for s in sorted(x.symbols, key=atom_key):
        inner = any(isinstance(a, Form) and s in a.symbols for a in x.atoms)
        if inner or not (isinstance(s.low, Poly) or isinstance(s.high, Poly)):
            continue
        signs: set[bool] = set()
        for mono, c in x.terms:
            if s not in mono:
                continue
            others = make({tuple(a for a in mono if a != s): c})
            low, high = bounds(others)
            if mono.count(s) > 1 or (low < 0 < high):
                signs = {True, False}
                break
            signs.add(low >= 0)
        end = s.low if signs == {True} else s.high if signs == {False} else None
        if end is not None:
            return walk.substitute(x, {s: end})
    return None


def nonnegative(x: Size) -> Truth:
    """The condition x >= 0: a bool where ranges decide it."""
    known = decide(x)
    if known is not None:
        return known
    assert isinstance(x, Poly)
    return Guard((x,))


def all_of(*guards: Truth) -> Truth:
    """Conjunction."""
    terms: set[Poly] = set()
    for g in guards:
        if isinstance(g, Guard):
            terms |= g.terms
        elif not g:
            return False
    return Guard(terms) if terms else True


def equal(a: Size, b: Size) -> Truth:
    """The condition a = b."""
    d = a - b
    return all_of(nonnegative(d), nonnegative(-d))
