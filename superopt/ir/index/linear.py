"""Linear positions: the row-major place of an index, and the factor of one iterator in it."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.index.poly import Size, Symbol


def row_major(index: Sequence[Size], shape: Sequence[Size]) -> Size:
    """The position of an index in an array of this shape, its last axis contiguous."""
    at: Size = 0
    for i, n in zip(index, shape, strict=True):
        at = at * n + i
    return at


def coefficient(x: Size, s: Symbol) -> int | None:
    """The integer factor of a symbol in an index; None where the index is not affine in it."""
    if isinstance(x, int) or s not in x.symbols:
        return 0
    found = 0
    for mono, c in x.terms:
        if mono == (s,):
            found = c
        elif any(s in atom.symbols for atom in mono):
            return None
    return found
