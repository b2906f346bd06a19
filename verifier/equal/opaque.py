"""Floats beside integers: truth values and integers made of floats, as inputs of which nothing is known.

The tiers of integers have no meaning for a float: its comparisons are not those of a total order, which NaN is outside
of.  Before they are asked, a comparison, a test for numbers or a conversion of floats, and what is reduced, becomes the
entry of an input that is in no program.  One entry stands for all that are equal by exact laws, at every value that a
float may have; of two others nothing is said: `x < y` may be true beside `y < x`, and is not the negation of `y <= x`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from superopt.ir.types import INTEGERS
from verifier.equal.algebra import Terms, is_truth
from verifier.equal.solver import CannotLower
from verifier.equal.terms import Apply, Read, Reduce, Term, Where


@dataclass
class IntegersAlone:
    """Terms of integers without floats.

    Attributes:
        terms: the algebra that made them.
        same: have two functions of floats equal values, by exact laws?
    """

    terms: Terms
    same: Callable[[Term, Term], bool]
    _inputs: list[tuple[Term, Read]] = field(default_factory=list[tuple[Term, Read]])
    _known: dict[int, tuple[Term, Term]] = field(default_factory=dict[int, tuple[Term, Term]])

    def __call__(self, t: Term) -> Term:
        """A term of truth values and integers.

        Raises:
            CannotLower: it is made of floats otherwise.
        """
        if id(t) not in self._known:
            self._known[id(t)] = t, self._of(t)
        return self._known[id(t)][1]

    def _of(self, t: Term) -> Term:
        if id(t) in self.terms.floating or isinstance(t, Reduce):
            return self._input(t)
        if self.terms.is_float(t):
            raise CannotLower("a float")
        if isinstance(t, Apply):
            return replace(t, args=tuple(map(self, t.args)))
        if isinstance(t, Where):
            return replace(t, then=self(t.then), orelse=self(t.orelse))
        return t

    def _input(self, t: Term) -> Read:
        found = next((entry for made, entry in self._inputs if self.same(made, t)), None)
        if found is not None:
            return found
        name, dtype = f"of floats {len(self._inputs)}", self._dtype(t)
        while name in self.terms.ranges.kinds:  # an input of the program
            name += "'"
        if dtype not in (*INTEGERS, "bool"):
            raise CannotLower("a float")
        made = Read(name, (), dtype == "bool")
        self.terms.ranges.kinds[name] = dtype
        self._inputs.append((t, made))
        return made

    def _dtype(self, t: Term) -> str:
        """The type of a truth value, a sum of integers or a conversion; others have none here."""
        if is_truth(t):
            return "bool"
        if isinstance(t, Apply):
            return t.fn.removesuffix("]").rpartition(",")[2]
        if isinstance(t, Reduce) and t.kind.endswith("]"):
            return t.kind.removesuffix("]").partition("[")[2]
        return self.terms.arithmetic.get(id(t), (t, ""))[1]
