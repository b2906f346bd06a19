"""Integer polynomials: symbolic sizes, loop indices and symbolic attributes, in normal form.

A `Poly` is a sum of integer multiples of products of atoms.  An atom is a `Symbol` (a size, or a loop iterator, with
its range) or a `Form`: `a // b`, `a % b`, `min(a, b)`, `max(a, b)`, `clip(x, low, high)`, or an integer `value` read
from a tensor.  Polynomials that are equal as polynomials in their atoms are equal objects, and one that is constant
is a Python `int`.  `//` is the floor, for divisors >= 1; `a % b = a - b * (a // b)`.

Comparisons give a bool where ranges decide them, else a `Guard`: a conjunction of polynomials that must be >= 0.
Ranges of symbols may be symbolic themselves (an iterator below `n`); `decide` substitutes them.
"""

from __future__ import annotations

from superopt.ir.index.division import APPLY, clip, divide, greatest, least
from superopt.ir.index.linear import coefficient, row_major
from superopt.ir.index.poly import Atom, Form, Guard, Mono, Poly, Size, Symbol, Truth, Value, iterator, of_atom, symbol
from superopt.ir.index.ranges import all_of, applied, bounds, decide, equal, nonnegative, product
from superopt.ir.index.walk import concrete, evaluate, substitute, substitute_guard

__all__ = [
    "APPLY", "Atom", "Form", "Guard", "Mono", "Poly", "Size", "Symbol", "Truth", "Value",
    "all_of", "applied", "bounds", "clip", "coefficient", "concrete", "decide", "divide", "equal", "evaluate",
    "greatest", "iterator", "least", "nonnegative", "of_atom", "product", "row_major", "substitute",
    "substitute_guard", "symbol",
]  # fmt: skip
