"""Where values are not defined everywhere: divisors and partial functions that a normal form met, each with its trail.

A value matters only where it is needed: a quotient in one branch of a choice says nothing about the other branch.  The
trail holds the conditions on indices and the Boolean atoms under which the term at hand is looked at.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from verifier.equal.conditions import Cond
from verifier.equal.monomial import NF, Atom, Trail


@dataclass
class Definedness:
    """What is divided by, what is thereby known not to be zero, and values of partial functions."""

    denominators: list[tuple[NF, Trail]] = field(default_factory=list[Any], init=False)
    inverted: list[tuple[Atom, Trail]] = field(default_factory=list[Any], init=False)
    partial: list[tuple[Atom, Trail]] = field(default_factory=list[Any], init=False)
    trail: list[Any] = field(default_factory=list[Any], init=False)

    @contextmanager
    def under(self, *known: Cond | tuple[Atom, bool]) -> Generator[None]:
        """Everything inside is needed only where this holds."""
        self.trail += known
        try:
            yield
        finally:
            del self.trail[len(self.trail) - len(known) :]

    def divided_by(self, p: NF, atoms: Sequence[Atom]) -> None:
        """A divisor, and values that are not zero where it is not."""
        trail = tuple(self.trail)
        self.denominators.append((p, trail))
        self.inverted += [(replace(a, exp=1), trail) for a in atoms]
