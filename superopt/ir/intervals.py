"""Interval arithmetic over exact integers: ends are infinite where nothing is known.

An interval holds all values; it may be too wide and is never too narrow.  The caller supplies the intervals of a
polynomial's atoms: ranges of symbols in `superopt.ir.index`, boxes under guards in `verifier.schedules.intervals`,
premises about sizes in `verifier.equal.ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

Interval: TypeAlias = "tuple[float, float]"  # ends are exact integers, floats only where infinite
INF = math.inf


def polynomial(terms: Iterable[tuple[Sequence[Any], int]], of: Callable[[Any], Interval]) -> Interval:
    """Return the interval of a sum of products of atoms with coefficients, from the intervals of its atoms."""
    low: float = 0
    high: float = 0
    for mono, c in terms:
        a: float = c
        b: float = c
        if len(mono) == 1:
            a, b = of(mono[0])
            a, b = (_times(c, a), _times(c, b)) if c > 0 else (_times(c, b), _times(c, a))
        else:
            for atom in mono:
                a, b = product((a, b), of(atom))
        try:
            low, high = low + a, high + b
        except OverflowError:
            low, high = plus((low, high), (a, b))
    return low, high


def plus(x: Interval, y: Interval) -> Interval:
    """Return the interval of a sum."""
    return _sum(x[0], y[0]), _sum(x[1], y[1])


def minus(x: Interval, y: Interval) -> Interval:
    """Return the interval of a difference."""
    return _sum(x[0], -y[1]), _sum(x[1], -y[0])


def product(x: Interval, y: Interval) -> Interval:
    """Return the interval of a product."""
    (a, b), (l, h) = x, y
    ends = (_times(a, l), _times(a, h), _times(b, l), _times(b, h))
    return min(ends), max(ends)


def applied(op: str, args: Sequence[Interval]) -> Interval:
    """Return the interval of a form (`//`, `%`, `min`, `max` or `clip`); divisors are at least 1."""
    (l, h), (l2, h2) = args[:2]
    match op:
        case "//":
            ends = [_floor(p, q) for p in (l, h) for q in (max(l2, 1), max(h2, 1))]
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


def _times(a: float, b: float) -> float:
    if a == 0 or b == 0:
        return 0
    try:
        return a * b
    except OverflowError:  # an integer beyond the range of floats, by an infinite end
        return INF if (a > 0) == (b > 0) else -INF


def _sum(a: float, b: float) -> float:
    try:
        return a + b
    except OverflowError:  # as above
        return a if abs(a) == INF else b


def _floor(p: float, q: float) -> float:
    if q == INF:
        return 0 if p >= 0 else -1
    return p if abs(p) == INF else p // q
