"""Normal forms: what the constructors of the e-graph simplify on insertion, so that no rule has to.

Every law below holds for all sizes.  Those that the rule language can say stand in `rewrites/library/normal.py` and
are proved there; class `exact` unless marked.  (s: scalar; T: any permutation of axes.)

    elementwise     x + 0 = x (real: -0.0 + 0 is 0)    x - 0 = x    x * 1 = x    x / 1 = x    neg(neg x) = x
                    max(x, -inf) = x    min(x, inf) = x    x and true = x    x or false = x    x xor false = x
                    integer_pow(x, 1) = x    integer_pow(x, 2) = square(x)    convert to the own dtype = x
                    where(true, a, b) = a    where(p, a, a) = a
                    scalar constants are folded (only correctly rounded functions)
                    a broadcast scalar operand is used as the scalar itself
                    f(bcast x, bcast y, s) = bcast(f(x, y, s)) over the axes that are new in all operands
    broadcast       bcast(bcast x) = bcast x; unit axes of the source are dropped; iota is one axis, then broadcast
    regroup         reshape is a list of groups (axes merged -> axes split), each as small as it can be;
                    regroup(regroup x) = regroup x unless an axis order between the two makes it a real shuffle;
                    one of only single axes is a permutation; axes of size 1 are added by a broadcast;
                    regroup(bcast x) = bcast(regroup x) where no group mixes old and new axes
    slice           of everything = x; slice(slice x) = slice x; slice(bcast x) = bcast(slice x);
                    slice(concat(.., x, ..)) = slice x inside one piece; pieces that a slice does not touch are dropped
    concatenate     of one = itself; nested along one axis is flattened; adjacent slices of one tensor are one slice
    pad, rev        by zero = x; rev(rev x) = rev over the axes in one of the two
    reductions      over no axes = x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rewrites.egraph import elementwise as normal_elementwise
from rewrites.egraph import movement as normal_movement
from rewrites.egraph import shape as normal_shape
from superopt.errors import ShapeError
from superopt.ir.graph import Attrs
from superopt.ir.ops.reduction import REDUCE
from superopt.ir.ops.table import ELEMENTWISE

if TYPE_CHECKING:
    from rewrites.egraph.enode import Ref
    from rewrites.egraph.graph import EGraph

Constructor: TypeAlias = "Callable[[EGraph, Sequence[Ref], dict[str, Any]], Ref]"


def construct(eg: EGraph, op: str, children: Sequence[Ref], attrs: Attrs) -> Ref:
    """The reference to `op{attrs}(children)` in normal form; attributes are canonical already.

    Raises:
        ShapeError: the op does not accept these operand types or attributes.
    """
    if op in ELEMENTWISE:
        return normal_elementwise.elementwise(eg, op, children, attrs)
    make = _BY_OP.get(op)
    if make is not None:
        return make(eg, children, dict(attrs))
    if op in REDUCE and not dict(attrs)["axes"]:
        return eg.find(children[0])
    return eg.insert(op, attrs, children)


def _literal(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_elementwise.literal(eg, v["value"], v["dtype"])


def _transpose(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    (x,) = children
    perm = v["permutation"]
    if sorted(perm) != list(range(len(eg.shape(x)))):
        raise ShapeError(f"transpose of {eg.type(x)} by {perm}: not a permutation of its axes")
    return eg.transpose(eg.find(x), perm)


def _broadcast(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_shape.broadcast(eg, children[0], v["shape"], v["broadcast_dimensions"])


def _reshape(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_shape.reshape(eg, children[0], v["new_sizes"])


def _regroup(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_shape.regroup(eg, children[0], v["groups"])


def _iota(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_shape.iota(eg, v["dtype"], v["shape"], v["dimension"])


def _slice(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_movement.slice_(eg, children[0], v["start_indices"], v["limit_indices"], v["strides"])


def _concatenate(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_movement.concatenate(eg, children, v["dimension"])


def _pad(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_movement.pad(eg, children[0], children[1], v["padding_config"])


def _rev(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    return normal_movement.rev(eg, children[0], v["dimensions"])


_BY_OP: dict[str, Constructor] = {
    "literal": _literal,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "regroup": _regroup,
    "iota": _iota,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "rev": _rev,
}
