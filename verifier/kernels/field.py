"""The field of integers modulo 2^31 - 1, in which a kernel and its loop program are compared.

Sums, products and quotients are those of the field, so every law of rational functions holds, in any order.  Other
functions are keyed random functions of their operands.  A maximum is commutative and associative: operands are
scrambled, added and scrambled back; a minimum is the negative of the maximum of negatives.  A comparison is a random
function of its operands, a condition c a number with `not c` = 1 - c, a choice c x + (1 - c) y; but the choice of the
greater by a comparison of the same two is their maximum.  Values are finite: nothing is NaN.

Constants of floating point are the rational numbers that they denote if both terms are small, and differ in the field
where they differ; any other is a random number with the constant's sign, as 2^31 and 1 are one element here.  Where a
program divides by a constant c, the constant that is 1 / c rounded stands for 1 / c.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

P = (1 << 31) - 1  # prime; products of two numbers below 2^32 fit 64 bits
BLOCK = 1 << 17  # elements that are worked on at once: what is made on the way fits a second-level cache
Array = Any
_U = np.uint64
_SMALL = 1 << 15  # terms of two quotients, multiplied crosswise, are not equal modulo P unless they are equal
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # splitmix64
ORDERED = {"lt": ("less", False, False), "gt": ("less", True, False), "ge": ("less", False, True),
           "le": ("less", True, True), "eq": ("equal", False, False), "ne": ("equal", False, True)}  # fmt: skip
"""What a comparison is: a function of the field, whether operands are swapped, whether the result is denied."""


class Unread(Exception):
    """Something that validation has no meaning for; its name."""


class Field:
    """The field under a key: its random functions, and what constants stand for.

    Args:
        seed: of the key.
        divisors: constants (exact values of float32) by which the program divides.
    """

    marks = False

    def __init__(self, seed: int, divisors: Iterable[float] = ()) -> None:
        self.seed = seed
        self.shift = self.key("maximum", "shift") & P
        odd = [self.key("maximum", name) & P | 1 for name in ("first", "second")]
        self.factors = (odd[0], odd[1], pow(odd[0], -1, P + 1), pow(odd[1], -1, P + 1))
        self._reciprocals: dict[float, float] = {}
        for c in sorted({c for c in divisors if c}, key=abs, reverse=True):
            if c not in self._reciprocals:  # of two divisors that are each other's, one stands for itself
                self._reciprocals[float(np.float32(1) / np.float32(c))] = c

    def key(self, *words: Any) -> int:
        """A number of 64 bits for some words."""
        text = repr((self.seed, words)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def constant(self, value: float | None) -> int:
        """The element that a constant stands for, None for any; infinities are neutral for maxima and minima."""
        if value is None:
            return self.key("poison") % P
        if value != value:
            return self.key("nan") % P
        if value in (float("inf"), float("-inf")):
            low = int(self.unscrambled(np.zeros((), _U))) % P
            return low if value < 0 else (P - low) % P
        if value in self._reciprocals:
            return pow(self._number(self._reciprocals[value]), P - 2, P)
        return self._number(value)

    def _number(self, value: float) -> int:
        """The element that a finite number stands for."""
        over, under = value.as_integer_ratio()
        if max(abs(over), under) >= _SMALL:
            return (1 if value > 0 else -1) * (self.key("constant", abs(value)) % (P - 1) + 1) % P
        return over * pow(under, P - 2, P) % P

    def random(self, name: str, count: int) -> Array:
        """Random elements for a buffer."""
        made, key = np.empty(count, _U), self.key("buffer", name)
        for at in range(0, count, BLOCK):
            part = made[at : at + BLOCK]
            part[:] = self.hashed(key, np.arange(at, at + part.size, dtype=_U))
        return made

    # ---- arithmetic on arrays of elements below P

    def mul(self, a: Array, b: Array) -> Array:
        """a * b."""
        return a * b % _U(P)

    def neg(self, a: Array) -> Array:
        """-a."""
        return (_U(P) - a) % _U(P)

    def inverse(self, a: Array) -> Array:
        """1 / a, and 0 of 0: pairs of neighbours are multiplied until one is left, which alone is inverted."""
        flat = np.where(a == 0, _U(1), a).ravel()
        levels: list[Array] = []
        while flat.size > 1:
            flat = np.append(flat, _U(1)) if flat.size % 2 else flat
            levels.append(flat)
            flat = self.mul(flat[0::2], flat[1::2])
        flat = np.array([pow(int(x), P - 2, P) for x in flat], _U)
        for level in reversed(levels):
            wide = np.empty_like(level)
            wide[0::2], wide[1::2] = (
                self.mul(flat[: level.size // 2], level[1::2]),
                self.mul(flat[: level.size // 2], level[0::2]),
            )
            flat = wide
        return np.where(a == 0, _U(0), flat[: np.size(a)].reshape(np.shape(a)))

    def hashed(self, key: int, *xs: Array) -> Array:
        """A random function of operands below P."""
        with np.errstate(over="ignore"):
            z = _mixed(xs[0] + _U(key))
            for x in xs[1:]:
                z = _mixed(z + x)
        return (z >> _U(33)) % _U(P)

    def scrambled(self, x: Array) -> Array:
        """A bijection of 31 bits, so that sums of scrambled values identify multisets."""
        return _rounds((x + _U(self.shift)) & _U(P), self.factors[:2])

    def unscrambled(self, x: Array) -> Array:
        """Its inverse; what it gives may be P, which is 0."""
        return (_rounds(x, self.factors[:1:-1]) + _U(P + 1 - self.shift)) & _U(P)

    def maximum(self, a: Array, b: Array) -> Array:
        """The maximum of two."""
        return self.unscrambled((self.scrambled(a) + self.scrambled(b)) & _U(P)) % _U(P)

    def minimum(self, a: Array, b: Array) -> Array:
        """The minimum of two."""
        return self.neg(self.maximum(self.neg(a), self.neg(b)))

    def less(self, a: Array, b: Array) -> Array:
        """a < b."""
        return self.hashed(self.key("less"), a, b)

    def equal(self, a: Array, b: Array) -> Array:
        """a == b."""
        return self.hashed(self.key("equal"), np.minimum(a, b), np.maximum(a, b))

    def no(self, c: Array) -> Array:
        """not c."""
        return (_U(P + 1) - c) % _U(P)

    def choose(self, c: Array, x: Array, y: Array) -> Array:
        """x where c holds, else y."""
        less, more = self.less(x, y), self.less(y, x)
        plain: Array = (y + self.mul(c, (x + _U(P) - y) % _U(P))) % _U(P)
        low: Array = (c == less) | (c == self.no(more))
        high: Array = (c == more) | (c == self.no(less))
        return np.select([high, low], [self.maximum(x, y), self.minimum(x, y)], plain)


class Marks(Field):
    """Marks in the place of elements: 0, or another number for what depends on memory that nobody wrote."""

    marks = True

    def key(self, *words: Any) -> int:
        """None: functions have the marks of their operands."""
        return 0

    def constant(self, value: float | None) -> int:
        """Marked, if it may be anything."""
        return int(value is None)

    def random(self, name: str, count: int) -> Array:
        """What is in a buffer is known."""
        return np.zeros(count, _U)


def _rounds(x: Array, factors: Iterable[int]) -> Array:
    for factor in factors:
        x = ((x ^ x >> _U(16)) * _U(factor)) & _U(P)
    return x ^ x >> _U(16)


def _mixed(z: Array) -> Array:
    z = z + _U(MIX[0])
    z = (z ^ z >> _U(30)) * _U(MIX[1])
    z = (z ^ z >> _U(27)) * _U(MIX[2])
    return z ^ z >> _U(31)
