"""Normal forms of elementwise ops: scalars, neutral elements, constants, and broadcasts moved outwards.

Under an elementwise op a scalar stands for its broadcast; only the e-graph allows this.  Moving broadcasts outwards
keeps a folded bias a vector: without it a 64-vector becomes a frozen tensor of the size of a feature map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from rewrites.egraph import shape as normal_shape
from rewrites.egraph.perm import PERM_BITS
from superopt.ir.graph import Attrs
from superopt.ir.scalar import COMMUTATIVE, COMPARISONS
from superopt.ir.types import FLOATS

if TYPE_CHECKING:
    from rewrites.egraph.enode import Ref
    from rewrites.egraph.graph import EGraph

Scalar: TypeAlias = "bool | int | float"


def elementwise(eg: EGraph, op: str, children: Sequence[Ref], attrs: Attrs) -> Ref:
    """The reference to an elementwise op in normal form; operands are scalars or of one shape."""
    operands = [eg.find(c) for c in children]
    shapes = [eg.shape(c) for c in operands]
    full = max(shapes, key=len)
    if any(s and s != full for s in shapes):
        return eg.insert(op, attrs, operands)  # refused there, by the type rule
    if full:
        operands = [_as_scalar(eg, c) for c in operands]
        if all(not eg.rank_of_class(c >> PERM_BITS) for c in operands):
            return normal_shape.broadcast(eg, elementwise(eg, op, operands, attrs), full, ())
    constants = [eg.scalar(c) for c in operands]
    if not full and all(c is not None for c in constants):
        folded = _fold(eg, op, operands, constants, dict(attrs))
        if folded is not None:
            return folded
    same = _neutral(eg, op, operands, constants)
    if same is None:
        same = _simplify(eg, op, operands, dict(attrs))
    if same is not None:
        return same if eg.shape(same) == full else normal_shape.broadcast(eg, same, full, ())
    if op == "integer_pow" and dict(attrs)["y"] == 2:
        op, attrs = "square", ()
    hoisted = _hoist(eg, op, operands, attrs, full) if full else None
    return eg.insert(op, attrs, operands) if hoisted is None else hoisted


def literal(eg: EGraph, value: Any, dtype: str) -> Ref:
    """A scalar constant, rounded to its dtype so that equal constants are one e-node."""
    if dtype == "bool":
        value = bool(value)
    elif dtype in FLOATS:
        value = float(_numpy(dtype).type(value))
    else:
        value = int(value)
    return eg.insert("literal", (("dtype", dtype), ("value", value)), ())


def _numpy(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def _as_scalar(eg: EGraph, ref: Ref) -> Ref:
    """The scalar whose broadcast the tensor is, or the tensor."""
    for source, at in normal_shape.broadcast_views(eg, ref):
        if not at:
            return source
    return ref


def _hoist(eg: EGraph, op: str, operands: Sequence[Ref], attrs: Attrs, full: tuple[int, ...]) -> Ref | None:
    """f(bcast x, bcast y) = bcast(f(x, y)) over the axes that are new in every operand."""
    sources: list[tuple[Ref, list[int] | None]] = []
    new = set(range(len(full)))
    for c in operands:
        if not eg.rank_of_class(c >> PERM_BITS):
            sources.append((c, None))
            continue
        view = next(iter(normal_shape.broadcast_views(eg, c)), None)
        if view is None:
            return None
        new.difference_update(view[1])
        if not new:
            return None
        sources.append(view)
    kept = [i for i in range(len(full)) if i not in new]
    place = {axis: k for k, axis in enumerate(kept)}
    sizes = [full[i] for i in kept]
    inner = [
        c if at is None else normal_shape.broadcast(eg, c, sizes, [place[a] for a in at]) for c, at in sources
    ]  # fmt: skip
    return normal_shape.broadcast(eg, elementwise(eg, op, inner, attrs), full, kept)


def _neutral(eg: EGraph, op: str, operands: Sequence[Ref], constants: Sequence[Scalar | None]) -> Ref | None:
    """The operand that a neutral element leaves as it is."""
    if op == "select_n":
        return _select(eg, operands, constants)
    if len(operands) != 2 or eg.dtype(operands[0]) != eg.dtype(operands[1]):
        return None
    (a, b), (x, y) = operands, constants
    for kept, constant, commutes in ((a, y, True), (b, x, op in COMMUTATIVE)):
        if constant is not None and commutes and _is_neutral(op, constant, eg.exact and eg.dtype(kept) in FLOATS):
            return kept
    return None


def _is_neutral(op: str, c: Scalar, signed: bool) -> bool:
    """Whether x op c is x for all x; `signed`: also for x = -0.0, which x + 0.0 is not."""
    if op in ("add", "sub"):
        return c == 0 and not isinstance(c, bool) and (not signed or (math.copysign(1.0, c) < 0) == (op == "add"))
    if op in ("mul", "div"):
        return c == 1 and not isinstance(c, bool)
    if op == "max":
        return c == -math.inf
    if op == "min":
        return c == math.inf
    if op == "and":
        return c is True
    return op in ("or", "xor") and c is False


def _select(eg: EGraph, operands: Sequence[Ref], constants: Sequence[Scalar | None]) -> Ref | None:
    """The chosen case of a constant predicate."""
    which = constants[0]
    cases = operands[1:]
    if which is None or len({eg.dtype(c) for c in cases}) != 1 or which not in range(len(cases)):
        return None
    return cases[int(which)]


def _simplify(eg: EGraph, op: str, operands: Sequence[Ref], v: dict[str, Any]) -> Ref | None:
    """Laws of single ops that need no constant."""
    (x, *rest) = operands
    if op == "convert_element_type" and v["new_dtype"] == eg.dtype(x):
        return x
    if op == "integer_pow" and v["y"] == 1:
        return x
    if op == "neg":
        for node, q in eg.views(x, "neg"):
            return eg.transpose(eg.find(node[1]), q) if q else eg.find(node[1])
    if op == "select_n" and rest and all(c == rest[0] for c in rest):
        return rest[0]
    return None


# ---- constants


def _fold(eg: EGraph, op: str, operands: Sequence[Ref], constants: Sequence[Any], v: dict[str, Any]) -> Ref | None:
    """The constant f(c, ...), for functions that every implementation rounds alike."""
    dtypes = [eg.dtype(c) for c in operands]
    if op == "convert_element_type":
        source, target = dtypes[0], v["new_dtype"]
        if source in FLOATS and target not in FLOATS:
            return None
        return literal(eg, np.asarray(constants[0], _numpy(source)).astype(_numpy(target)).item(), target)
    function = _FOLDABLE.get(op)
    if function is None or len(set(dtypes)) != 1 or (op == "div" and dtypes[0] not in FLOATS):
        return None
    with np.errstate(all="ignore"):
        value = function(*[np.asarray(c, _numpy(dtypes[0])) for c in constants])
    return literal(eg, value.item(), "bool" if op in COMPARISONS else dtypes[0])


_FOLDABLE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "square": np.square,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}
