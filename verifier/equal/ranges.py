"""Ranges of integers: intervals of positions, sizes and entries, and the types that hold them.

Symbolic sizes are unbounded, machine integers are not.  An integer that is computed from sizes and positions stays a
polynomial only where its type holds it, for every size up to a bound that the verdict then names, or up to bounds that
the constraints give.  A float holds an integer exactly up to 2^(bits of its fraction + 1).

A rule concerns no type in particular: it assumes, as its certificate states, that the type holds its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.ir.intervals import INF, Interval, applied, polynomial
from superopt.ir.types import INTEGERS, UNSIGNED, range_of
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.equality import POSITIONS
from verifier.equal.poly import OPS, Poly, form_of, read_of, var
from verifier.equal.solver import Context

BOUNDS = (2**30, 2**28, 2**24)
"""Bounds on sizes to try, so that an integer is in the range of its type; if the last one fails, there is no proof."""
FLOAT_BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
"""Float type -> bits of its exponent and of its fraction."""
ANY: Interval = (-INF, INF)


@dataclass
class PremiseRanges:
    """Intervals under premises.

    Attributes:
        ctx: premises, ranges of index variables, the solver.
        least: largest size of the witness, below which no bound may be assumed.
        kinds: input -> dtype.
        bound: assumed upper bound of every size and axis; None without an assumption.
        untyped: whether the type, whatever it is, is assumed to hold every position.
        taken: whether that assumption was used.
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
        """The assumption as text for the certificate; empty without one."""
        if self.taken:
            return POSITIONS
        return "" if self.bound is None else f"every size is at most 2^{self.bound.bit_length() - 1}"

    def fits(self, p: Poly, dtype: str, facts: Sequence[Cond] = (), *, assume: bool = True) -> bool:
        """Whether an integer type holds a value; with `assume`, possibly by a bound on sizes, which is recorded."""
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
        """Assume that every size and axis is at most the bound."""
        self.bound = min(bound, self.bound or bound)

    def exact(self, p: Poly, dtype: str) -> bool:
        """Whether a float type holds an integer exactly, for all sizes."""
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
        if op not in OPS:
            return ANY
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
        """A power of two that bounds a size by the premises, or infinity."""
        if name not in self._upper:
            told = [p for p in self.ctx.premises if name in p.vars]
            bounds = (2**k for k in (3, 7, 11, 16, 20, 24, 30)) if len(told) > 1 else ()
            self._upper[name] = next((b for b in bounds if self.ctx.holds(c.ge(b, var(name)))), INF)
        return self._upper[name]


def of_type(dtype: str) -> Interval:
    """The least and the greatest value of an integer type; unbounded for other types."""
    return range_of(dtype) if dtype in INTEGERS else ANY
