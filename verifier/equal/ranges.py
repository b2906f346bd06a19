"""What integers can be: intervals of positions, sizes and entries, and the types that hold them.

A size is an integer without a bound; a machine has none of those.  An integer that is computed from sizes and positions
stays a polynomial only where its type holds it, for every size up to a bound that the verdict then names, or up to
bounds that the constraints give.  A float holds an integer exactly up to 2^(bits of its fraction + 1).

A rule is about no type in particular: there it is taken for granted, and said, that the type holds its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.ir.intervals import INF, Interval, applied, polynomial
from superopt.ir.types import INTEGERS, UNSIGNED, range_of
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.equality import POSITIONS
from verifier.equal.poly import Poly, form_of, read_of, var
from verifier.equal.solver import Context

BOUNDS = (2**30, 2**28, 2**24)
"""Bounds of sizes under which an integer may be in the range of its type: below the last one nothing is proved."""
FLOAT_BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
"""Bits of the exponent and of the fraction."""
ANY: Interval = (-INF, INF)


@dataclass
class PremiseRanges:
    """Intervals under premises.

    Attributes:
        ctx: premises, ranges of index variables, the solver.
        least: a bound of sizes below this one is met by no sizes that were found.
        kinds: input -> dtype.
        bound: every size and axis is taken to be at most this; None: nothing was assumed.
        untyped: whatever the type is, it is taken to hold every position.
        taken: that was made use of.
    """

    ctx: Context
    least: int = 1
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    bound: int | None = None
    untyped: bool = False
    taken: bool = False
    _upper: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def assumption(self) -> str:
        """What was assumed, in words; empty where nothing was."""
        if self.taken:
            return POSITIONS
        return "" if self.bound is None else f"every size is at most 2^{self.bound.bit_length() - 1}"

    def fits(self, p: Poly, dtype: str, facts: Sequence[Cond] = (), *, assume: bool = True) -> bool:
        """Does an integer type hold a value: with `assume` for every size up to a bound, which is kept."""
        if self._granted(p):
            return True
        low, high = of_type(dtype)
        for most in (INF, *(b for b in BOUNDS if assume and b >= self.least)):
            a, b = self.interval(p, most, facts)
            if a < low and dtype in UNSIGNED and b <= high and self.ctx.holds(c.ge(p, 0), facts):
                a = 0
            if low <= a and b <= high:
                if most != INF:
                    self.assume(int(most))
                return True
        return False

    def assume(self, bound: int = BOUNDS[0]) -> None:
        """Every size and axis is at most the bound."""
        self.bound = min(bound, self.bound or bound)

    def exact(self, p: Poly, dtype: str) -> bool:
        """Does a float type hold an integer as it is, whatever the sizes are?"""
        if self._granted(p):
            return True
        a, b = self.interval(p)
        return -a <= 2 ** (FLOAT_BITS[dtype][1] + 1) >= b

    def _granted(self, p: Poly) -> bool:
        self.taken |= self.untyped and p.value is None
        return self.untyped

    def interval(self, p: Poly, most: float = INF, facts: Sequence[Cond] = ()) -> Interval:
        """Bounds of a polynomial where every size is at most `most`."""
        return polynomial(p.terms, lambda atom: self._atom(atom, most, facts))

    def _atom(self, atom: str, most: float, facts: Sequence[Cond]) -> Interval:
        form = form_of(atom)
        if form is None:
            size = self.ctx.range_of(atom)
            if size is None:
                return (0, min(most, self._most(atom)))
            return (0, min(most, self.interval(size, most)[1]) - 1)
        if (read := read_of(atom)) is not None:
            return self._narrowed(atom, of_type(self.kinds.get(read[0], "")), most, facts)
        op, args = form
        return applied(op, [self.interval(x, most, facts) for x in args])

    def _narrowed(self, atom: str, known: Interval, most: float, facts: Sequence[Cond]) -> Interval:
        """The interval of an entry under conditions on it."""
        low, high = known
        for f in facts:
            k = dict(f.poly.terms).get((atom,)) if f.poly is not None and f.kind in ("ge", "eq") else None
            if k is None or f.poly is None:
                continue
            rest = f.poly - var(atom).scale(k)
            if atom in rest.forms:
                continue
            a, b = self.interval(rest, most)
            signs = (k, -k) if f.kind == "eq" else (k,)
            for sign in signs:  # sign * x + r >= 0 with r in [a, b], or [-b, -a]
                top = b if sign == k else -a
                if abs(top) == INF:
                    continue
                if sign > 0:
                    low = max(low, -(top // sign))
                else:
                    high = min(high, top // -sign)
        return low, high

    def _most(self, name: str) -> float:
        """A power of two that the premises make a bound of a size."""
        if name not in self._upper:
            told = [p for p in self.ctx.premises if name in p.vars]
            bounds = (2**k for k in (3, 7, 11, 16, 20, 24, 30)) if len(told) > 1 else ()
            self._upper[name] = next((b for b in bounds if self.ctx.holds(c.ge(b, var(name)))), INF)
        return self._upper[name]


def of_type(dtype: str) -> Interval:
    """The least and the greatest value of a type, where it is one of integers."""
    return range_of(dtype) if dtype in INTEGERS else ANY
