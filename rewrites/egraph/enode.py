"""References, e-nodes and their origins, and the canonical forms of e-nodes.

In the canonical form, permutations are pulled out of the children as far as the attributes can absorb them.  For each
op, `canon(eg, number, spec, children)` gives an e-node and a permutation p with

    value(op{attrs}(children)) = transpose(value(e-node), p)

such that terms that differ only in the order of axes become one e-node.  By family:

* elementwise: the permutation of the first non-scalar child is divided out of all; operands of commutative ops are
  sorted, scalars last.
* slice, pad, rev, reductions, windows, scans: attributes are rewritten in the child's natural axes.
* broadcast: source axes first, then the new axes by size; regroup: groups by their first axis.
* dot_general: contracted, batch and free axes in natural order, operands sorted.
* convolution: the dimension numbers absorb all orders, spatial axes ascend in the image, the result is (batch, feature,
  spatial ...).
* gather: batch axes first, then offset axes; dynamic_slice, dynamic_update_slice: starts reordered.
* macros follow the op that they lower; control flow and opaque nodes keep the permutations on their children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rewrites.egraph.perm import CLASS_MASK, PERM_BITS, PERM_MASK, PERMS, compose, intern, inverse, inverse_of, perm_of
from superopt.errors import SuperoptError
from superopt.ir.graph import Attrs
from superopt.ir.ops import table
from superopt.ir.ops.contraction import DotNumbers, free_axes
from superopt.ir.ops.table import CONVOLUTIONS, ELEMENTWISE, PREFIXES, PRODUCTS, REDUCTIONS, WINDOWS
from superopt.ir.scalar import COMMUTATIVE
from superopt.ir.types import TensorType

if TYPE_CHECKING:
    from rewrites.egraph.graph import EGraph

Ref: TypeAlias = int
ENode: TypeAlias = tuple[int, ...]
IntShape: TypeAlias = tuple[int, ...]
Groups: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
Canon: TypeAlias = "Callable[[EGraph, int, OpAttrs, list[Ref]], tuple[ENode, int]]"


class LimitReachedError(SuperoptError):
    """Raised when growth reaches a limit; `reason` is `enodes` or `seconds`.  The e-graph stays consistent."""

    code = "SO421"

    def __init__(self, reason: str) -> None:
        super().__init__(f"e-graph growth stopped by its limit of {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Origin:
    """The rule instance that introduced an e-node or a union."""

    rule: str
    step: int
    roots: tuple[Ref, ...]


class OpAttrs:
    """An interned op with its attributes."""

    __slots__ = ("attrs", "canon", "elementwise", "op", "values")

    def __init__(self, op: str, attrs: Attrs) -> None:
        self.op = op
        self.attrs = attrs
        self.values: dict[str, Any] = dict(attrs)
        self.elementwise = op in ELEMENTWISE
        self.canon = canon_of(op)

    def infer(self, shapes: Sequence[IntShape], dtypes: Sequence[str]) -> tuple[TensorType, ...]:
        """Types of the results; scalar operands of elementwise ops count as broadcast, a macro as its op.

        Raises:
            ShapeError: the op does not accept these operands.
        """
        if self.elementwise:
            full = max(shapes, key=len)
            shapes = [s or full for s in shapes]
        operands = tuple([TensorType(s, d) for s, d in zip(shapes, dtypes, strict=True)])
        if self.op == "macro":
            return table.infer(self.values["op"], operands, self.values["attrs"])
        return table.infer(self.op, operands, self.attrs)


# ---- canonical forms


def canon_of(op: str) -> Canon:
    """The function that canonicalises e-nodes of an op; unknown ops keep their children as they are."""
    if op in COMMUTATIVE:
        return _commutative
    if op in ELEMENTWISE:
        return _elementwise
    if op in REDUCTIONS:
        return _reduce
    if op in WINDOWS:
        return _window
    if op in PREFIXES:
        return _scan
    return _BY_OP.get(op, _verbatim)


def _verbatim(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    return (number, *children), 0


def _attrs(spec: OpAttrs, **changed: Any) -> tuple[tuple[str, Any], ...]:
    """The attributes with some values changed, in the same order."""
    return tuple([(name, changed.get(name, value)) for name, value in spec.attrs])


def _remake(eg: EGraph, spec: OpAttrs, children: Sequence[Ref], **changed: Any) -> ENode:
    return (eg.intern_op(spec.op, _attrs(spec, **changed)), *children)


def _ints(spec: OpAttrs, name: str) -> tuple[int, ...]:
    """An attribute that is a tuple of integers."""
    return spec.values[name]


def _unpermute(perm: Sequence[int], per_axis: Sequence[Any]) -> tuple[Any, ...]:
    """Reorder per-axis values of transpose(x, perm) into per-axis values of x."""
    out: list[Any] = [None] * len(perm)
    for i, axis in enumerate(perm):
        out[axis] = per_axis[i]
    return tuple(out)


def _divide(children: list[Ref], p: int, ranks: Sequence[int]) -> list[Ref]:
    """The children with `p` divided out of all that are not scalars."""
    q = inverse(p)
    return [
        r if not rank else r & CLASS_MASK | compose(r & PERM_MASK, q) for r, rank in zip(children, ranks, strict=True)
    ]


# ---- elementwise


def _elementwise(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    for r in children:
        if eg.rank_of_class(r >> PERM_BITS):
            p = r & PERM_MASK
            if p:
                children = _divide(children, p, [eg.rank_of_class(x >> PERM_BITS) for x in children])
            return (number, *children), p
    return (number, *children), 0


def _commutative(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    a, b = children
    ra, rb = eg.rank_of_class(a >> PERM_BITS), eg.rank_of_class(b >> PERM_BITS)
    if (a >> PERM_BITS) == (b >> PERM_BITS):
        return _twins(number, a, b)
    if (not ra, a >> PERM_BITS) > (not rb, b >> PERM_BITS):
        a, b, ra, rb = b, a, rb, ra
    p = a & PERM_MASK
    if p and rb:
        b = b & CLASS_MASK | compose(b & PERM_MASK, inverse(p))
    return (number, a & CLASS_MASK, b), p


def _twins(number: int, a: Ref, b: Ref) -> tuple[ENode, int]:
    """Canonical form of f(x^p, x^q), both operands of one class.

    (x, x^s) and (x, x^inverse(s)) differ by an outer permutation alone; the smaller one is kept.
    """
    p, q = a & PERM_MASK, b & PERM_MASK
    base = a & CLASS_MASK
    s, t = compose(q, inverse(p)), compose(p, inverse(q))
    if s and t and PERMS[t] < PERMS[s]:
        s, p = t, q
    return (number, base, base | s), p


# ---- one tensor, per-axis attributes


def _permuted(eg: EGraph, r: Ref) -> tuple[int, tuple[int, ...]]:
    p = r & PERM_MASK
    return p, perm_of(p, eg.rank_of_class(r >> PERM_BITS))


def _slice(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    v = spec.values
    changed = {k: _unpermute(perm, v[k]) for k in ("start_indices", "limit_indices", "strides")}
    return _remake(eg, spec, [children[0] & CLASS_MASK], **changed), p


def _pad(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    config = _unpermute(perm, spec.values["padding_config"])
    return _remake(eg, spec, [children[0] & CLASS_MASK, children[1]], padding_config=config), p


def _rev(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    dims = tuple(sorted([perm[d] for d in _ints(spec, "dimensions")]))
    return _remake(eg, spec, [children[0] & CLASS_MASK], dimensions=dims), p


def _window(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    changed = {name: _unpermute(perm, value) for name, value in spec.attrs}
    return _remake(eg, spec, [children[0] & CLASS_MASK], **changed), p


def _scan(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    return _remake(eg, spec, [children[0] & CLASS_MASK], axis=perm[spec.values["axis"]]), p


def _reduce(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    axes = _ints(spec, "axes")
    natural = tuple(sorted([perm[a] for a in axes]))
    if not p and natural == axes:
        return (number, *children), 0
    position = {axis: i for i, axis in enumerate(a for a in range(len(perm)) if a not in natural)}
    out = [position[perm[j]] for j in range(len(perm)) if j not in axes]
    return _remake(eg, spec, [children[0] & CLASS_MASK], axes=natural), intern(out)


def _broadcast(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    _, perm = _permuted(eg, children[0])
    shape, dims = _ints(spec, "shape"), _ints(spec, "broadcast_dimensions")
    source = [0] * len(dims)
    for j, d in enumerate(dims):
        source[perm[j]] = d
    new = sorted([i for i in range(len(shape)) if i not in dims], key=lambda i: (shape[i], i))
    order = source + new  # natural axis k is axis order[k] of the result
    changed = {"shape": tuple([shape[i] for i in order]), "broadcast_dimensions": tuple(range(len(dims)))}
    return _remake(eg, spec, [children[0] & CLASS_MASK], **changed), intern(inverse_of(order))


def _regroup(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    _, perm = _permuted(eg, children[0])
    given: Groups = spec.values["groups"]
    groups = [(tuple([perm[a] for a in ins]), outs) for ins, outs in given]
    order = sorted(range(len(groups)), key=lambda k: (groups[k][0] or (len(perm),), k))
    start, total = [0] * len(groups), 0
    for k in order:
        start[k] = total
        total += len(groups[k][1])
    out = [start[k] + j for k in range(len(groups)) for j in range(len(groups[k][1]))]
    return _remake(eg, spec, [children[0] & CLASS_MASK], groups=tuple([groups[k] for k in order])), intern(out)


def _concatenate(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    return _remake(eg, spec, _divide(children, p, [1] * len(children)), dimension=perm[spec.values["dimension"]]), p


# ---- indexed


def _dynamic_slice(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    starts = _unpermute(perm, children[1:])
    sizes = _unpermute(perm, spec.values["slice_sizes"])
    return _remake(eg, spec, [children[0] & CLASS_MASK, *starts], slice_sizes=sizes), p


def _dynamic_update_slice(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    p, perm = _permuted(eg, children[0])
    if not p:
        return (number, *children), 0
    return (number, *_divide(children[:2], p, (1, 1)), *_unpermute(perm, children[2:])), p


def _gather(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    """Put operand axes and batch axes of the indices in natural order; an order that moves the index vector stays."""
    x, indices = children
    _, perm = _permuted(eg, x)
    collapsed, operand_batch = _ints(spec, "collapsed_slice_dims"), _ints(spec, "operand_batching_dims")
    rank_i = eg.rank_of_class(indices >> PERM_BITS)
    perm_i = perm_of(indices & PERM_MASK, rank_i)
    if rank_i and perm_i[-1] != rank_i - 1:
        perm_i = tuple(range(rank_i))
    else:
        indices &= CLASS_MASK
    skipped = {*collapsed, *operand_batch}
    offset_dims = _ints(spec, "offset_dims")
    rank_out = len(offset_dims) + max(rank_i - 1, 0)
    batch_positions = [d for d in range(rank_out) if d not in offset_dims]
    # what each axis of the result is: a batch axis of the indices, or an offset axis of the operand (natural axes)
    label: list[tuple[int, int]] = [(0, 0)] * rank_out
    for j, d in enumerate(batch_positions):
        label[d] = (0, perm_i[j])
    for d, a in zip(offset_dims, [a for a in range(len(perm)) if a not in skipped], strict=True):
        label[d] = (1, perm[a])
    position = {lab: k for k, lab in enumerate(sorted(label))}
    batching = sorted(
        (perm[a], perm_i[b]) for a, b in zip(operand_batch, _ints(spec, "start_indices_batching_dims"), strict=True)
    )
    changed = {
        "offset_dims": tuple(range(len(batch_positions), rank_out)),
        "collapsed_slice_dims": tuple(sorted([perm[a] for a in collapsed])),
        "start_index_map": tuple([perm[a] for a in _ints(spec, "start_index_map")]),
        "operand_batching_dims": tuple([a for a, _ in batching]),
        "start_indices_batching_dims": tuple([b for _, b in batching]),
        "slice_sizes": _unpermute(perm, _ints(spec, "slice_sizes")),
    }
    return _remake(eg, spec, [x & CLASS_MASK, indices], **changed), intern([position[lab] for lab in label])


# ---- contractions


def _dot(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    x, y = children
    _, px = _permuted(eg, x)
    _, py = _permuted(eg, y)
    numbers: DotNumbers = spec.values["dimension_numbers"]
    (lc, rc), (lb, rb) = numbers
    # axes of the result: (batch, left axis), (1, left axis), (2, right axis)
    label = [(0, px[a]) for a in lb]
    left, right = free_axes(numbers, (len(px), len(py)))
    label += [*[(1, px[a]) for a in left], *[(2, py[a]) for a in right]]
    contracted = sorted((px[a], py[b]) for a, b in zip(lc, rc, strict=True))
    batch = sorted((px[a], py[b]) for a, b in zip(lb, rb, strict=True))
    cx, cy = x >> PERM_BITS, y >> PERM_BITS
    swapped_c, swapped_b = sorted((b, a) for a, b in contracted), sorted((b, a) for a, b in batch)
    if cx > cy or (cx == cy and (swapped_c, swapped_b) < (contracted, batch)):
        to_right = dict(batch)
        label = [(0, to_right[a]) if kind == 0 else (3 - kind, a) for kind, a in label]
        x, y, px, py, contracted, batch = y, x, py, px, swapped_c, swapped_b
    numbers = (
        (tuple([a for a, _ in contracted]), tuple([b for _, b in contracted])),
        (tuple([a for a, _ in batch]), tuple([b for _, b in batch])),
    )
    position = {lab: k for k, lab in enumerate(sorted(label))}
    node = _remake(eg, spec, [x & CLASS_MASK, y & CLASS_MASK], dimension_numbers=numbers)
    return node, intern([position[lab] for lab in label])


def _conv(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    x, w = children
    _, px = _permuted(eg, x)
    _, pw = _permuted(eg, w)
    v = spec.values
    specs: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = v["dimension_numbers"]
    lhs, rhs, out = specs
    lhs = tuple([px[a] for a in lhs])
    rhs = tuple([pw[a] for a in rhs])
    spatial = sorted(range(len(lhs) - 2), key=lambda k: lhs[2 + k])
    roles = [0, 1, *[2 + k for k in spatial]]  # natural axis k of the result is role roles[k]
    changed: dict[str, Any] = {
        name: tuple([v[name][k] for k in spatial])
        for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    }
    changed["dimension_numbers"] = (
        tuple([lhs[k] for k in roles]),
        tuple([rhs[k] for k in roles]),
        tuple(range(len(out))),
    )
    position = {role: k for k, role in enumerate(roles)}
    role_at = inverse_of(out)  # axis of the result -> role
    node = _remake(eg, spec, [x & CLASS_MASK, w & CLASS_MASK], **changed)
    return node, intern([position[role_at[i]] for i in range(len(out))])


def _macro(eg: EGraph, number: int, spec: OpAttrs, children: list[Ref]) -> tuple[ENode, int]:
    """The canonical form of the op that the macro stands for, under the macro's name."""
    inner = eg.intern_op(spec.values["op"], spec.values["attrs"])
    node, p = eg.canonical((inner, *children))
    return _remake(eg, spec, node[1:], attrs=eg.attrs_of(node)), p


_BY_OP: dict[str, Canon] = {
    "slice": _slice,
    "pad": _pad,
    "rev": _rev,
    "broadcast_in_dim": _broadcast,
    "regroup": _regroup,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(PRODUCTS, _dot),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    "macro": _macro,
}
