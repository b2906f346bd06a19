"""Division by sizes, minima, maxima and clips, simplified by what ranges say.

(d*y + z) // b = y // (b/d)  and  (d*y + z) % b = d * (y % (b/d)) + z      where 0 <= z < d and d divides b
(x // a) // b = x // (a*b)     (x % a) % b = x % b                         where b divides a
"""

from __future__ import annotations

import math
from collections.abc import Callable

from superopt.ir.index.poly import Form, Mono, Poly, Size, make, of_atom, terms_of
from superopt.ir.index.ranges import INF, bounds, decide

_STEPS = 8  # multiples of a sum are taken out at most this often


def divide(a: Size, b: Size) -> tuple[Size, Size]:
    """Floor quotient and remainder, simplified by ranges.

    Raises:
        ZeroDivisionError: b is 0.
        ValueError: b is a negative constant.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"{a} divided by 0")
        if b < 0:
            raise ValueError(f"{a} divided by the negative constant {b}")
        return (a // b, a % b) if isinstance(a, int) else _divide_by_int(a, b)
    return _divide_by_poly(a, b)


def _divide_by_int(a: Poly, b: int) -> tuple[Size, Size]:
    if b == 1:
        return a, 0
    whole: dict[Mono, int] = {}
    left: dict[Mono, int] = {}
    for m, c in a.terms:
        q = c // b if not m or c % b == 0 else int(c / b)
        whole[m], left[m] = q, c - q * b
    quotient, rest = make(whole), make(left)
    if isinstance(rest, int):
        return quotient, rest
    low, high = bounds(rest)
    if low > -INF and high < INF and low // b == high // b:
        k = int(low // b)
        return quotient + k, rest - k * b
    for d in sorted({math.gcd(c, b) for m, c in rest.terms if m} - {1, b}, reverse=True):
        # (d*y + z) // b = y // (b/d) and (d*y + z) % b = d * (y % (b/d)) + z where 0 <= z < d
        coarse = make({m: c // d for m, c in rest.terms if c % d == 0})
        fine = make({m: c for m, c in rest.terms if c % d})
        low, high = bounds(fine)
        if isinstance(coarse, Poly) and low >= 0 and high < d:
            q, r = divide(coarse, b // d)
            return quotient + q, r * d + fine
    if rest.is_atom and isinstance(form := rest.terms[0][0][0], Form) and isinstance(k := form.args[-1], int):
        x = form.args[0]
        if form.op == "//":
            return quotient + divide(x, k * b)[0], of_atom(Form("%", (rest, b)))
        if form.op == "%" and k % b == 0:
            return quotient + of_atom(Form("//", (rest, b))), divide(x, b)[1]
    return quotient + of_atom(Form("//", (rest, b))), of_atom(Form("%", (rest, b)))


def _divide_by_poly(a: Size, b: Poly) -> tuple[Size, Size]:
    whole: dict[Mono, int] = {}
    left: dict[Mono, int] = {}
    lead, k = b.terms[0]
    for m, c in terms_of(a):
        part = _without(m, lead) if len(b.terms) == 1 and c % k == 0 else None
        if part is None:
            left[m] = left.get(m, 0) + c
        else:
            whole[part] = whole.get(part, 0) + c // k
    quotient, rest = make(whole), make(left)
    for _ in range(_STEPS if len(b.terms) > 1 else 0):  # take out multiples of a sum, led by its first term
        found = next(
            ((p, c // k) for m, c in terms_of(rest) if c % k == 0 and (p := _without(m, lead)) is not None), None
        )
        if found is None:
            break
        step = make({found[0]: found[1]})
        fewer = rest - step * b
        if len(terms_of(fewer)) >= len(terms_of(rest)):
            break
        quotient, rest = quotient + step, fewer
    if isinstance(rest, int) and rest == 0:
        return quotient, 0
    if decide(rest) is True and decide(b - 1 - rest) is True:
        return quotient, rest
    return quotient + of_atom(Form("//", (rest, b))), of_atom(Form("%", (rest, b)))


def _without(mono: Mono, part: Mono) -> Mono | None:
    left = list(mono)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def least(a: Size, b: Size) -> Size:
    """min(a, b)."""
    known = decide(b - a)
    if known is not None:
        return a if known else b
    first, second = sorted((a, b), key=_size_key)
    return of_atom(Form("min", (first, second)))


def greatest(a: Size, b: Size) -> Size:
    """max(a, b)."""
    known = decide(a - b)
    if known is not None:
        return a if known else b
    first, second = sorted((a, b), key=_size_key)
    return of_atom(Form("max", (first, second)))


def clip(x: Size, low: Size, high: Size) -> Size:
    """min(max(x, low), high)."""
    if isinstance(x, int) and isinstance(low, int) and isinstance(high, int):
        return min(max(x, low), high)
    if decide(x - low) is True and decide(high - x) is True:
        return x
    return of_atom(Form("clip", (x, low, high)))


def _size_key(x: Size) -> str:
    return x.key if isinstance(x, Poly) else f"{x:+021d}"


def _quotient(a: Size, b: Size) -> Size:
    return divide(a, b)[0]


def _remainder(a: Size, b: Size) -> Size:
    return divide(a, b)[1]


APPLY: dict[str, Callable[..., Size]] = {
    "//": _quotient, "%": _remainder, "min": least, "max": greatest, "clip": clip,
}  # fmt: skip
