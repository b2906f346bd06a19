"""How ops take part in kernels: elementwise, views, reductions, and heavy ops that stand alone.

A *view* moves data without arithmetic and is recomputed in each reader; a *reduction* or a concatenation ends a kernel
but takes elementwise producers in; everything else that is not elementwise is *heavy*: its operands must lie in memory.
Ops with several results (control flow, opaque) have no layout: they read and give natural order.

What XLA:CPU does with a producer that several kernels read was looked up in its compiled programs: it computes cheap
ones (additions, products, comparisons, `abs`, `sin` ...) again in every reader, and keeps the result of costly ones.
"""

from __future__ import annotations

from superopt.ir.ops.table import CONTRACTIONS, ELEMENTWISE, REDUCTIONS, TABLE
from superopt.ir.ops.table import VIEWS as MOVES

KEPT = frozenset(op for op in ELEMENTWISE if TABLE[op].kept)
VIEWS = MOVES | {"literal"}


def is_view(op: str) -> bool:
    """The op only moves data."""
    return op in VIEWS


def is_cheap(op: str) -> bool:
    """The op is computed again in every kernel that reads it."""
    return op in VIEWS or (op in ELEMENTWISE and op not in KEPT)


def is_heavy(op: str) -> bool:
    """The op's operands must be materialised."""
    return op not in ELEMENTWISE and op not in VIEWS and op not in REDUCTIONS and op not in ("input", "concatenate")


def ends_kernel(op: str) -> bool:
    """The op's own result must be materialised."""
    return op not in ELEMENTWISE and op not in VIEWS


def needs_current(op: str) -> bool:
    """The layouts that the op wants depend on the layouts its operands have."""
    return op in REDUCTIONS or op in CONTRACTIONS
