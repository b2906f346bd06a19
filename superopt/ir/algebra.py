"""The algebra protocol: the operations in which each op's semantics, its denotation, is written once.

An op's denotation gives the value of its output at one index in an abstract algebra K.  K has three sorts: scalars S,
indices I and guards B.  Indices are mathematical integers: they have `+ - *` with integers and sizes, `//` and `%` by
positive sizes, and `< <= > >=` that give guards (a Python bool where the answer is known).  They never wrap.

Choosing K derives a facet: NumPy gives the interpreter, the free algebra gives loop expressions, counts give costs.
Every algebra must satisfy laws, which are tested over the whole op table.  Folding the free form equals the direct
denotation.  `where` of True and False choose; a reduction over extents 1 is its body; `regroup` there and back is the
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from superopt.ir.types import Shape, Size

S = TypeVar("S")
I = TypeVar("I")
B = TypeVar("B")

MONOIDS = ("sum", "prod", "max", "min", "and", "or", "xor")
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}


class Algebra(Protocol[S, I, B]):
    """Scalars, indices and guards, and the operations that denotations use."""

    def const(self, value: bool | int | float, dtype: str) -> S:
        """A constant."""
        ...

    def op(self, fn: str, dtype: str, *args: S) -> S:
        """Apply a scalar function of `superopt.ir.scalar` to operands of this dtype (of the cases, for `select_n`)."""
        ...

    def convert(self, value: S, source: str, target: str) -> S:
        """Convert the value to another dtype."""
        ...

    def where(self, guard: B | bool, then: Callable[[], S], orelse: Callable[[], S]) -> S:
        """`then` where the guard holds, else `orelse`; each need only make sense where it is chosen."""
        ...

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., S], dtype: str) -> S:
        """Fold `body(*k)` over all `0 <= k < extents`, in any order; the identity of the monoid where that is empty."""
        ...

    def inverse(self, rows: Shape, columns: Shape, entry: Callable[..., S], at: Sequence[I | int], dtype: str) -> S:
        """Entry of the inverse of the matrix with the entries `entry(*r, *c)`, at the index `(*c, *r)`.

        Rows are numbered by several axes, and so are as many columns.
        """
        ...

    def to_index(self, value: S) -> I:
        """Convert an integer scalar to an index."""
        ...

    def from_index(self, index: I | int, dtype: str) -> S:
        """Convert an index to a scalar of this dtype."""
        ...

    def clip(self, index: I | int, low: Size, high: Size) -> I:
        """`min(max(index, low), high)`."""
        ...

    def all(self, *guards: B | bool) -> B | bool:
        """Conjunction."""
        ...

    def eq(self, a: I | int, b: I | int) -> B | bool:
        """Equality of indices."""
        ...

    def regroup(self, index: Sequence[I | int], outer: Shape, inner: Shape) -> Sequence[I]:
        """Return the index in `inner` at the same row-major position as `index` in `outer` (shapes of equal size)."""
        ...


AnyAlgebra = Algebra[Any, Any, Any]
Index = tuple[Any, ...]
Reader = Callable[..., Any]
