"""Linear systems: inverses of matrices, and solutions, which are products with inverses.

    inverse   out[b, i, j] = entry (i, j) of the inverse of x[b].
    solve     out[b, i, k] = sum over j of (entry (i, j) of the inverse of a[b]) * y[b, j, k].

Where a matrix has no inverse, its entries are no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import Act, Along, AxisRule, Flow, Laid, Order, Shapes, runs, singly
from superopt.ir.ops.record import Op, Site, Types, Values, define, require, require_shape, show
from superopt.ir.types import Size, TensorType

TABLE: dict[str, Op] = {}
DTYPES = ("float32", "float64")


def _square(name: str, x: TensorType, types: Types) -> None:
    if x.rank < 2 or x.dtype not in DTYPES:
        raise ShapeError(f"{name} needs matrices of {' or '.join(DTYPES)}; got {show(types)}")
    require(x.shape[-2] == x.shape[-1], f"{name} needs square matrices", types)


def _inverse_rule(types: Types, attrs: Values) -> TensorType:
    (x,) = types
    _square("inverse", x, types)
    return x


def _entries(x: Reader, batch: Sequence[Any]) -> Reader:
    """Entries of one matrix of a batch."""

    def entry(*place: Any) -> Any:
        return x(*batch, *place)

    return entry


def _inverse(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    batch, at = i[:-2], i[-2:]
    x = site.inputs[0]
    return k.inverse(x.shape[-2:-1], x.shape[-1:], _entries(xs[0], batch), at, x.dtype)


def _solve_rule(types: Types, attrs: Values) -> TensorType:
    a, y = types
    _square("solve", a, types)
    if y.rank != a.rank or y.dtype != a.dtype:
        raise ShapeError(f"solve needs operands of one rank and dtype; got {show(types)}")
    require_shape(y.shape[:-1], a.shape[:-1], "solve needs as many right sides, of as many rows, as matrices", types)
    return y


def _solve(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    *batch, row, column = i
    a = site.inputs[0]
    rows, columns, dtype = a.shape[-2:-1], a.shape[-1:], a.dtype

    def body(j: Any) -> Any:
        entry = k.inverse(rows, columns, _entries(xs[0], batch), (row, j), dtype)
        return k.op("mul", dtype, entry, xs[1](*batch, j, column))

    return k.reduce("sum", rows, body, dtype)


class _Inverted(AxisRule):
    """Rows of the result are columns of the matrix; its columns are rows of the matrix, or those of the right side."""

    follows = False

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return one atom for each axis of the matrix, and one for the columns of a right side."""
        *batch, row, column = singly(len(shape))
        matrix = (*batch, row, column)
        if len(shapes) == 1:
            acts = {atom: Act(Along.MIX) for (atom,) in (row, column)}
            return Flow((matrix,), runs((*batch, column, row)), acts)
        right = (len(shape),)
        acts = {column[0]: Act(Along.MIX)}
        return Flow((matrix, (*batch, row, right)), runs((*batch, column, right)), acts)

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return the order of the entry: batch axes, rows, columns."""
        return tuple([tuple(range(len(order))) for order in orders])

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Return the op itself."""
        return Laid(dict(v), tuple(range(len(orders))), tuple(range(len(orders[0]))))


define(TABLE, "inverse", "linear", 1, _inverse_rule, _inverse, axes=_Inverted(), partial=True, poles=True)
define(TABLE, "solve", "linear", 2, _solve_rule, _solve, axes=_Inverted(), partial=True, poles=True)
