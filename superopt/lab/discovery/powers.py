"""Powers to constants as products, quotients and square roots, found by enumeration.

Terms over one tensor and the number 1 are built by `mul`, `div`, `sqrt`, `rsqrt`, level by level, every op over one
representative per class of equal smaller terms.  Terms of `pow` to the multiples of 1/4 up to 3 follow.  Values at a
few points distinguish terms; at two of the points roots and quotients are not defined.  Terms that agree on positive
numbers alone are a candidate only with the term on the left that is defined less often.  A candidate that the library
and the rules found so far imply is dropped; the rest is proved as every rule is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rewrites.language.parse import parse
from rewrites.library import load
from superopt.lab.discovery.implied import equations, implied
from verifier.rules.check import check
from verifier.verdict import Verdict

STEP, MOST = Fraction(1, 4), 3
"""Exponents are the multiples of `STEP` up to `MOST`."""
POINTS = np.array([-1.5, 0.0, 0.3, 1.7, 2.9])
POSITIVE = POINTS > 0
_DIGITS = 11


@dataclass(frozen=True, slots=True, eq=False)
class Power:
    """A term, the distinct ops in it, its values at `POINTS`, and whether it is a power written as such."""

    text: str
    inside: frozenset[str]
    values: np.ndarray
    power: bool = False

    @property
    def size(self) -> int:
        """Number of distinct ops."""
        return len(self.inside)

    @property
    def key(self) -> tuple[float, ...]:
        """Key shared by equal terms: the values, and where they are undefined."""
        return _rounded(self.values)

    @property
    def on_positive(self) -> tuple[float, ...]:
        """Key shared by terms that are equal on positive numbers."""
        return _rounded(self.values[POSITIVE])


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(1e300 if not np.isfinite(x) else float(f"{x:.{_DIGITS}e}") for x in values)


def exponents() -> list[Fraction]:
    """The exponents of `pow`."""
    n = int(MOST / STEP)
    return [STEP * i for i in range(-n, n + 1) if i and STEP * i != 1]


def terms(size: int) -> list[Power]:
    """Terms without `pow` of up to `size` distinct ops."""
    none = frozenset[str]()
    kept = [Power("A", none, POINTS), Power("1", none, np.ones_like(POINTS))]
    known = {x.key for x in kept}
    made = list(kept)
    for n in range(1, size + 1):
        new = [x for x in _applications(kept) if x.size == n]
        made += new
        for x in new:
            if x.key not in known:
                known.add(x.key)
                kept.append(x)
    return [x for x in made if not np.all(x.values[POSITIVE] == 1)]


def _applications(kept: Sequence[Power]) -> Iterator[Power]:
    """Applications of every op to representatives, with the operands of a product in order."""
    with np.errstate(all="ignore"):
        for x in kept:
            if x.text != "1":
                yield _made(f"sqrt({x.text})", np.sqrt(x.values), x)
                yield _made(f"rsqrt({x.text})", 1 / np.sqrt(x.values), x)
        for (i, x), (j, y) in itertools.product(enumerate(kept), repeat=2):
            if i <= j and "1" not in (x.text, y.text):
                yield _made(f"{_operand(x)} * {_operand(y)}", x.values * y.values, x, y)
            if y.text not in ("1", x.text):
                yield _made(f"{_operand(x)} / {_operand(y)}", x.values / y.values, x, y)


def _made(text: str, values: np.ndarray, *operands: Power) -> Power:
    inside = frozenset({text}).union(*(x.inside for x in operands))
    return Power(text, inside, np.where(np.isfinite(values), values, np.nan))  # an infinity on the way is no number


def _operand(x: Power) -> str:
    plain = x.size == 0 or (x.text.endswith(")") and x.text.startswith(("sqrt(", "rsqrt(")) and _closed(x.text))
    return x.text if plain else f"({x.text})"


def _closed(text: str) -> bool:
    """Whether the first parenthesis closes at the end."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and not depth:
            return i == len(text) - 1
    return False


def candidates(size: int) -> list[str]:
    """Rule texts, small ones first: powers as roots, and larger terms as the smallest equal one."""
    with np.errstate(all="ignore"):
        heads = [
            Power(text, frozenset({text}), np.power(POINTS, float(c)), power=True)
            for c in exponents()
            for text in [f"pow(A, {float(c):g})"]
        ]
    groups: dict[tuple[float, ...], list[Power]] = {}
    for x in (*heads, *terms(size)):
        groups.setdefault(x.on_positive, []).append(x)
    pairs: list[tuple[Power, Power]] = []
    for group in groups.values():
        plain = sorted((x for x in group if not x.power), key=lambda x: (x.size, x.text))
        for x in group:
            small = [y for y in plain if y is not x and (x.power or y.size < x.size) and _covers(x, y)]
            pairs += [(x, y) for y in small if y.size == small[0].size][: None if x.power else 1]
    pairs.sort(key=lambda p: (p[0].size + p[1].size, p[0].text, p[1].text))
    return [f"power-{n}: A[*a]\n  {x.text}  ==  {y.text}" for n, (x, y) in enumerate(pairs)]


def _covers(x: Power, y: Power) -> bool:
    """Whether `y` equals `x` wherever `x` is a number."""
    there = np.isfinite(x.values)
    return bool(np.allclose(x.values[there], y.values[there], rtol=1e-9, atol=0.0, equal_nan=False))


def discover_powers(size: int, library: bool, say: Callable[[str], None]) -> tuple[list[str], list[Verdict], int]:
    """Texts of the rules found, the verdicts on all candidates that were not implied, and the number of implied."""
    known = equations(load()) if library else ()
    texts: list[str] = []
    verdicts: list[Verdict] = []
    dropped = 0
    for text in candidates(size):
        rule = parse(text, where="discovered")
        if implied(rule, known):
            dropped += 1
            continue
        verdict = check(rule)
        verdicts.append(verdict)
        say(f"{text.partition(chr(10))[2].strip()}: {verdict.status}")
        if verdict.proved:
            texts.append(text)
            known = (*known, *equations([rule]))
    return texts, verdicts, dropped
