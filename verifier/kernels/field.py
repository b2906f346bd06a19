"""The field of integers modulo 2^31 - 1, in which a kernel and its loop program are compared.

Sums, products and quotients are those of the field, so every law of rational functions holds, in any order.  Other
functions are keyed random functions of their operands.  A maximum is commutative and associative: operands are
scrambled, added and unscrambled.  A minimum is the negative of the maximum of negatives.  A comparison is a random
function of its operands, a condition c a number with `not c` = 1 - c, and a select is c x + (1 - c) y.  A select of the
greater of two values by their comparison is an exception: it is their maximum.  Values are finite: nothing is NaN.

A floating-point constant is the rational number that it denotes if numerator and denominator are small; different
constants are then different elements.  Any other is a random number with the constant's sign, since 2^31 and 1 are one
element here.  Where a program divides by a constant c, the constant that is 1 / c rounded stands for 1 / c.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from superopt.ir.scalar import Array
from verifier.floats.machine import Unread as Unread

P = (1 << 31) - 1  # prime; products of two numbers below 2^32 fit 64 bits
BLOCK = 1 << 17  # elements per block: intermediate arrays fit a second-level cache
_U = np.uint64
_SMALL = 1 << 15  # bound of numerators and denominators: cross products of two fractions stay below P
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # splitmix64
ORDERED = {"lt": ("less", False, False), "gt": ("less", True, False), "ge": ("less", False, True),
           "le": ("less", True, True), "eq": ("equal", False, False), "ne": ("equal", False, True)}  # fmt: skip
"""Comparison -> function of the field, whether its operands are swapped, whether its result is negated."""


class FieldArithmetic:
    """The functions of the field on 64-bit words, written once for two backends.

    `Field` computes them on arrays, `watched.Words` emits LLVM code for them.  A word stands for an element and is
    below 2^32, not always below P.  A subclass implements an operation (`self(op, a, b)`, names as in LLVM), `select`,
    and `call` of a function in `FUNCTIONS`.
    """

    field: Field
    __call__: Callable[..., Any]
    select: Callable[..., Any]
    call: Callable[..., Any]

    def fold(self, x: Any) -> Any:
        """A smaller word with the same residue: below 2^34 for x below 2^64, below 2^31 + 8 for x below 2^34."""
        return self("add", self("and", x, P), self("lshr", x, 31))

    def least(self, x: Any) -> Any:
        """The residue below P of a word below 2^32."""
        y = self.fold(x)
        return self.select(self("icmp ult", y, P), y, self("sub", y, P))

    def no(self, c: Any) -> Any:
        """The negation 1 - c, below P, of a condition c below P."""
        return self.least(self("sub", P + 1, c))

    def mixed(self, z: Any) -> Any:
        """A bijective scrambling of 64 bits (splitmix64)."""
        z = self("add", z, MIX[0])
        z = self("mul", self("xor", z, self("lshr", z, 30)), MIX[1])
        z = self("mul", self("xor", z, self("lshr", z, 27)), MIX[2])
        return self("xor", z, self("lshr", z, 31))

    def _rounds(self, x: Any, factors: Iterable[int]) -> Any:
        """Two rounds of multiplication, each after the upper half is added to the lower."""
        for factor in factors:
            x = self("and", self("mul", self("xor", x, self("lshr", x, 16)), factor), P)
        return self("xor", x, self("lshr", x, 16))

    def scrambled(self, x: Any) -> Any:
        """A keyed bijection of 31 bits, for x below P; sums of scrambled values identify multisets."""
        return self._rounds(self("and", self("add", x, self.field.shift), P), self.field.factors[:2])

    def unscrambled(self, x: Any) -> Any:
        """The inverse of `scrambled`; the result may be P, which is the element 0."""
        return self("and", self("add", self._rounds(x, self.field.factors[:1:-1]), P + 1 - self.field.shift), P)

    def token(self, name: str, first: Any, *others: Any) -> Any:
        """A pseudorandom 64-bit word for the function `name` of some words."""
        for x in others:
            first = self.mixed(self("add", self.mixed(self("add", first, self.field.key("token", name))), x))
        return first


class Field(FieldArithmetic):
    """The field under a key: its random functions, the elements of constants, and arithmetic on arrays of elements.

    Args:
        seed: seed of the key.
        divisors: constants (exact values of float32) by which the program divides.
    """

    marks = False

    def __init__(self, seed: int, divisors: Iterable[float] = ()) -> None:
        self.seed, self.field, self.select = seed, self, np.where
        self.shift = self.key("maximum", "shift") & P
        odd = [self.key("maximum", name) & P | 1 for name in ("first", "second")]
        self.factors = (odd[0], odd[1], pow(odd[0], -1, P + 1), pow(odd[1], -1, P + 1))
        self._reciprocals: dict[float, float] = {}
        self._numbers: dict[float, int] = {}
        for c in sorted({c for c in divisors if c}, key=abs, reverse=True):
            if c not in self._reciprocals:  # of two divisors that are each other's reciprocals, one stands for itself
                self._reciprocals[float(np.float32(1) / np.float32(c))] = c

    def key(self, *words: Any) -> int:
        """A 64-bit key derived from the seed and some words."""
        text = repr((self.seed, words)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def constant(self, value: float | None) -> int:
        """The element of a constant; None stands for poison.  Infinities are neutral for maxima and minima."""
        if value is None:
            return self.key("poison") % P
        if value != value:
            return self.key("nan") % P
        if value in (float("inf"), float("-inf")):
            low = int(self.unscrambled(np.zeros((), _U))) % P
            return low if value < 0 else (P - low) % P
        if value not in self._numbers:  # vectors of constants repeat one
            divisor = self._reciprocals.get(value)
            number = self._number(value) if divisor is None else pow(self._number(divisor), P - 2, P)
            self._numbers[value] = number
        return self._numbers[value]

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
            part[:] = self.call("hash", key, np.arange(at, at + part.size, dtype=_U))
        return made

    # ---- arithmetic on arrays of elements below P

    def __call__(self, op: str, a: Array, b: Array) -> Array:
        """An operation on words."""
        return _NUMPY[op](a, b)

    def call(self, name: str, *xs: Any) -> Array:
        """A function of `FUNCTIONS` on arrays, with results below P."""
        with np.errstate(over="ignore"):
            return FUNCTIONS[name][1](self, xs) % _U(P)

    def inverse(self, a: Array) -> Array:
        """1 / a, and 0 for 0, by batch inversion: neighbours are multiplied until one element is left to invert."""
        if np.size(a) < 2:
            return np.array([pow(int(x), P - 2, P) for x in np.ravel(a)], _U).reshape(np.shape(a))
        flat = np.where(a == 0, _U(1), a).ravel()
        pairs = np.append(flat, np.ones(flat.size % 2, _U)).reshape(-1, 2)
        both = self.inverse(pairs[:, 0] * pairs[:, 1] % _U(P))
        inverses = (pairs[:, ::-1] * both[:, None] % _U(P)).ravel()[: flat.size].reshape(np.shape(a))
        return np.where(a == 0, _U(0), inverses)


class Marks(Field):
    """Taint marks in place of elements: nonzero for values that depend on unwritten memory, else 0."""

    marks = True

    def key(self, *words: Any) -> int:
        """The key 0: a function has the marks of its operands."""
        return 0

    def constant(self, value: float | None) -> int:
        """The mark of a constant: 1 for poison, else 0."""
        return int(value is None)

    def random(self, name: str, count: int) -> Array:
        """The marks of an input buffer, all 0."""
        return np.zeros(count, _U)


_NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshr": np.right_shift, "icmp ult": np.less, "icmp eq": np.equal,
}  # fmt: skip


def _inverse(w: FieldArithmetic, x: Sequence[Any]) -> Any:
    power = x[0]  # to the power of 2^31 - 3, the bits of which are 1 but for the second
    for bit in range(29, -1, -1):
        power = w.call("mul", power, power)
        if bit != 1:
            power = w.call("mul", power, x[0])
    return power


def _equal(w: FieldArithmetic, x: Sequence[Any]) -> Any:
    a, b = [w.least(y) for y in x]
    below = w("icmp ult", a, b)
    return w.call("pair", w.field.key("equal"), w.select(below, a, b), w.select(below, b, a))


def _choose(w: FieldArithmetic, x: Sequence[Any]) -> Any:
    """Select a where c holds, else b; a comparison of a with b as condition gives their maximum or minimum."""
    c, a, b = [w.least(y) for y in x]
    less, more = [w.least(w.call("less", *pair)) for pair in ((a, b), (b, a))]
    least, greatest = w.call("minimum", a, b), w.call("maximum", a, b)
    made = w.call("fma", c, w.least(w("sub", w("add", a, P), b)), b)
    for told, chosen in ((less, least), (w.no(more), least), (more, greatest), (w.no(less), greatest)):
        made = w.select(w("icmp eq", c, told), chosen, made)
    return made


FUNCTIONS: dict[str, tuple[str, Callable[[FieldArithmetic, Sequence[Any]], Any]]] = {
    "add": ("ab", lambda w, x: w.fold(w("add", *x))),
    "sub": ("ab", lambda w, x: w.fold(w("add", x[0], w("sub", 4 * P, x[1])))),
    "mul": ("ab", lambda w, x: w.fold(w.fold(w("mul", *x)))),
    "fma": ("abc", lambda w, x: w.fold(w.fold(w("add", w("mul", x[0], x[1]), x[2])))),
    "inverse": ("a", _inverse),
    "hash": ("ka", lambda w, x: w("lshr", w.mixed(w("add", w.least(x[1]), x[0])), 33)),
    "pair": ("kab", lambda w, x: w.call("hash", w.mixed(w("add", w.least(x[1]), x[0])), x[2])),
    "less": ("ab", lambda w, x: w.call("pair", w.field.key("less"), *x)),
    "equal": ("ab", _equal),
    "maximum": ("ab", lambda w, x: w.unscrambled(w("and", w("add", *[w.scrambled(w.least(y)) for y in x]), P))),
    "minimum": ("ab", lambda w, x: w("sub", 2 * P, w.call("maximum", *[w.call("sub", 0, y) for y in x]))),
    "choose": ("cab", _choose),
}
"""Function on words -> its parameters and its definition; the parameter `k` is the key of a random function."""
