"""Interval arithmetic on indices: bounds of polynomials in a box, and ranges narrowed by guards.

All numbers are exact integers, or infinite where nothing is known.  Products of intervals ignore that two factors may
be the same atom, and forms bound their own arguments, so every interval may be too wide and none is too narrow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from superopt.ir.index import Atom, Form, Mono, Poly, Size, Symbol, applied, of_atom, product
from superopt.ir.scalar import DTYPE

Interval = tuple[float, float]
INF = math.inf
_ROUNDS = 6


def box_of(s: Symbol) -> tuple[int, int]:
    """The range of an iterator of constant extent."""
    assert isinstance(s.low, int)
    assert isinstance(s.high, int)
    return s.low, s.high


def interval(x: Size, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of x when atoms are in the box."""
    if isinstance(x, int):
        return x, x
    low: float = 0
    high: float = 0
    for mono, c in x.terms:
        a: float = 1
        b: float = 1
        for atom in mono:
            a, b = product((a, b), interval_of(atom, box))
        low += c * a if c > 0 else c * b
        high += c * b if c > 0 else c * a
    return low, high


def interval_of(atom: Atom, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of an atom."""
    known = box.get(atom)
    if known is not None:
        return known
    if isinstance(atom, Symbol):
        low = -INF if atom.low is None else interval(atom.low, box)[0]
        return low, INF if atom.high is None else interval(atom.high, box)[1]
    if atom.op == "value":
        info = np.iinfo(DTYPE[atom.args[0].dtype])
        return int(info.min), int(info.max)
    return applied(atom.op, [interval(x, box) for x in atom.args])


def propagated(ranges: Mapping[Symbol, tuple[int, int]], facts: tuple[Poly, ...]) -> dict[Atom, Interval] | None:
    """Ranges narrowed by guards; None when a guard cannot hold."""
    box: dict[Atom, Interval] = {s: r for s, r in ranges.items()}  # noqa: C416 (a wider type)
    if any(l > h for l, h in ranges.values()):
        return None
    known = list(facts)
    for _ in range(_ROUNDS):
        changed = False
        for f in known:
            low, high = interval(f, box)
            if high < 0:
                return None
            if low >= 0:
                continue
            for mono, c in f.terms:
                if len(mono) != 1:
                    continue
                atom = mono[0]
                l, h = interval_of(atom, box)
                rest = high - (c * h if c > 0 else c * l)
                if abs(rest) == INF or math.isnan(rest):
                    continue
                new = (max(l, -(int(rest) // c)), h) if c > 0 else (l, min(h, int(rest) // -c))
                if new[0] > new[1]:
                    return None
                if new != (l, h):
                    box[atom] = new
                    changed = True
        if not changed:
            break
        for atom in [a for a in box if isinstance(a, Form)]:
            known += [d for d in _inverted(atom, box[atom], box) if d not in known]
    for atom in [a for a in box if isinstance(a, Form)]:  # what guards say of a form, and what its arguments say
        low, high = box.pop(atom)
        l, h = interval_of(atom, box)
        if max(low, l) > min(high, h):
            return None
        box[atom] = max(low, l), min(high, h)
    return box


def _inverted(atom: Atom, within: Interval, box: Mapping[Atom, Interval]) -> Iterator[Poly]:
    """What the range of a quotient says about the dividend, and that of a remainder where the quotient is known."""
    if not isinstance(atom, Form) or not isinstance(d := atom.args[-1], int) or max(map(abs, within)) == INF:
        return
    x, low, high = atom.args[0], int(within[0]), int(within[1])
    ends: tuple[Size, ...] = ()
    if atom.op == "//":
        ends = (x - d * low, d * high + (d - 1) - x)
    elif atom.op == "%":
        l, h = interval(x, box)
        if max(abs(l), abs(h)) < INF and l // d == h // d:
            start = d * int(l // d)
            ends = (x - start - low, start + high - x)
    yield from (e for e in ends if isinstance(e, Poly))


@functools.lru_cache(maxsize=4096)
def defined(atom: Form) -> tuple[dict[Mono, int], ...]:
    """The terms of the inequalities that define a form."""
    return tuple(dict(d.terms) for d in definitions(of_atom(atom)))


def definitions(p: Poly) -> Iterator[Poly]:
    """Inequalities that define the forms of a polynomial."""
    for atom in p.atoms:
        if not isinstance(atom, Form) or atom.op == "value":
            continue
        x, y = atom.args[0], atom.args[1]
        own = of_atom(atom)
        found: tuple[Size, ...] = ()
        if atom.op == "//" and isinstance(y, int):
            found = (x - own * y, own * y + (y - 1) - x)
        elif atom.op == "%" and isinstance(y, int):
            quotient = of_atom(Form("//", (x, y)))
            found = (x - quotient * y - own, own + quotient * y - x)
        elif atom.op == "min":
            found = (x - own, y - own)
        elif atom.op == "max":
            found = (own - x, own - y)
        yield from (f for f in found if isinstance(f, Poly))
