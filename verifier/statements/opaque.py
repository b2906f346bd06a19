"""Abstraction of floats for the integer tiers: truth values and integers computed from floats become fresh inputs.

The integer tiers do not interpret floats, whose comparisons are no total order, because of NaN.  Before these tiers
run, each comparison, NaN test or conversion of floats, and each reduction, is replaced by an entry of a fresh input.
Terms that are equal by exact laws, for all float values, share one entry.  Other entries are unrelated: `x < y` may be
true together with `y < x`, and is not the negation of `y <= x`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from superopt.ir.types import INTEGERS
from verifier.equal.algebra import Terms, is_truth
from verifier.equal.solver import CannotLower
from verifier.equal.terms import Apply, Read, Reduce, ScalarTerm, Where


@dataclass
class IntegersAlone:
    """Replacement of float subterms of integer terms by fresh inputs.

    Attributes:
        terms: the algebra that made the terms.
        same: whether two functions of floats are proved equal by exact laws.
    """

    terms: Terms
    same: Callable[[ScalarTerm, ScalarTerm], bool]
    _inputs: list[tuple[ScalarTerm, Read]] = field(default_factory=list[tuple[ScalarTerm, Read]])
    _known: dict[int, tuple[ScalarTerm, ScalarTerm]] = field(default_factory=dict[int, tuple[ScalarTerm, ScalarTerm]])

    def __call__(self, t: ScalarTerm) -> ScalarTerm:
        """The term with its float subterms replaced.

        Raises:
            CannotLower: a float occurs in another place.
        """
        if id(t) not in self._known:
            self._known[id(t)] = t, self._of(t)
        return self._known[id(t)][1]

    def _of(self, t: ScalarTerm) -> ScalarTerm:
        if id(t) in self.terms.floating or isinstance(t, Reduce):
            return self._input(t)
        if self.terms.is_float(t):
            raise CannotLower("a float")
        if isinstance(t, Apply):
            return replace(t, args=tuple(map(self, t.args)))
        if isinstance(t, Where):
            return replace(t, then=self(t.then), orelse=self(t.orelse))
        return t

    def _input(self, t: ScalarTerm) -> Read:
        known_entry = next((entry for made, entry in self._inputs if self.same(made, t)), None)
        if known_entry is not None:
            return known_entry
        name, dtype = f"of floats {len(self._inputs)}", self._dtype(t)
        while name in self.terms.ranges.kinds:  # avoid names of the program's inputs
            name += "'"
        if dtype not in (*INTEGERS, "bool"):
            raise CannotLower("a float")
        made = Read(name, (), dtype == "bool")
        self.terms.ranges.kinds[name] = dtype
        self._inputs.append((t, made))
        return made

    def _dtype(self, t: ScalarTerm) -> str:
        """The dtype of a truth value, an integer reduction or a conversion; empty for other terms."""
        if is_truth(t):
            return "bool"
        if isinstance(t, Apply):
            return t.fn.removesuffix("]").rpartition(",")[2]
        if isinstance(t, Reduce) and t.kind.endswith("]"):
            return t.kind.removesuffix("]").partition("[")[2]
        return self.terms.arithmetic.get(id(t), (t, ""))[1]
