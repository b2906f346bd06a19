"""Hand-made equalities for tests of the search: they grow e-graphs without the rule engine.

Each function adds equal forms of what it finds and unites them; every equality holds over the reals.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from rewrites.egraph.graph import EGraph, ENode, Origin, Ref
from rewrites.egraph.perm import PERM_BITS

_STEPS = itertools.count(1)


@contextlib.contextmanager
def instance(eg: EGraph, rule: str, *roots: Ref) -> Iterator[Origin]:
    """Mark what is added inside as one application of a rule."""
    eg.current_origin = Origin(rule, next(_STEPS), roots)
    try:
        yield eg.current_origin
    finally:
        eg.current_origin = None


def nodes(eg: EGraph, *ops: str) -> list[ENode]:
    """E-nodes of some ops in live classes."""
    return [
        node
        for cls in eg.classes()
        if not eg.frozen(cls << PERM_BITS)
        for node in eg.enodes(cls)
        if eg.op_of(node) in ops
    ]


def pointwise_as_product(eg: EGraph) -> None:
    """A 1x1 convolution is a product."""
    for node in nodes(eg, "conv_general_dilated"):
        if node not in eg:
            continue
        a = dict(eg.attrs_of(node))
        lhs, rhs, out = a["dimension_numbers"]
        w_shape = eg.shape(node[2])
        plain = set(a["window_strides"]) == {1} and not any(map(any, a["padding"])) and a["feature_group_count"] == 1
        if not plain or any(w_shape[i] != 1 for i in rhs[2:]):
            continue
        with instance(eg, "pointwise", eg.ref_of(node)) as origin:
            w = eg.transpose(node[2], rhs)
            groups = [((0,), (w_shape[rhs[0]],)), ((1,), (w_shape[rhs[1]],))]
            groups += [((i,), ()) for i in range(2, len(rhs))]
            w = eg.add("regroup", w, groups=tuple(groups))
            x = eg.transpose(node[1], lhs)
            y = eg.add("dot_general", x, w, dimension_numbers=(((1,), (1,)), ((), ())))
            rank = len(out)
            by_role = eg.transpose(y, (0, rank - 1, *range(1, rank - 1)))
            eg.union(eg.ref_of(node), eg.transpose(by_role, [out.index(axis) for axis in range(rank)]), origin)
    eg.rebuild()


def as_macros(eg: EGraph) -> None:
    """A convolution or a window reduction by another lowering."""
    for node in nodes(eg, "conv_general_dilated", "reduce_window_max", "reduce_window_sum"):
        if node not in eg:
            continue
        with instance(eg, "lowering", eg.ref_of(node)) as origin:
            other = eg.add("macro", *node[1:], rule="lowering", op=eg.op_of(node), attrs=eg.attrs_of(node))
            eg.union(eg.ref_of(node), other, origin)
    eg.rebuild()


def merged_products(eg: EGraph) -> None:
    """Products of one tensor with several frozen matrices are slices of one product."""
    by_operand: dict[tuple[int, tuple[int, ...]], list[tuple[Ref, Ref, int, int]]] = {}
    for node in nodes(eg, "dot_general"):
        contracted, batch = dict(eg.attrs_of(node))["dimension_numbers"]
        for side in (0, 1):
            x, w = node[1 + side], node[2 - side]
            matrix = len(eg.shape(w)) == 2 and len(contracted[0]) == 1 and not batch[0] and eg.frozen(w)
            if matrix and not eg.frozen(x):
                key = (eg.find(x), contracted[side])
                by_operand.setdefault(key, []).append((eg.ref_of(node), w, contracted[1 - side][0], side))
    for (x, axes), members in by_operand.items():
        if len(members) < 2:
            continue
        rank = len(eg.shape(x))
        with instance(eg, "merge", *[m[0] for m in members]) as origin:
            weights = [eg.transpose(w, (k, 1 - k)) for _, w, k, _ in members]
            merged = eg.add("concatenate", *weights, dimension=1)
            numbers = ((axes, (0,)), ((), ()))
            y = eg.add("dot_general", x, merged, dimension_numbers=numbers)
            shape, start = eg.shape(y), 0
            for (ref, _, _, side), w in zip(members, weights, strict=True):
                size = eg.shape(w)[1]
                low = (*[0] * (rank - 1), start)
                high = (*shape[:-1], start + size)
                part = eg.add("slice", y, start_indices=low, limit_indices=high, strides=(1,) * rank)
                start += size
                # with the matrix first its new axis stood in front
                eg.union(ref, part if side == 0 else eg.transpose(part, (rank - 1, *range(rank - 1))), origin)
    eg.rebuild()


def elementwise_laws(eg: EGraph, limit: int = 200) -> None:
    """Associativity of add and mul, distribution, a - b = a + (-b), -(-a) = a; brings cycles of classes."""
    done = 0
    for node in nodes(eg, "add", "mul", "sub", "neg", "max"):
        if node not in eg or done >= limit:
            continue
        op = eg.op_of(node)
        ref = eg.ref_of(node)
        with instance(eg, "elementwise", ref) as origin:
            done += 1
            if op == "sub":
                eg.union(ref, eg.add("add", node[1], eg.add("neg", node[2])), origin)
            elif op == "neg":
                eg.union(eg.find(node[1]), eg.add("neg", ref), origin)
            else:
                for a, b in ((node[1], node[2]), (node[2], node[1])):
                    for inner, axes in list(eg.views(a, op)):
                        if len(eg.shape(b)) and len(axes) != len(eg.shape(b)):
                            continue
                        c, d = (eg.transpose(x, axes) if eg.shape(x) else x for x in inner[1:])
                        eg.union(ref, eg.add(op, c, eg.add(op, d, b)), origin)
                    if op == "mul":
                        for inner, axes in list(eg.views(a, "add")):
                            c, d = (eg.transpose(x, axes) if eg.shape(x) else x for x in inner[1:])
                            eg.union(ref, eg.add("add", eg.add(op, c, b), eg.add(op, d, b)), origin)
    eg.rebuild()


def reassociated_products(eg: EGraph) -> None:
    """(A B) C = A (B C) for matrices."""
    for node in nodes(eg, "dot_general"):
        if node not in eg or not _matrix_product(eg, node):
            continue
        (lc, rc), _ = dict(eg.attrs_of(node))["dimension_numbers"]
        ref = eg.ref_of(node)
        left = eg.transpose(node[1], (1 - lc[0], lc[0]))  # [m, k]
        right = eg.transpose(node[2], (rc[0], 1 - rc[0]))  # [k, n]
        for inner, axes in list(eg.views(left, "dot_general")):
            if not _matrix_product(eg, inner):
                continue
            (ic, jc), _ = dict(eg.attrs_of(inner))["dimension_numbers"]
            a = eg.transpose(inner[1], (1 - ic[0], ic[0]))
            b = eg.transpose(inner[2], (jc[0], 1 - jc[0]))
            if axes == (1, 0):  # left = (a b)' = b' a'
                a, b = eg.transpose(b, (1, 0)), eg.transpose(a, (1, 0))
            with instance(eg, "reassociate", ref) as origin:
                plain = (((1,), (0,)), ((), ()))
                inside = eg.add("dot_general", b, right, dimension_numbers=plain)
                eg.union(ref, eg.add("dot_general", a, inside, dimension_numbers=plain), origin)
    eg.rebuild()


def _matrix_product(eg: EGraph, node: ENode) -> bool:
    (lc, _), (lb, _) = dict(eg.attrs_of(node))["dimension_numbers"]
    return not lb and len(lc) == 1 and len(eg.shape(node[1])) == 2 and len(eg.shape(node[2])) == 2


def grow_by_hand(eg: EGraph, rounds: int = 2) -> None:
    """All of the above, a few times."""
    for _ in range(rounds):
        pointwise_as_product(eg)
        merged_products(eg)
        reassociated_products(eg)
        elementwise_laws(eg)
    as_macros(eg)


__all__ = ["grow_by_hand", "instance", "merged_products", "nodes"]
