"""Products and convolutions as XLA:CPU runs them: the routine, and the copies made for it first.

A product runs without copies when each operand is, unit axes aside, a row-major matrix or its transpose per batch
entry: axes in the order batch, rows, contracted or batch, contracted, rows.  Any other order is copied.  Convolutions
run channels-last; data, kernels and results in other layouts are transposed around the call.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from superopt.ir.graph import Node
from superopt.ir.ops.table import PRODUCTS

Counts = defaultdict[str, float]
Source = tuple[Node, tuple[int, ...]]
_SMALL_BYTES = 1 << 20
_FORK_MACS = 4e5  # labels of float32: 0.08 ns a multiply-add at 2e5, 0.06 at 5e5, 0.04 at 1.5e6, 0.01 from 1e7
_WHOLE, _SINGLE = 4.0, 150.0
"""Slowdowns of integers; ns a step of 256 x 256 x 256: 0.022 float32, 0.07 to 0.2 int32, 3.3 int8, 12 int64."""
_WIDE = 8  # channels that fill a vector register


def unlike_floats(node: Node) -> float:
    """Return the slowdown of a product's multiply-add in this dtype compared with floats under XLA:CPU.

    Products with results in int32 have a routine, without its tiles.  For other integers there is none, nor any for
    convolutions of integers: they are loops over single numbers.
    """
    if node.dtype.startswith(("float", "bfloat", "complex")):
        return 1.0
    return _WHOLE if node.dtype == "int32" and node.op in PRODUCTS else _SINGLE


def dot_counts(node: Node, sources: Sequence[Source]) -> Counts:
    """Count the features of a product."""
    (lc, rc), (lb, rb) = node["dimension_numbers"]
    (lhs, lorder), (rhs, rorder) = sources
    lshape, rshape = node.inputs[0].shape, node.inputs[1].shape
    b = _prod(lshape[a] for a in lb)
    k = _prod(lshape[a] for a in lc)
    m = _prod(lshape) / max(1.0, b * k)
    n = _prod(rshape) / max(1.0, b * k)
    left = _form(lhs, lorder, lb, lc, None)
    right = _form(rhs, rorder, rb, rc, _order_of(lhs, lorder, lc))
    counts = Counts(float)
    for form, x in ((left, lhs), (right, rhs)):
        if form == "copy":
            _turn(counts, _prod(x.shape))
    macs = unlike_floats(node) * m * n * k
    turned_left, turned_right = left == "cf", right == "fc"
    if b > 1:
        counts["batch"] += 1
        counts["batch_count"] += b
        counts["batch_mnk"] += b * macs
        counts["batch_mn"] += b * m * n
        counts["batch_mk"] += b * m * k
        counts["batch_nk"] += b * n * k
        counts["batch_turned"] += b * (m * k * turned_left + n * k * turned_right)
    elif m <= 1 and n <= 1:
        counts["vector"] += 1
        counts["inner"] += macs
    elif m <= 1 or n <= 1:
        counts["vector"] += 1
        counts["vector_fork"] += _fork(m * n * k)
        along = (right == "fc") if m <= 1 else (left == "fc")
        counts["vector_nk" if along else "vector_kn"] += macs
        counts["vector_out"] += m * n
    else:
        counts["dot"] += 1
        counts["dot_fork"] += _fork(m * n * k)
        counts["dot_mnk"] += macs
        counts["dot_mn"] += m * n
        counts["dot_mk"] += m * k
        counts["dot_nk"] += n * k
        counts["dot_km_large" if m * k * 4 > _SMALL_BYTES else "dot_km"] += m * k * turned_left
        counts["dot_rhs_turned"] += n * k * turned_right
        counts["dot_both_turned"] += n * k * (turned_left and turned_right)
    return counts


def conv_counts(node: Node, sources: Sequence[Source]) -> Counts:
    """Count the features of a convolution, with the copies that bring its operands to channels-last."""
    lhs_spec, rhs_spec, out_spec = node["dimension_numbers"]
    w = node.inputs[1]
    counts = Counts(float)
    counts["conv"] = 1.0
    groups = node["feature_group_count"]
    taps = _prod(w.shape[a] for a in rhs_spec[2:])
    channels = float(w.shape[rhs_spec[1]])  # pyright: ignore[reportArgumentType] (kernel shapes are concrete)
    outputs = _prod(node.shape)
    positions = outputs / float(node.shape[out_spec[1]])  # pyright: ignore[reportArgumentType]
    macs = unlike_floats(node) * outputs * channels * taps
    dilated = math.prod(node["lhs_dilation"]) > 1
    if groups > 1 and channels == 1:
        counts["depthwise_macs"] += macs
        counts["depthwise_out"] += outputs
    elif groups > 1 or node["batch_group_count"] > 1:
        counts["group_macs"] += macs
        counts["group_patch"] += positions * channels * groups * taps
        counts["group_out"] += outputs
    elif taps == 1:
        counts["point_macs"] += macs
        counts["point_in"] += positions * channels
        counts["point_out"] += outputs
    else:
        narrow = channels % _WIDE != 0
        counts["conv_patch_narrow" if narrow else "conv_patch"] += positions * channels * taps
        counts["conv_macs"] += macs
        counts["conv_out"] += outputs
        counts["conv_weight"] += _prod(w.shape)
    if dilated:
        counts["conv_dilated"] += macs
    spatial_last = (lhs_spec[0], *lhs_spec[2:], lhs_spec[1])
    kernel_last = (*rhs_spec[2:], rhs_spec[1], rhs_spec[0])
    out_last = (out_spec[0], *out_spec[2:], out_spec[1])
    for (source, order), axes in zip(sources, (spatial_last, kernel_last), strict=True):
        if not _in_order(source.shape, [order[a] for a in axes]):
            _turn(counts, _prod(source.shape))
    if not _in_order(node.shape, out_last):
        _turn(counts, outputs)
    return counts


def _fork(macs: float) -> float:
    """Return a weight: near 0 for products that one thread does alone, near 1 for those handed to all threads."""
    return macs**2 / (macs**2 + _FORK_MACS**2)


def _turn(counts: Counts, size: float) -> None:
    """Count a transposed copy; large ones leave the caches and lose far more per element."""
    counts["turn_large" if size * 4 > _SMALL_BYTES else "turn_small"] += size
    counts["turn"] += 1


def _form(
    x: Node, order: Sequence[int], batch: Sequence[int], contracted: Sequence[int], wanted: list[int] | None
) -> str:
    """Return how an operand lies in memory: `fc` (contracted axes last), `cf` (first), or `copy`.

    `order` leads from the axes of the operand to those in memory.  `wanted` is the order in which the contracted axes
    must come to meet those of the other operand.
    """
    role = {order[a]: "b" for a in batch} | {order[a]: "c" for a in contracted}
    text = "".join(role.get(a, "f") for a, n in enumerate(x.shape) if n != 1)
    bare = text.lstrip("b")
    if "b" in bare:
        return "copy"
    batches = [order[a] for a in batch if x.shape[order[a]] != 1]
    if batches != sorted(batches):
        return "copy"
    if wanted is not None and _order_of(x, order, contracted) != wanted:
        return "copy"
    if "c" not in bare:
        return "fc"
    if bare == "f" * bare.count("f") + "c" * bare.count("c"):
        return "fc"
    return "cf" if bare == "c" * bare.count("c") + "f" * bare.count("f") else "copy"


def _order_of(x: Node, order: Sequence[int], contracted: Sequence[int]) -> list[int]:
    """Return positions in the list of contracted axes, in the order in which they lie in memory."""
    live = [(order[a], i) for i, a in enumerate(contracted) if x.shape[order[a]] != 1]
    return [i for _, i in sorted(live)]


def _in_order(shape: Sequence[object], axes: Sequence[int]) -> bool:
    live = [a for a in axes if shape[a] != 1]
    return live == sorted(live)


def _prod(sizes: object) -> float:
    return float(math.prod(int(n) for n in sizes))  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
