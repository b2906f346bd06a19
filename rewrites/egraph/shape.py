"""Normal forms of reshapes and broadcasts.

A reshape is a *regroup*: a list of chains, each of which merges some axes row-major and splits the product into
others.  A chain is as short as it can be (cut wherever the running products agree), so every axis that a reshape
leaves alone is its own chain, and orders of axes pass through.  Two regroups compose when the axes between them can
be strung so that each chain of both is contiguous; otherwise something is really shuffled and both stay.  Axes of
size 1 belong to no chain: they are dropped by a regroup, added by a broadcast, and passed on where both happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from rewrites.egraph.perm import PERM_BITS, PERM_MASK, perm_of
from superopt.errors import ShapeError

if TYPE_CHECKING:
    from rewrites.egraph.enode import Ref
    from rewrites.egraph.graph import EGraph

# (input axes in merge order, positions of the output axes)
Chain: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
Groups: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

CLASS_MASK = ~PERM_MASK


def reshape(eg: EGraph, x: Ref, new_sizes: Sequence[int]) -> Ref:
    """Reshape to a shape of the same number of elements.

    Raises:
        ShapeError: the number of elements differs.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    if prod(shape) != prod(new_sizes):
        raise ShapeError(f"reshape of {eg.type(x)} to {tuple(new_sizes)}: the number of elements differs")
    return _emit(eg, x, [(tuple(range(len(shape))), tuple(range(len(new_sizes))))], tuple(new_sizes))


def regroup(eg: EGraph, x: Ref, groups: Groups) -> Ref:
    """Reshape by axis groups.

    Raises:
        ShapeError: the groups do not partition the axes, or a group changes the number of elements.
    """
    x = eg.find(x)
    shape = eg.shape(x)
    if sorted(a for ins, _ in groups for a in ins) != list(range(len(shape))):
        raise ShapeError(f"regroup of {eg.type(x)}: groups {groups} do not partition its axes")
    chains: list[Chain] = []
    sizes: list[int] = []
    for ins, outs in groups:
        if prod([shape[a] for a in ins]) != prod(outs):
            raise ShapeError(f"regroup of {eg.type(x)}: axes {ins} do not have {prod(outs)} elements")
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
        chains: list[Chain] = [((j,), (k,)) for k, j in enumerate(kept)]
        x = _emit(eg, x, chains, tuple([sizes[j] for j in kept]))
    return _broadcast_core(eg, x, shape, targets)


def iota(eg: EGraph, dtype: str, shape: Sequence[int], dimension: int) -> Ref:
    """Counting along one axis, broadcast over the others."""
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


def _shorten(chains: Sequence[Chain], ins: Sequence[int], outs: Sequence[int]) -> list[Chain]:
    """Chains without axes of size 1, cut wherever the products agree; `ins` and `outs` are sizes."""
    short: list[Chain] = []
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
    eg: EGraph, x: Ref, chains: Sequence[Chain], sizes: tuple[int, ...], seen: frozenset[int] = frozenset()
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


def _compose(groups: Groups, q: Sequence[int], sizes: Sequence[int], outer: Sequence[Chain]) -> list[Chain] | None:
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
    chains: list[Chain] = []
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
