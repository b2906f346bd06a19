"""How ops take part in kernels: elementwise, views, reductions, and heavy ops that stand alone.

A *view* moves data without arithmetic and is recomputed in each reader; a *reduction* or a concatenation ends a kernel
but takes elementwise producers in; everything else that is not elementwise is *heavy*: its operands must lie in memory.
Ops with several results (control flow, opaque) have no layout: they read and give natural order.

What XLA:CPU does with a producer that several kernels read was looked up in its compiled programs: it computes cheap
ones (additions, products, comparisons, `abs`, `sin` ...) again in every reader, and keeps the result of costly ones.
"""

from __future__ import annotations

ELEMENTWISE = frozenset((
    "neg", "sign", "floor", "ceil", "round", "is_finite", "exp", "exp2", "log", "expm1", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "logistic", "erf", "erfc", "erf_inv",
    "lgamma", "digamma", "sqrt", "rsqrt", "cbrt", "abs", "square", "integer_pow", "not", "population_count", "clz",
    "add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "nextafter", "and", "or", "xor", "shift_left",
    "shift_right_logical", "shift_right_arithmetic", "eq", "ne", "lt", "le", "gt", "ge", "select_n", "clamp",
    "convert_element_type",
))  # fmt: skip
COSTLY = frozenset((
    "exp", "exp2", "log", "expm1", "log1p", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma", "sqrt", "rsqrt", "cbrt", "rem", "pow", "atan2",
    "nextafter",
))  # fmt: skip
VIEWS = frozenset(("slice", "broadcast_in_dim", "reshape", "regroup", "transpose", "pad", "rev", "iota", "literal"))
REDUCTIONS = frozenset(
    (*(f"reduce_{r}" for r in ("sum", "max", "min", "prod", "and", "or", "xor")), "argmax", "argmin")
)
WINDOWS = frozenset(f"reduce_window_{r}" for r in ("sum", "max", "min"))
CONTROL = frozenset(("while", "cond", "scan", "opaque", "result"))
CURRENT = frozenset((*REDUCTIONS, "dot_general", "conv_general_dilated"))


def is_view(op: str) -> bool:
    """The op only moves data."""
    return op in VIEWS


def is_cheap(op: str) -> bool:
    """The op is computed again in every kernel that reads it."""
    return op in VIEWS or (op in ELEMENTWISE and op not in COSTLY)


def is_heavy(op: str) -> bool:
    """The op's operands must be materialised."""
    return op not in ELEMENTWISE and op not in VIEWS and op not in REDUCTIONS and op not in ("input", "concatenate")


def ends_kernel(op: str) -> bool:
    """The op's own result must be materialised."""
    return op not in ELEMENTWISE and op not in VIEWS


def needs_current(op: str) -> bool:
    """The layouts that the op wants depend on the layouts its operands have."""
    return op in CURRENT
