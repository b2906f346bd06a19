"""Record of roundings of floats: which float types hold a value exactly, so that rounding to them is the identity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.scalar import UNROUNDED, numpy_dtype
from superopt.ir.types import INTEGERS
from verifier.equal.positions import LATTICE
from verifier.equal.ranges import FLOAT_BITS, of_type
from verifier.equal.terms import Apply, Const, Infinity, Read, Reduce, ScalarTerm, Where


@dataclass
class Rounded:
    """Terms that were rounded to a type when they were computed; `kinds` are the types of inputs."""

    kinds: Mapping[str, str]
    made: dict[int, tuple[ScalarTerm, str]] = field(default_factory=dict[int, tuple[ScalarTerm, str]], init=False)
    _held: dict[tuple[int, str], tuple[ScalarTerm, bool]] = field(
        default_factory=dict[tuple[int, str], tuple[ScalarTerm, bool]]
    )

    def to(self, dtype: str, made: ScalarTerm) -> ScalarTerm:
        """Register a float that was rounded to its type when it was computed."""
        self.made[id(made)] = made, dtype
        return made

    def mixed(self) -> bool:
        """Whether floats were rounded to several types."""
        return len({dtype for _, dtype in self.made.values()}) > 1

    def holds(self, dtype: str, t: ScalarTerm) -> bool:
        """Whether a float type holds the value of a term, so that rounding to it is the identity."""
        key = (id(t), dtype)
        if key not in self._held:
            self._held[key] = t, self._has(dtype, t)
        return self._held[key][1]

    def _has(self, dtype: str, t: ScalarTerm) -> bool:
        """Whether all values of a term are numbers of a type."""
        if id(t) in self.made:
            return within(self.made[id(t)][1], dtype)
        match t:
            case Read():
                return within(self.kinds.get(t.name, ""), dtype)
            case Const():
                made = float(numpy_dtype(dtype).type(float(t.value)))
                return math.isfinite(made) and Fraction(made) == t.value
            case Infinity():
                return True
            case Where():
                return self.holds(dtype, t.then) and self.holds(dtype, t.orelse)
            case Reduce():
                return t.kind in LATTICE and self.holds(dtype, t.body)
            case Apply():
                name, _, kind = t.fn.partition("[")
                if name == "narrow":
                    return within(kind.removesuffix("]"), dtype)
                if name == "convert":
                    return counts(dtype, kind.partition(",")[0])
                return name in UNROUNDED and all(self.holds(dtype, x) for x in t.args[name == "select_n" :])
            case _:
                return False


def within(source: str, target: str) -> bool:
    """Whether the float type `target` has every value of `source`."""
    both = FLOAT_BITS.get(source), FLOAT_BITS[target]
    return both[0] is not None and all(a <= b for a, b in zip(both[0], both[1], strict=True))


def counts(dtype: str, source: str) -> bool:
    """Whether the float type `dtype` has every value of the integer type `source`."""
    return source in INTEGERS and max(map(abs, of_type(source))) <= 2 ** (FLOAT_BITS[dtype][1] + 1)
