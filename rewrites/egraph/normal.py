"""Normal forms: simplifications that the constructors of the e-graph apply on insertion, so that no rule has to.

Every law below holds for all sizes.  Those that the rule language can express stand in `rewrites/library/normal.py` and
are proved there; class `exact` unless marked.  (s: scalar; T: any permutation of axes.)

    elementwise     x + 0 = x (real: -0.0 + 0 is 0)    x - 0 = x    x * 1 = x    x / 1 = x    neg(neg x) = x
                    max(x, -inf) = x    min(x, inf) = x    x and true = x    x or false = x    x xor false = x
                    integer_pow(x, 1) = x    integer_pow(x, 2) = square(x)    convert to the own dtype = x
                    where(true, a, b) = a    where(p, a, a) = a
                    a comparison of positions as a float = where(it, 1, 0)
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
    reductions      over no axes = x.

Under an elementwise op a scalar stands for its broadcast; only the e-graph allows this.  Moving broadcasts outwards
keeps a folded bias a vector: without it a 64-vector becomes a frozen tensor of the size of a feature map.

A reshape is a *regroup*: a list of chains, each of which merges some axes row-major and splits the product into
others.  A chain is as short as it can be (cut wherever the running products agree), so every axis that a reshape
leaves alone is its own chain, and orders of axes pass through.  Two regroups compose when the axes between them can
be strung so that each chain of both is contiguous; otherwise something is really shuffled and both stay.  Axes of
size 1 belong to no chain: they are dropped by a regroup, added by a broadcast, and passed on where both happen.

Slices sink: to the source of a slice, into the one piece of a concatenation that they touch, below a broadcast.
Without this and flat concatenations, rules that split and join tensors feed each other for ever through frozen weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rewrites.egraph.perm import CLASS_MASK, PERM_BITS, PERM_MASK, perm_of
from superopt.errors import ShapeError
from superopt.ir.graph import Attrs
from superopt.ir.ops.reduction import REDUCE
from superopt.ir.ops.table import ELEMENTWISE
from superopt.ir.scalar import COMMUTATIVE, COMPARISONS, DTYPE, SCALARS
from superopt.ir.types import FLOATS

if TYPE_CHECKING:
    from rewrites.egraph.enode import Ref
    from rewrites.egraph.graph import EGraph

Constructor: TypeAlias = "Callable[[EGraph, Sequence[Ref], dict[str, Any]], Ref]"
Scalar: TypeAlias = "bool | int | float"
# (input axes in merge order, positions of the output axes)
MergedAxes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
AxisGroups: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
SliceBox = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # starts, limits, strides


def construct(eg: EGraph, op: str, children: Sequence[Ref], attrs: Attrs) -> Ref:
    """The reference to `op{attrs}(children)` in normal form; attributes are canonical already.

    Raises:
        ShapeError: the op does not accept these operand types or attributes.
    """
    if op in ELEMENTWISE:
        return elementwise(eg, op, children, attrs)
    make = _BY_OP.get(op)
    if make is not None:
        return make(eg, children, dict(attrs))
    if op in REDUCE and not dict(attrs)["axes"]:
        return eg.find(children[0])
    return eg.insert(op, attrs, children)


def _transpose(eg: EGraph, children: Sequence[Ref], v: dict[str, Any]) -> Ref:
    (x,) = children
    perm = v["permutation"]
    if sorted(perm) != list(range(len(eg.shape(x)))):
        raise ShapeError(f"transpose of {eg.type(x)} by {perm}: not a permutation of its axes")
    return eg.transpose(eg.find(x), perm)


# ---- elementwise


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
            return broadcast(eg, elementwise(eg, op, operands, attrs), full, ())
    constants = [eg.scalar(c) for c in operands]
    if not full and all(c is not None for c in constants):
        folded = _fold(eg, op, operands, constants, dict(attrs))
        if folded is not None:
            return folded
    same = _neutral(eg, op, operands, constants)
    if same is None:
        same = _simplify(eg, op, operands, dict(attrs))
    if same is not None:
        return same if eg.shape(same) == full else broadcast(eg, same, full, ())
    if op == "integer_pow" and dict(attrs)["y"] == 2:
        op, attrs = "square", ()
    hoisted = _hoist(eg, op, operands, attrs, full) if full else None
    return eg.insert(op, attrs, operands) if hoisted is None else hoisted


def literal(eg: EGraph, value: Any, dtype: str) -> Ref:
    """A scalar constant, rounded to its dtype so that equal constants are one e-node."""
    if dtype == "bool":
        value = bool(value)
    elif dtype in FLOATS:
        value = float(DTYPE[dtype].type(value))
    else:
        value = int(value)
    return eg.insert("literal", (("dtype", dtype), ("value", value)), ())


def _as_scalar(eg: EGraph, ref: Ref) -> Ref:
    """The scalar whose broadcast the tensor is, or the tensor."""
    for source, at in broadcast_views(eg, ref):
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
        view = next(iter(broadcast_views(eg, c)), None)
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
        c if at is None else broadcast(eg, c, sizes, [place[a] for a in at]) for c, at in sources
    ]  # fmt: skip
    return broadcast(eg, elementwise(eg, op, inner, attrs), full, kept)


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
    if op == "convert_element_type" and v["new_dtype"] in FLOATS and _compares_positions(eg, x):
        zero, one = (literal(eg, value, v["new_dtype"]) for value in (0, 1))
        return elementwise(eg, "select_n", (x, zero, one), ())
    if op == "integer_pow" and v["y"] == 1:
        return x
    if op == "neg":
        for node, q in eg.views(x, "neg"):
            return eg.transpose(eg.find(node[1]), q) if q else eg.find(node[1])
    if op == "select_n" and rest and all(c == rest[0] for c in rest):
        return rest[0]
    return None


def _compares_positions(eg: EGraph, x: Ref) -> bool:
    """Whether one side of a comparison is the position along an axis: it is an indicator, which rules speak of."""
    return any(
        True
        for op in COMPARISONS
        for node, _ in eg.views(x, op)
        for side in node[1:]
        for source, _ in broadcast_views(eg, side)
        for _ in eg.views(source, "iota")
    )


# ---- constants


def _fold(eg: EGraph, op: str, operands: Sequence[Ref], constants: Sequence[Any], v: dict[str, Any]) -> Ref | None:
    """The constant f(c, ...), for functions that every implementation rounds alike."""
    dtypes = [eg.dtype(c) for c in operands]
    if op == "convert_element_type":
        source, target = dtypes[0], v["new_dtype"]
        if source in FLOATS and target not in FLOATS:
            return None
        return literal(eg, np.asarray(constants[0], DTYPE[source]).astype(DTYPE[target]).item(), target)
    function = _FOLDABLE.get(op)
    if function is None or len(set(dtypes)) != 1 or (op == "div" and dtypes[0] not in FLOATS):
        return None
    with np.errstate(all="ignore"):
        value = function(*[np.asarray(c, DTYPE[dtypes[0]]) for c in constants])
    return literal(eg, value.item(), "bool" if op in COMPARISONS else dtypes[0])


# functions that every implementation rounds alike
_FOLDABLE: dict[str, Callable[..., Any]] = {
    "square": np.square,
    **{
        name: SCALARS[name].numpy
        for name in (
            "add", "sub", "mul", "div", "max", "min", "neg", "abs", "sqrt", "floor", "ceil", "and", "or", "xor", "not",
            *COMPARISONS,
        )
    },
}  # fmt: skip


# ---- reshapes and broadcasts


def reshape(eg: EGraph, x: Ref, new_sizes: Sequence[int]) -> Ref:
    """Reshape to a shape of the same number of elements.

    Raises:
        ShapeError: the number of elements differs.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    if math.prod(shape) != math.prod(new_sizes):
        raise ShapeError(f"reshape of {eg.type(x)} to {tuple(new_sizes)}: the number of elements differs")
    return _emit(eg, x, [(tuple(range(len(shape))), tuple(range(len(new_sizes))))], tuple(new_sizes))


def regroup(eg: EGraph, x: Ref, groups: AxisGroups) -> Ref:
    """Reshape by axis groups.

    Raises:
        ShapeError: the groups do not partition the axes, or a group changes the number of elements.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    if sorted(a for ins, _ in groups for a in ins) != list(range(len(shape))):
        raise ShapeError(f"regroup of {eg.type(x)}: groups {groups} do not partition its axes")
    chains: list[MergedAxes] = []
    sizes: list[int] = []
    for ins, outs in groups:
        if math.prod([shape[a] for a in ins]) != math.prod(outs):
            raise ShapeError(f"regroup of {eg.type(x)}: axes {ins} do not have {math.prod(outs)} elements")
        chains.append((tuple(ins), tuple(range(len(sizes), len(sizes) + len(outs)))))
        sizes += outs
    return _emit(eg, x, chains, tuple(sizes))


def broadcast(eg: EGraph, x: Ref, shape: Sequence[int], dims: Sequence[int]) -> Ref:
    """Broadcast: axis j of x becomes axis dims[j]; an axis of size 1 may grow.

    Raises:
        ShapeError: the dimensions do not fit.
    """
    x = eg.find(x)
    sizes = eg.shape(x)
    shape, dims = tuple(shape), tuple(dims)
    fits = len(dims) == len(sizes) and len(set(dims)) == len(dims) and all(0 <= d < len(shape) for d in dims)
    if not fits or any(sizes[j] not in (1, shape[d]) for j, d in enumerate(dims)):
        raise ShapeError(f"broadcast of {eg.type(x)} to {shape} along {dims}: the sizes do not fit")
    kept = [j for j, size in enumerate(sizes) if size != 1]
    targets = [dims[j] for j in kept]
    if all(size == 1 for i, size in enumerate(shape) if i not in targets):
        return _emit(eg, x, [((j,), (d,)) for j, d in zip(kept, targets, strict=True)], shape)
    if len(kept) < len(sizes):
        chains: list[MergedAxes] = [((j,), (k,)) for k, j in enumerate(kept)]
        x = _emit(eg, x, chains, tuple([sizes[j] for j in kept]))
    return _broadcast_core(eg, x, shape, targets)


def iota(eg: EGraph, dtype: str, shape: Sequence[int], dimension: int) -> Ref:
    """An iota along one axis, broadcast over the others."""
    line = eg.insert("iota", (("dimension", 0), ("dtype", dtype), ("shape", (shape[dimension],))), ())
    return line if len(shape) == 1 else broadcast(eg, line, shape, (dimension,))


def broadcast_views(eg: EGraph, ref: Ref) -> Iterable[tuple[Ref, list[int]]]:
    """Sources and dims: ref is the broadcast of the source with its axis j at axis dims[j]."""
    for node, q in eg.views(ref, "broadcast_in_dim"):
        source = eg.find(node[1])
        yield source, [q.index(j) for j in range(eg.rank_of_class(source >> PERM_BITS))]


def _broadcast_core(eg: EGraph, x: Ref, shape: tuple[int, ...], dims: Sequence[int]) -> Ref:
    """Broadcast a source without axes of size 1 along at least one new axis."""
    for source, at in broadcast_views(eg, x):
        return _broadcast_core(eg, source, shape, [dims[a] for a in at])
    attrs = (("broadcast_dimensions", tuple(dims)), ("shape", shape))
    return eg.insert("broadcast_in_dim", attrs, (x,))


def _shorten(chains: Sequence[MergedAxes], ins: Sequence[int], outs: Sequence[int]) -> list[MergedAxes]:
    """Chains without axes of size 1, cut wherever the products agree; `ins` and `outs` are sizes."""
    short: list[MergedAxes] = []
    for sources, targets in chains:
        left = [a for a in sources if ins[a] != 1]
        right = [o for o in targets if outs[o] != 1]
        if any(ins[a] == 0 for a in left):
            short.append((tuple(left), tuple(right)))
            continue
        i = j = 0
        while i < len(left):
            i0, j0 = i, j
            p, q = ins[left[i]], outs[right[j]]
            while p != q:
                if p < q:
                    i += 1
                    p *= ins[left[i]]
                else:
                    j += 1
                    q *= outs[right[j]]
            i, j = i + 1, j + 1
            short.append((tuple(left[i0:i]), tuple(right[j0:j])))
    return short


def _emit(
    eg: EGraph, x: Ref, chains: Sequence[MergedAxes], sizes: tuple[int, ...], seen: frozenset[int] = frozenset()
) -> Ref:
    """Regroup x through `chains` (its axes, positions of the result) into a tensor of these sizes."""
    cls, base = x >> PERM_BITS, x & CLASS_MASK
    perm = perm_of(x & PERM_MASK, eg.rank_of_class(cls))
    if x != base:
        chains = [(tuple([perm[a] for a in ins]), outs) for ins, outs in chains]
    own = eg.shape(base)
    chains = _shorten(chains, own, sizes)
    dropped = [a for a in perm if own[a] == 1]  # in the order of x, so that an identity stays one
    added = [o for o, size in enumerate(sizes) if size == 1]
    plain = all(len(ins) == len(outs) == 1 for ins, outs in chains)
    if not plain or len(dropped) != len(added):
        seen |= {cls}
        for node, q in eg.views(base, "regroup"):
            source = eg.find(node[1])
            if source >> PERM_BITS in seen:
                continue
            through = _compose(eg.values_of(node)["groups"], q, own, chains)
            if through is not None:
                return _emit(eg, source, through, sizes, seen)
        for source, at in broadcast_views(eg, base):
            below = {axis: j for j, axis in enumerate(at)}
            if source >> PERM_BITS in seen or any(len({a in below for a in ins}) > 1 for ins, _ in chains):
                continue
            kept = [(ins, outs) for ins, outs in chains if ins[0] in below]
            targets = sorted(o for _, outs in kept for o in outs)
            inner = [(tuple([below[a] for a in ins]), outs) for ins, outs in kept]
            if all(size == 1 for o, size in enumerate(sizes) if o not in targets):
                return _emit(eg, source, inner, sizes, seen)
            place = {o: k for k, o in enumerate(targets)}
            inner = [(ins, tuple([place[o] for o in outs])) for ins, outs in inner]
            return _broadcast_core(
                eg, _emit(eg, source, inner, tuple([sizes[o] for o in targets]), seen), sizes, targets
            )
    # axes of size 1: passed on where there are enough to drop, else all dropped and all added by a broadcast
    passed = list(zip(dropped, added, strict=False)) if len(added) <= len(dropped) else []
    kept = [*chains, *[((a,), (o,)) for a, o in passed]]
    gone = dropped[len(passed) :]
    positions = [o for _, outs in kept for o in outs]
    targets = sorted(positions)
    if plain and not gone:
        origin = {outs[0]: ins[0] for ins, outs in kept}
        ref = eg.transpose(base, [origin[o] for o in targets])
    else:
        groups = tuple([(ins, tuple([sizes[o] for o in outs])) for ins, outs in kept] + [((a,), ()) for a in gone])
        ref = eg.insert("regroup", (("groups", groups),), (base,))
        ref = eg.transpose(ref, [positions.index(o) for o in targets])
    return ref if len(targets) == len(sizes) else _broadcast_core(eg, ref, sizes, targets)


def _compose(
    groups: AxisGroups, q: Sequence[int], sizes: Sequence[int], outer: Sequence[MergedAxes]
) -> list[MergedAxes] | None:
    """The chains of `outer` after a regroup e-node seen through q, on the axes below it; None for a real shuffle.

    `sizes` are those of the axes between the two (natural axes of the class).
    """
    seen_as = {axis: i for i, axis in enumerate(q)}  # axis of the e-node -> axis of the class
    starts: dict[int, tuple[tuple[int, ...], list[int]]] = {}
    count = 0
    strings: list[Sequence[int]] = []
    for ins, outs in groups:
        between = [seen_as[count + k] for k in range(len(outs)) if sizes[seen_as[count + k]] != 1]
        count += len(outs)
        if between:
            starts[between[0]] = (ins, between)
            strings.append(between)
    strings += [ins for ins, _ in outer]
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    for string in strings:
        for a, b in pairwise(string):
            if after.setdefault(a, b) != b or before.setdefault(b, a) != a:
                return None
    ends = {ins[0]: (ins, outs) for ins, outs in outer if ins}
    chains: list[MergedAxes] = []
    visited = 0
    for first in [a for a, size in enumerate(sizes) if size != 1 and a not in before]:
        sources: list[int] = []
        targets: list[int] = []
        at: int | None = first
        while at is not None:
            visited += 1
            if at in starts:
                sources += starts[at][0]
            if at in ends:
                targets += ends[at][1]
            at = after.get(at)
        chains.append((tuple(sources), tuple(targets)))
    return chains if visited == sum(size != 1 for size in sizes) else None


# ---- slices, concatenations, pads and reversals


def slice_(eg: EGraph, x: Ref, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Ref:
    """A strided slice of every axis.

    Raises:
        ShapeError: the bounds do not fit.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    bounds = list(zip(starts, limits, strides, strict=True))
    if len(bounds) != len(shape) or any(
        not 0 <= b <= e <= n or t < 1 for (b, e, t), n in zip(bounds, shape, strict=False)
    ):
        raise ShapeError(f"slice of {eg.type(x)} from {starts} to {limits} by {strides}: out of bounds")
    box = _tight(starts, limits, strides)
    seen: set[tuple[Ref, SliceBox]] = set()
    while not _is_full(box, eg.shape(x)):
        if (x, box) in seen or any(b == e for b, e in zip(box[0], box[1], strict=True)):
            return _insert(eg, x, box)  # a cycle of views, or an empty slice
        seen.add((x, box))
        below = _through_slice(eg, x, box) or _through_piece(eg, x, box)
        if below is None:
            break
        x, box = below
    if _is_full(box, eg.shape(x)):
        return x
    outside = _drop_pieces(eg, x, box)
    if outside is None:
        outside = _through_broadcast(eg, x, box)
    return _insert(eg, x, box) if outside is None else outside


def concatenate(eg: EGraph, children: Sequence[Ref], axis: int) -> Ref:
    """Join along one axis."""
    flat: list[Ref] = []
    for child in children:
        ref = eg.find(child)
        for node, q in eg.views(ref, "concatenate"):
            if q[axis] == eg.values_of(node)["dimension"]:
                flat += [eg.find(eg.transpose(part, q)) for part in node[1:]]
                break
        else:
            flat.append(ref)
    joined: list[Ref] = flat[:1]
    for ref in flat[1:]:
        both = _adjacent(eg, joined[-1], ref, axis)
        if both is None:
            joined.append(ref)
        else:
            joined[-1] = both
    if len(joined) == 1:
        return joined[0]
    return eg.insert("concatenate", (("dimension", axis),), joined)


def pad(eg: EGraph, x: Ref, value: Ref, config: tuple[tuple[int, int, int], ...]) -> Ref:
    """Pad every axis at both ends and between elements."""
    if not any(any(c) for c in config) and len(config) == len(eg.shape(x)):
        return eg.find(x)
    return eg.insert("pad", (("padding_config", config),), (x, value))


def rev(eg: EGraph, x: Ref, dimensions: Sequence[int]) -> Ref:
    """Reverse some axes."""
    x = eg.find(x)
    for node, q in eg.views(x, "rev"):
        inner = {q.index(d) for d in eg.values_of(node)["dimensions"]}
        x, dimensions = eg.find(eg.transpose(node[1], q)), sorted(inner.symmetric_difference(dimensions))
        break
    if not dimensions:
        return x
    return eg.insert("rev", (("dimensions", tuple(sorted(dimensions))),), (x,))


def _tight(starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> SliceBox:
    """The same slice with its limits just behind the last element; stride 1 where there is one element."""
    counts = [-(-(e - b) // t) for b, e, t in zip(starts, limits, strides, strict=True)]
    steps = tuple([t if n > 1 else 1 for n, t in zip(counts, strides, strict=True)])
    ends = tuple([b + (n - 1) * t + 1 if n else b for b, n, t in zip(starts, counts, steps, strict=True)])
    return tuple(starts), ends, steps


def _is_full(box: SliceBox, shape: Sequence[int]) -> bool:
    return box[1] == tuple(shape) and not any(box[0]) and all(t == 1 for t in box[2])


def _insert(eg: EGraph, x: Ref, box: SliceBox) -> Ref:
    attrs = (("limit_indices", box[1]), ("start_indices", box[0]), ("strides", box[2]))
    return eg.insert("slice", attrs, (x,))


def slice_views(eg: EGraph, ref: Ref) -> list[tuple[Ref, SliceBox]]:
    """Slices equal to `ref`: source and box of each, both in ref's axes."""
    found: list[tuple[Ref, SliceBox]] = []
    for node, q in eg.views(ref, "slice"):
        v = eg.values_of(node)
        starts, limits, strides = [
            tuple([v[name][a] for a in q]) for name in ("start_indices", "limit_indices", "strides")
        ]
        found.append((eg.find(eg.transpose(node[1], q)), (starts, limits, strides)))
    return found


def _through_slice(eg: EGraph, x: Ref, box: SliceBox) -> tuple[Ref, SliceBox] | None:
    """slice(slice x) = slice x."""
    for source, (starts, _, strides) in slice_views(eg, x):
        first = [s + t * b for s, t, b in zip(starts, strides, box[0], strict=True)]
        last = [s + t * (e - 1) + 1 for s, t, e in zip(starts, strides, box[1], strict=True)]
        return source, _tight(first, last, [t * u for t, u in zip(strides, box[2], strict=True)])
    return None


def _pieces(eg: EGraph, x: Ref, box: SliceBox) -> tuple[int, list[tuple[Ref, int, int]]] | None:
    """Axis and touched pieces, with bounds, of a concatenation equal to x; None unless the slice misses a piece."""
    for node, q in eg.views(x, "concatenate"):
        axis = q.index(eg.values_of(node)["dimension"])
        offset = 0
        touched: list[tuple[Ref, int, int]] = []
        for part in node[1:]:
            piece = eg.find(eg.transpose(part, q))
            size = eg.shape(piece)[axis]
            if box[0][axis] < offset + size and box[1][axis] > offset:
                touched.append((piece, offset, offset + size))
            offset += size
        if len(touched) < len(node) - 1:
            return axis, touched
    return None


def _through_piece(eg: EGraph, x: Ref, box: SliceBox) -> tuple[Ref, SliceBox] | None:
    """slice(concat(.., x, ..)) = slice x when it touches no other piece."""
    found = _pieces(eg, x, box)
    if found is None or len(found[1]) != 1:
        return None
    axis, ((piece, offset, _),) = found
    starts, limits = list(box[0]), list(box[1])
    starts[axis] -= offset
    limits[axis] -= offset
    return piece, (tuple(starts), tuple(limits), box[2])


def _drop_pieces(eg: EGraph, x: Ref, box: SliceBox) -> Ref | None:
    """A dense slice of several but not all pieces is the concatenation of their slices."""
    found = _pieces(eg, x, box)
    if found is None or box[2][found[0]] != 1:
        return None
    axis, touched = found
    parts: list[Ref] = []
    for piece, offset, end in touched:
        starts, limits = list(box[0]), list(box[1])
        starts[axis] = max(starts[axis], offset) - offset
        limits[axis] = min(limits[axis], end) - offset
        inner = (tuple(starts), tuple(limits), box[2])
        parts.append(slice_(eg, piece, *inner))
    return concatenate(eg, parts, axis)


def _through_broadcast(eg: EGraph, x: Ref, box: SliceBox) -> Ref | None:
    """slice(bcast x) = bcast(slice x)."""
    for source, at in broadcast_views(eg, x):
        starts, limits, strides = [[part[a] for a in at] for part in box]
        sizes = [-(-(e - b) // t) for b, e, t in zip(*box, strict=True)]
        return broadcast(eg, slice_(eg, source, starts, limits, strides), sizes, at)
    return None


def _adjacent(eg: EGraph, a: Ref, b: Ref, axis: int) -> Ref | None:
    """Two slices of one tensor as one slice, where b begins at the end of a; None otherwise."""
    for source, (starts, limits, strides) in slice_views(eg, a):
        for other, (starts_b, limits_b, strides_b) in slice_views(eg, b):
            if source != other or strides[axis] != 1 or strides_b[axis] != 1 or limits[axis] != starts_b[axis]:
                continue
            rest = [i for i in range(len(starts)) if i != axis]
            if any(starts[i] != starts_b[i] or limits[i] != limits_b[i] or strides[i] != strides_b[i] for i in rest):
                continue
            ends = tuple([limits_b[i] if i == axis else e for i, e in enumerate(limits)])
            box = (starts, ends, strides)
            return source if _is_full(box, eg.shape(source)) else _insert(eg, source, box)
    return None


_BY_OP: dict[str, Constructor] = {
    "transpose": _transpose,
    "broadcast_in_dim": lambda eg, xs, v: broadcast(eg, xs[0], v["shape"], v["broadcast_dimensions"]),
    "reshape": lambda eg, xs, v: reshape(eg, xs[0], v["new_sizes"]),
    "regroup": lambda eg, xs, v: regroup(eg, xs[0], v["groups"]),
    "iota": lambda eg, xs, v: iota(eg, v["dtype"], v["shape"], v["dimension"]),
    "slice": lambda eg, xs, v: slice_(eg, xs[0], v["start_indices"], v["limit_indices"], v["strides"]),
    "concatenate": lambda eg, xs, v: concatenate(eg, xs, v["dimension"]),
    "pad": lambda eg, xs, v: pad(eg, xs[0], xs[1], v["padding_config"]),
    "rev": lambda eg, xs, v: rev(eg, xs[0], v["dimensions"]),
}
