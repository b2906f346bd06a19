"""Contractions: sums of products.

    dot    out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, n, k], axes placed by dimension_numbers.
    conv   out[n, f, o] = sum over c, r of lhs[n, c, (o * stride + r * rhs_dilation - low) / lhs_dilation]
           * rhs[f, c, r], terms outside lhs or in its holes being 0.

Products and sums are formed in the accumulator of the result's dtype (float32 for 16-bit floats), and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops.axes import Act, Along, AxisAtom, AxisRule, AxisRun, Flow, Laid, Order, Shapes, permuted
from superopt.ir.ops.record import (
    Attr,
    Op,
    Site,
    Types,
    Values,
    accumulator,
    define,
    dtype,
    identity,
    is_float,
    literally,
    nested,
    one_of,
    optional,
    positions,
    require,
    require_axes,
    show,
    size,
    sizes,
    spread,
)
from superopt.ir.types import SIGNED, UNSIGNED, Size, TensorType

TABLE: dict[str, Op] = {}
PRECISIONS = (None, "default", "high", "highest")


def _result_dtype(name: str, types: Types, attrs: Values) -> str:
    lhs, rhs = types
    require(lhs.dtype == rhs.dtype, f"{name} needs operands of one dtype", types)
    wanted = attrs["preferred_element_type"]
    if wanted is None or wanted == lhs.dtype:
        return lhs.dtype
    wide = {"float16": 2, "bfloat16": 2, "bool": 1}
    widths = {d: wide.get(d, int("".join(c for c in d if c.isdigit()) or 0) // 8) for d in (lhs.dtype, wanted)}
    same_kind = any(lhs.dtype in kind and wanted in kind for kind in (SIGNED, UNSIGNED)) or is_float(wanted)
    ok = same_kind and (widths[wanted] >= widths[lhs.dtype] or is_float(lhs.dtype))
    require(ok, f"{name} cannot accumulate {lhs.dtype} in {wanted}", types)
    return wanted


def _product(k: AnyAlgebra, a: Any, b: Any, site: Site, wide: str) -> Any:
    left, right = (
        v if t.dtype == wide else k.convert(v, t.dtype, wide) for v, t in zip((a, b), site.inputs, strict=True)
    )
    return k.op("and" if wide == "bool" else "mul", wide, left, right)


def _rounded(k: AnyAlgebra, total: Any, site: Site, wide: str) -> Any:
    return total if wide == site.out.dtype else k.convert(total, wide, site.out.dtype)


def _sum(wide: str) -> str:
    return "or" if wide == "bool" else "sum"


# ---- dot_general


DotNumbers = tuple[tuple[Order, Order], tuple[Order, Order]]
"""Contracted axes of lhs and rhs, batch axes of lhs and rhs."""


def free_axes(numbers: DotNumbers, ranks: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return the axes of lhs and of rhs, operands of these ranks, that a product neither contracts nor batches."""
    left, right = (
        [d for d in range(rank) if d not in over and d not in batch]
        for rank, over, batch in zip(ranks, *numbers, strict=True)
    )
    return left, right


def _pairs(attrs: Values) -> tuple[Order, Order, Order, Order]:
    """Return contracted axes of lhs and rhs, batch axes of lhs and rhs."""
    (lc, rc), (lb, rb) = attrs["dimension_numbers"]
    return lc, rc, lb, rb


def _specs(attrs: Values) -> tuple[Order, Order, Order]:
    """Return axes of lhs (batch, features, spatial), rhs (out features, in features, spatial), result (as lhs)."""
    return attrs["dimension_numbers"]


def _dot_rule(types: Types, attrs: Values) -> TensorType:
    lhs, rhs = types
    if len(attrs["dimension_numbers"]) != 2 or any(len(p) != 2 for p in attrs["dimension_numbers"]):
        raise ShapeError(f"dimension_numbers must be ((lc, rc), (lb, rb)); got {attrs['dimension_numbers']}")
    lc, rc, lb, rb = _pairs(attrs)
    require_axes("lhs axes of dimension_numbers", (*lc, *lb), lhs.rank, types)
    require_axes("rhs axes of dimension_numbers", (*rc, *rb), rhs.rank, types)
    if len(lc) != len(rc) or len(lb) != len(rb):
        raise ShapeError(f"dot_general needs as many lhs axes as rhs axes; got {attrs['dimension_numbers']}")
    for a, b in zip((*lc, *lb), (*rc, *rb), strict=True):
        same = lhs.shape[a] == rhs.shape[b]
        if same is not True:
            told = f"dot_general pairs lhs axis {a} with rhs axis {b}, whose sizes differ"
            require(same, told, types, dimension_numbers=attrs["dimension_numbers"])
    left, right = free_axes(attrs["dimension_numbers"], (lhs.rank, rhs.rank))
    shape = (*[lhs.shape[d] for d in (*lb, *left)], *[rhs.shape[d] for d in right])
    return TensorType(shape, _result_dtype("dot_general", types, attrs))


def _dot(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    lhs, rhs = site.inputs
    lc, rc, lb, rb = _pairs(site.attrs)
    left, right = free_axes(site.attrs["dimension_numbers"], (lhs.rank, rhs.rank))
    wide = accumulator(site.out.dtype)

    def place(batch: Sequence[int], over: Sequence[int], free: Sequence[int], r: Sequence[Any], at: int) -> list[Any]:
        where = dict(zip(batch, i, strict=False)) | dict(zip(over, r, strict=True))
        where |= dict(zip(free, i[at : at + len(free)], strict=True))
        return [where[d] for d in range(len(where))]

    def body(*r: Any) -> Any:
        a = xs[0](*place(lb, lc, left, r, len(lb)))
        b = xs[1](*place(rb, rc, right, r, len(lb) + len(left)))
        return _product(k, a, b, site, wide)

    return _rounded(k, k.reduce(_sum(wide), [lhs.shape[d] for d in lc], body, wide), site, wide)


class _Paired(AxisRule):
    """Pairs of axes are contracted or batched; the result has batch axes, then the free ones of lhs, then of rhs."""

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return one atom for each axis of lhs, and for each free axis of rhs."""
        lc, rc, lb, rb = _pairs(v)
        ranks = (len(shapes[0]), len(shapes[1]))
        left, right = free_axes(v["dimension_numbers"], ranks)
        atom: dict[int, AxisAtom] = dict(zip((*rc, *rb), (*lc, *lb), strict=True))
        atom |= {axis: ranks[0] + axis for axis in right}
        operands = (tuple([(a,) for a in range(ranks[0])]), tuple([(atom[b],) for b in range(ranks[1])]))
        return Flow(operands, tuple([AxisRun(1, (a,)) for a in (*lb, *left, *[atom[b] for b in right])]))

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Sort pairs as lhs holds them; the result has batch axes so, and free axes as they lie."""
        lc, rc, lb, rb = _pairs(v)
        x, y = orders
        left, right = free_axes(v["dimension_numbers"], (len(x), len(y)))
        contracted = sorted((x.index(a), y.index(b)) for a, b in zip(lc, rc, strict=True))
        batch = sorted((x.index(a), y.index(b), i) for i, (a, b) in enumerate(zip(lb, rb, strict=True)))
        numbers = (
            (tuple([a for a, _ in contracted]), tuple([b for _, b in contracted])),
            (tuple([a for a, _, _ in batch]), tuple([b for _, b, _ in batch])),
        )
        first, second = len(batch), len(batch) + len(left)
        have = [i for _, _, i in batch] + [first + left.index(a) for a in x if a in left]
        have += [second + right.index(b) for b in y if b in right]
        return Laid({**v, "dimension_numbers": numbers}, (0, 1), tuple(have))

    def commuted(self, v: Values, ranks: Sequence[int]) -> tuple[dict[str, Any], Order]:
        """Return numbers of the product with its operands exchanged; free axes of rhs come first then."""
        lc, rc, lb, rb = _pairs(v)
        left, right = free_axes(v["dimension_numbers"], (ranks[0], ranks[1]))
        second = len(lb) + len(left)
        order = (*range(len(lb)), *range(second, second + len(right)), *range(len(lb), second))
        return {**v, "dimension_numbers": ((rc, lc), (rb, lb))}, order


# ---- conv_general_dilated


def _conv_complete(attrs: dict[str, Any]) -> None:
    rank = len(attrs["window_strides"])
    for name, value in (("padding", (0, 0)), ("lhs_dilation", 1), ("rhs_dilation", 1)):
        if attrs[name] is None:
            attrs[name] = (value,) * rank
    if attrs["dimension_numbers"] is None:
        attrs["dimension_numbers"] = (tuple(range(rank + 2)),) * 3


def _conv_rule(types: Types, attrs: Values) -> TensorType:
    lhs, rhs = types
    strides, padding = attrs["window_strides"], attrs["padding"]
    spatial = len(strides)
    if lhs.rank != spatial + 2 or rhs.rank != spatial + 2:
        raise ShapeError(
            f"a convolution with {spatial} strides needs operands of rank {spatial + 2}; got {show(types)}"
        )
    for key in ("padding", "lhs_dilation", "rhs_dilation"):
        require(
            len(attrs[key]) == spatial, f"a convolution needs {spatial} entries in {key}", types, **{key: attrs[key]}
        )
    for spec in attrs["dimension_numbers"]:
        if sorted(spec) != list(range(spatial + 2)):
            raise ShapeError(f"each part of dimension_numbers must be a permutation of {spatial + 2} axes; got {spec}")
    ls, rs, os = _specs(attrs)
    groups: Size = attrs["feature_group_count"]
    batches: Size = attrs["batch_group_count"]
    require(groups >= 1, "feature_group_count must be positive", types, feature_group_count=groups)
    require(batches >= 1, "batch_group_count must be positive", types, batch_group_count=batches)
    both = literally(groups, 1) or literally(batches, 1)
    require(both, "only one of feature_group_count and batch_group_count may be > 1", types)
    features = rhs.shape[rs[0]]
    depth = rhs.shape[rs[1]] * groups == lhs.shape[ls[1]]
    if depth is not True:
        told = "feature_group_count times the rhs input features must be the lhs features"
        numbers = attrs["dimension_numbers"]
        require(depth, told, types, feature_group_count=groups, dimension_numbers=numbers)
    for count in (groups, batches):
        divides = literally(count, 1) or features % count == 0
        require(divides, "the group count must divide the output features", types, group_count=count)
    require(literally(batches, 1) or lhs.shape[ls[0]] % batches == 0, "batch_group_count must divide the batch", types)
    shape: list[Size] = [0] * lhs.rank
    shape[os[0]] = lhs.shape[ls[0]] if literally(batches, 1) else lhs.shape[ls[0]] // batches
    shape[os[1]] = features
    for s in range(spatial):
        for key in ("window_strides", "lhs_dilation", "rhs_dilation"):
            require(attrs[key][s] >= 1, f"{key} must be positive", types, **{key: attrs[key]})
        image = spread(lhs.shape[ls[2 + s]], attrs["lhs_dilation"][s], "an image")
        extent = image + padding[s][0] + padding[s][1]
        window = spread(rhs.shape[rs[2 + s]], attrs["rhs_dilation"][s], "a kernel")
        shape[os[2 + s]] = positions(extent, window, strides[s])
    return TensorType(tuple(shape), _result_dtype("conv_general_dilated", types, attrs))


def _conv(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    lhs, rhs, attrs = site.inputs[0].shape, site.inputs[1].shape, site.attrs
    ls, rs, os = _specs(attrs)
    groups: Size = attrs["feature_group_count"]
    batches: Size = attrs["batch_group_count"]
    depth, features, wide = rhs[rs[1]], rhs[rs[0]], accumulator(site.out.dtype)

    def body(c: Any, *window: Any) -> Any:
        f, n = i[os[1]], i[os[0]]
        guards: list[Any] = []
        x, w = {ls[0]: n, ls[1]: c}, {rs[0]: f, rs[1]: c}
        if not literally(groups, 1):
            x[ls[1]] = f // (features // groups) * depth + c
        if not literally(batches, 1):
            x[ls[0]] = f // (features // batches) * (lhs[ls[0]] // batches) + n
        for s, r in enumerate(window):
            p = i[os[2 + s]] * attrs["window_strides"][s] + r * attrs["rhs_dilation"][s] - attrs["padding"][s][0]
            dilation = attrs["lhs_dilation"][s]
            if not literally(dilation, 1):
                guards.append(k.eq(p % dilation, 0))
                p = p // dilation
            guards += [p >= 0, p < lhs[ls[2 + s]]]
            x[ls[2 + s]], w[rs[2 + s]] = p, r

        def product() -> Any:
            a, b = (xs[j](*[at[d] for d in range(len(at))]) for j, at in enumerate((x, w)))
            return _product(k, a, b, site, wide)

        return k.where(k.all(*guards), product, lambda: k.const(identity("sum", wide), wide))

    total = k.reduce(_sum(wide), [depth, *[rhs[d] for d in rs[2:]]], body, wide)
    return _rounded(k, total, site, wide)


class _Placed(AxisRule):
    """Dimension numbers say which axis is the batch, the features, or spatial, in lhs, rhs and result.

    With groups, the features of lhs are (group, in), those of rhs and result (group, out).
    """

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Size]) -> Flow:
        """Return atoms batch, in, out, group and spatial ones, with a window along each of these."""
        batch, depth, out, group, spatial = 0, 1, 2, 3, 4
        specs, groups, rhs = _specs(v), v["feature_group_count"], shapes[1]
        grouped = () if literally(groups, 1) else (group,)
        windows: list[tuple[AxisAtom, ...]] = [(spatial + k,) for k in range(len(shape) - 2)]
        roles: tuple[list[tuple[AxisAtom, ...]], ...] = (
            [(batch,), (*grouped, depth), *windows], [(*grouped, out), (depth,), *windows],
            [(batch,), (*grouped, out), *windows],
        )  # fmt: skip
        lhs_axes, rhs_axes, axes = (
            tuple([role[spec.index(axis)] for axis in range(len(spec))])
            for role, spec in zip(roles, specs, strict=True)
        )
        numbers = zip(v["window_strides"], v["padding"], v["lhs_dilation"], v["rhs_dilation"], strict=True)
        acts = {spatial + k: Act(Along.WINDOW, (step, *pad, *holes)) for k, (step, pad, *holes) in enumerate(numbers)}
        sizes = {depth: rhs[specs[1][1]], group: groups, out: shape[specs[2][1]] // groups}
        complete = literally(v["batch_group_count"], 1)
        return Flow((lhs_axes, rhs_axes), tuple([AxisRun(1, atoms) for atoms in axes]), acts, sizes, complete)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Order spatial axes as lhs holds them; the result lies as wanted, else batch, features, spatial axes."""
        lhs, rhs, out = _specs(v)
        lhs, rhs = (tuple([o.index(a) for a in spec]) for spec, o in zip((lhs, rhs), orders, strict=True))
        spatial = sorted(range(len(lhs) - 2), key=lambda k: lhs[2 + k])
        roles = (0, 1, *[2 + k for k in spatial])
        order = permuted(out, roles) if wanted is None else wanted
        numbers = (permuted(lhs, roles), permuted(rhs, roles), tuple([order.index(out[role]) for role in roles]))
        names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
        attrs = {**v, **{name: permuted(v[name], spatial) for name in names}, "dimension_numbers": numbers}
        return Laid(attrs, (0, 1), order)


_COMMON = (Attr("precision", one_of(*PRECISIONS), None), Attr("preferred_element_type", optional(dtype), None))
define(
    TABLE, "dot_general", "contraction", 2, _dot_rule, _dot,
    Attr("dimension_numbers", nested), *_COMMON, axes=_Paired(), product=True,
)  # fmt: skip
define(
    TABLE, "conv_general_dilated", "contraction", 2, _conv_rule, _conv,
    Attr("window_strides", sizes), Attr("padding", optional(nested), None),
    Attr("lhs_dilation", optional(sizes), None), Attr("rhs_dilation", optional(sizes), None),
    Attr("dimension_numbers", optional(nested), None),
    Attr("feature_group_count", size, 1), Attr("batch_group_count", size, 1), *_COMMON,
    axes=_Placed(), complete=_conv_complete,
)  # fmt: skip
