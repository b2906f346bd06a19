"""The micro-suite: a few hundred kernels whose measured times calibrate the cost model.

Shapes come from the families of networks in use (residual, mobile and inception nets, transformers, recurrent cells)
and from a spread of sizes around them, none from one particular program.  `kind` names the family that the fit is
validated on as a whole.  Cases of equal `task` compute the same function in different forms; a search depends most on
their order inside a task.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.features.steps import FUNCTIONS
from costmodel.labels import forms
from rewrites import library
from rewrites.build.terms import expand_macro
from superopt.errors import SuperoptError
from superopt.ir.build import dot, fill, kernel, spread, tensor
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.program import hot_part
from superopt.ir.scalar import SCALARS


@dataclass(frozen=True, slots=True)
class MicroCase:
    """One kernel: unique name, kind, task (see the module), graph."""

    name: str
    kind: str
    task: str
    graph: Graph


def suite() -> list[MicroCase]:
    """All cases, in a fixed order."""
    makers = (
        _dots,
        _batched,
        _vectors,
        _convs,
        _pointwise,
        _grouped,
        _pools,
        _loops,
        _reductions,
        _moves,
        _composites,
        _library,
    )
    cases = [case for make in makers for case in make()]
    names = [case.name for case in cases]
    repeated = {n for n in names if names.count(n) > 1}
    assert not repeated, f"case names must be unique: {sorted(repeated)}"
    return cases


def shuffled(cases: list[MicroCase]) -> list[MicroCase]:
    """Return tasks in a fixed random order, so that a short budget covers all kinds; a task's forms stay together."""
    order = sorted({c.task for c in cases})
    random.Random(0).shuffle(order)
    place = {task: i for i, task in enumerate(order)}
    return sorted(cases, key=lambda c: place[c.task])


def _case(kind: str, task: str, form: str, *outputs: Node) -> MicroCase:
    return MicroCase(f"{task}/{form}", kind, task, kernel(*outputs))


# rows, columns, contracted: projections, feed-forward, convolutions as products, recurrent cells
_DOT_SIZES = (
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (3136, 64, 64), (3136, 256, 64), (3136, 64, 256), (784, 512, 128), (784, 128, 512), (196, 1024, 256),
    (196, 256, 1024), (49, 2048, 512), (49, 512, 2048), (12544, 64, 147), (12544, 16, 32), (12544, 96, 16),
    (3136, 24, 144), (196, 384, 64), (196, 64, 384), (49, 960, 160), (784, 128, 1152), (3136, 64, 576),
    (196, 256, 2304), (8, 1024, 1024), (2, 1024, 1024), (4, 4096, 512), (16, 256, 512), (32, 32, 32), (64, 64, 64),
    (128, 128, 64), (128, 64, 128), (1024, 1024, 64), (1024, 64, 1024), (1024, 8, 1024), (64, 64, 1024),
    (12, 768, 768), (384, 384, 384), (2048, 512, 512), (100, 300, 200),
)  # fmt: skip


def _dots() -> Iterator[MicroCase]:
    for m, n, k in _DOT_SIZES:
        task = f"dot-{m}x{n}x{k}"
        for a, b in itertools.product(("mk", "km"), ("kn", "nk")):
            if (a, b) == ("km", "nk") and m * n * k > 128 * 768 * 768:
                continue
            x = tensor("a", *((m, k) if a == "mk" else (k, m)))
            w = tensor("b", *((k, n) if b == "kn" else (n, k)), frozen=True)
            yield _case("dot", task, f"{a},{b}", dot(x, w, ((a.index("k"),), (b.index("k"),))))
    for m, n, k in ((128, 768, 768), (3136, 64, 256)):
        product = dot(tensor("a", m, k), tensor("b", k, n, frozen=True), ((1,), (0,)))
        yield _case("dot", f"dot-{m}x{n}x{k}-t", "result", mk("transpose", product, permutation=(1, 0)))
        biased = mk("add", product, spread(tensor("c", n, frozen=True), (m, n), 1))
        yield _case("dot", f"dot-{m}x{n}x{k}-relu", "bias", mk("max", biased, fill(0.0, (m, n))))


def _batched() -> Iterator[MicroCase]:
    sizes = (
        (12, 128, 128, 64), (12, 128, 64, 128), (12, 1024, 1024, 64), (12, 1024, 64, 1024), (3, 197, 197, 64),
        (64, 8, 8, 8), (256, 4, 4, 4), (32, 32, 32, 32), (512, 16, 16, 16), (12, 1, 512, 64), (12, 1, 64, 512),
        (16, 784, 64, 64), (16, 196, 128, 128), (16, 49, 256, 256), (32, 196, 4, 36), (32, 3136, 4, 36), (100, 10,
        30, 20),
    )  # fmt: skip
    for g, m, n, k in sizes:
        task = f"batched-{g}x{m}x{n}x{k}"
        a, b = tensor("a", g, m, k), tensor("b", g, k, n)
        yield _case("batched", task, "mk,kn", dot(a, b, ((2,), (1,)), (0,)))
        yield _case("batched", task, "mk,nk", dot(a, tensor("b", g, n, k), ((2,), (2,)), (0,)))
        # heads beside rows, as projections leave them
        inner = dot(tensor("a", m, g, k), tensor("b", n, g, k), ((2,), (2,)), (1,))
        yield _case("batched", task, "mgk,ngk", inner)


def _vectors() -> Iterator[MicroCase]:
    for n, k in ((1024, 1024), (4096, 1024), (1024, 4096), (1000, 2048), (3072, 768), (768, 3072), (4096, 4096),
    (128, 64),
                 (2048, 512), (256, 256), (512, 512)):  # fmt: skip
        task = f"vector-{n}x{k}"
        yield _case("vector", task, "1k,kn", dot(tensor("a", 1, k), tensor("b", k, n, frozen=True), ((1,), (0,))))
        yield _case("vector", task, "1k,nk", dot(tensor("a", 1, k), tensor("b", n, k, frozen=True), ((1,), (1,))))
        yield _case("vector", task, "k,kn", dot(tensor("a", k), tensor("b", k, n, frozen=True), ((0,), (0,))))
        yield _case("vector", task, "nk,k", dot(tensor("b", n, k, frozen=True), tensor("a", k), ((1,), (0,))))
    for k in (1024, 65536):
        yield _case("vector", f"inner-{k}", "k,k", dot(tensor("a", k), tensor("b", k), ((0,), (0,))))
    for m, n in ((1024, 1024), (128, 3072)):
        yield _case("vector", f"outer-{m}x{n}", "m1,1n", dot(tensor("a", m, 1), tensor("b", 1, n), ((1,), (0,))))


# channels, outputs, size, window, stride
_CONV_SIZES = (
    (3, 64, 224, 7, 2), (3, 32, 224, 3, 2), (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1),
    (512, 512, 7, 3, 1), (128, 128, 56, 3, 2), (256, 256, 28, 3, 2), (32, 192, 28, 5, 1), (16, 64, 55, 3, 1),
    (64, 256, 13, 3, 1), (96, 128, 14, 3, 1), (32, 32, 112, 3, 1), (128, 32, 28, 3, 1), (128, 32, 7, 3, 1),
    (16, 32, 14, 5, 1), (192, 320, 7, 3, 1), (8, 8, 32, 3, 1),
)  # fmt: skip
_LAYOUTS = ("NCHW,OIHW,NCHW", "NHWC,HWIO,NHWC", "NHWC,OIHW,NHWC", "NCHW,HWIO,NCHW", "NHWC,HWIO,NCHW", "NCHW,HWIO,NHWC")


def _convs() -> Iterator[MicroCase]:
    for i, (c, o, size, k, stride) in enumerate(_CONV_SIZES):
        task = f"conv{k}x{k}-{c}-{o}-{size}-s{stride}"
        for layouts in _LAYOUTS[: 6 if i % 3 == 0 else 3]:
            yield _case("conv", task, layouts, forms.conv_plain(layouts, 1, c, o, size, k, stride))
        yield _case("conv", task, "patches", forms.conv_patches(1, c, o, size, k, stride, stacked=False))
        if i % 2 == 0:
            yield _case("conv", task, "patches5", forms.conv_patches(1, c, o, size, k, stride, stacked=True))
        if k == 3:
            yield _case("conv", task, "shifted", forms.conv_shifted_dots(1, c, o, size, k, stride))
    for layouts in _LAYOUTS[:2]:
        yield _case("conv", "conv3x3-64-64-28-b8", layouts, forms.conv_plain(layouts, 8, 64, 64, 28, 3, 1))
    x, u = tensor("x", 16, 784, 64), tensor("u", 16, 64, 64, frozen=True)
    yield _case("conv", "winograd-784-64", "tiles", dot(x, u, ((2,), (1,)), (0,)))


def _pointwise() -> Iterator[MicroCase]:
    sizes = ((64, 256, 56, 1), (256, 64, 56, 1), (1024, 256, 14, 1), (256, 1024, 14, 1), (256, 128, 56, 2), (512,
    128, 28, 1),
             (2048, 512, 7, 1), (32, 16, 112, 1), (16, 96, 112, 1), (144, 24, 56, 1), (384, 64, 14, 1), (160, 960,
             7, 1),
             (192, 64, 28, 1), (480, 192, 14, 1), (64, 16, 55, 1), (512, 1000, 13, 1))  # fmt: skip
    for c, o, size, stride in sizes:
        task = f"conv1x1-{c}-{o}-{size}-s{stride}"
        for layouts in _LAYOUTS[:3]:
            yield _case("pointwise", task, layouts, forms.conv_plain(layouts, 1, c, o, size, 1, stride))
        for layout in ("NHWC", "NCHW"):
            yield _case("pointwise", task, f"dot {layout}", forms.conv_as_dot(layout, 1, c, o, size, stride))


def _grouped() -> Iterator[MicroCase]:
    for c, size, k, stride in ((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (384, 14, 3, 1), (960, 7, 3, 1),
    (64, 28, 5, 1),
                               (42, 28, 5, 1), (58, 28, 3, 1), (16, 32, 7, 1)):  # fmt: skip
        task = f"depthwise{k}x{k}-{c}-{size}-s{stride}"
        for layouts in ("NCHW,OIHW,NCHW", "NHWC,HWIO,NHWC"):
            yield _case("depthwise", task, layouts, forms.conv_plain(layouts, 1, c, c, size, k, stride, groups=c))
        for layout in ("NHWC", "NCHW"):
            yield _case("depthwise", task, f"shifts {layout}", forms.depthwise_shifts(layout, 1, c, size, k, stride))
    for c, o, size, k, groups in ((128, 128, 56, 3, 32), (256, 256, 28, 3, 32), (512, 512, 14, 3, 32), (512, 512,
    14, 3, 4),
                                  (96, 256, 27, 5, 2), (112, 112, 28, 1, 4), (128, 128, 28, 3, 8)):  # fmt: skip
        for layouts in ("NCHW,OIHW,NCHW", "NHWC,HWIO,NHWC"):
            node = forms.conv_plain(layouts, 1, c, o, size, k, 1, groups=groups)
            yield _case("grouped", f"grouped{k}x{k}-{c}-{o}-{size}-g{groups}", layouts, node)


def _pools() -> Iterator[MicroCase]:
    for op, c, size, k, stride, pad in (
        ("max", 64, 112, 3, 2, 1), ("max", 64, 55, 3, 2, 0), ("max", 192, 28, 3, 1, 1), ("max", 256, 13, 2, 2, 0),
        ("sum", 192, 28, 3, 1, 1), ("sum", 128, 28, 2, 2, 0), ("sum", 1024, 7, 7, 1, 0), ("max", 16, 14, 5, 1, 2),
    ):  # fmt: skip
        task = f"pool-{op}{k}x{k}-{c}-{size}-s{stride}"
        for layout in ("NCHW", "NHWC"):
            yield _case("pool", task, layout, forms.pool_window(op, layout, 1, c, size, k, stride, pad))
            if k <= 5:
                yield _case("pool", task, f"shifts {layout}", forms.pool_shifts(op, layout, 1, c, size, k, stride, pad))
            if stride == 1 and k <= 5:
                yield _case("pool", task, f"separable {layout}", forms.pool_separable(op, layout, 1, c, size, k, pad))


_UNARY = ("neg", "abs", "floor", "sign", "square", "is_finite", *(f for f in FUNCTIONS if SCALARS[f].arity == 1))
_BINARY = ("add", "mul", "max", "lt", *(f for f in FUNCTIONS if SCALARS[f].arity == 2))


def _loops() -> Iterator[MicroCase]:
    for shape in ((64, 128), (128, 3072), (1024, 1024)):
        size = "x".join(map(str, shape))
        x, y = tensor("x", *shape), tensor("y", *shape)
        for op in _UNARY if shape != (1024, 1024) else ("neg", "exp", "tanh", "erf", "rsqrt", "log"):
            yield _case("loop", f"{op}-{size}", "loop", mk(op, x))
        for op in _BINARY:
            yield _case("loop", f"{op}-{size}", "loop", mk(op, x, y))
        for y_power in (2, 3, 5):
            yield _case("loop", f"ipow{y_power}-{size}", "loop", mk("integer_pow", x, y=y_power))
        yield _case("loop", f"gelu-{size}", "erf", forms.gelu(x, by_tanh=False))
        yield _case("loop", f"gelu-{size}", "tanh", forms.gelu(x, by_tanh=True))
        chain = x
        for step in range(6):
            chain = mk("mul" if step % 2 else "add", chain, y)
        yield _case("loop", f"chain6-{size}", "loop", chain)
        select = mk("select_n", mk("lt", x, y), x, y)
        yield _case("loop", f"select-{size}", "loop", select)
        row = spread(tensor("b", shape[1], frozen=True), shape, 1)
        yield _case("loop", f"bias-relu-{size}", "row", mk("max", mk("add", x, row), fill(0.0, shape)))
        column = spread(tensor("b", shape[0], frozen=True), shape, 0)
        yield _case("loop", f"bias-relu-{size}", "column", mk("max", mk("add", x, column), fill(0.0, shape)))
        turned = mk("transpose", tensor("z", *shape[::-1]), permutation=(1, 0))
        yield _case("loop", f"add-turned-{size}", "loop", mk("add", x, turned))
        yield _case("loop", f"convert-{size}", "loop", mk("convert_element_type", x, new_dtype="int32"))
    for n in (64, 4096, 32768, 131072, 524288, 4 << 20):
        x, y = tensor("x", n), tensor("y", n)
        yield _case("loop", f"flat-add-{n}", "loop", mk("add", x, y))
        yield _case("loop", f"flat-exp-{n}", "loop", mk("exp", x))
    for layout, shape in (
        ("NHWC", (1, 56, 56, 64)),
        ("NCHW", (1, 64, 56, 56)),
        ("NHWC", (1, 14, 14, 1024)),
        ("NCHW", (1, 1024, 14, 14)),
    ):
        x, y = tensor("x", *shape), tensor("y", *shape)
        bias = spread(tensor("b", 1024 if 1024 in shape else 64, frozen=True), shape, layout.index("C"))
        node = mk("max", mk("add", mk("add", x, bias), y), fill(0.0, shape))
        yield _case("loop", f"residual-{'x'.join(map(str, sorted(shape)))}", layout, node)


def _reductions() -> Iterator[MicroCase]:
    """Yield sums, maxima and their like over rows, columns and all elements."""
    for shape in ((128, 768), (12 * 128, 128), (1024, 1024), (64, 128), (16, 50000)):
        size = "x".join(map(str, shape))
        x = tensor("x", *shape)
        for op in ("sum", "max"):
            yield _case("reduce", f"{op}-{size}-rows", "reduce", mk(f"reduce_{op}", x, axes=(1,)))
            yield _case("reduce", f"{op}-{size}-columns", "reduce", mk(f"reduce_{op}", x, axes=(0,)))
            yield _case("reduce", f"{op}-{size}-all", "reduce", mk(f"reduce_{op}", x, axes=(0, 1)))
        ones = tensor("o", shape[1], frozen=True)
        yield _case("reduce", f"sum-{size}-rows", "dot", dot(x, ones, ((1,), (0,))))
        yield _case("reduce", f"argmax-{size}", "rows", mk("argmax", x, axes=(1,), index_dtype="int32"))
        squares = mk("reduce_sum", mk("mul", x, x), axes=(1,))
        yield _case("reduce", f"squares-{size}", "reduce", squares)
        yield _case("reduce", f"sum-exp-{size}", "reduce", mk("reduce_sum", mk("exp", x), axes=(1,)))
    for layout, shape in (
        ("NHWC", (1, 7, 7, 2048)),
        ("NCHW", (1, 2048, 7, 7)),
        ("NHWC", (1, 13, 13, 1000)),
        ("NCHW", (1, 1000, 13, 13)),
    ):
        axes = tuple(layout.index(a) for a in "HW")
        yield _case("reduce", f"global-{max(shape)}", layout, mk("reduce_sum", tensor("x", *shape), axes=axes))
    for rows, width in ((64, 1024), (1, 65536), (1024, 64), (512, 128)):
        x = tensor("x", rows, width)
        yield _case("scan", f"cumsum-{rows}x{width}", "minor", mk("cumsum", x, axis=1, reverse=False))
        block = 32
        if width % block == 0 and width > block:
            parts = mk("reshape", x, new_sizes=(rows, width // block, block))
            tri = tensor("t", block, block, frozen=True)
            inner = dot(parts, tri, ((2,), (0,)))
            yield _case("scan", f"cumsum-{rows}x{width}", "block step", inner)
        yield _case("scan", f"cummax-{rows}x{width}", "minor", mk("cummax", x, axis=1, reverse=False))
    yield _case("scan", "cumsum-1024x64-major", "major", mk("cumsum", tensor("x", 1024, 64), axis=0, reverse=False))


def _moves() -> Iterator[MicroCase]:
    """Yield kernels that only move data: transposes, slices, pads, concatenations."""
    for shape, permutation in (
        ((1024, 1024), (1, 0)), ((128, 768), (1, 0)), ((3072, 768), (1, 0)), ((64, 64), (1, 0)), ((1, 64, 56, 56),
        (0, 2, 3, 1)),
        ((1, 56, 56, 64), (0, 3, 1, 2)), ((1, 512, 7, 7), (0, 2, 3, 1)), ((128, 12, 64), (1, 0, 2)), ((12, 128, 64),
        (1, 0, 2)),
        ((12, 128, 64), (0, 2, 1)), ((128, 12, 64), (1, 2, 0)), ((512, 512, 3, 3), (2, 3, 1, 0)), ((64, 3, 7, 7),
        (2, 3, 1, 0)),
        ((1, 28, 28, 2, 58), (0, 1, 2, 4, 3)), ((1, 2, 58, 28, 28), (0, 2, 1, 3, 4)), ((1, 14, 14, 4, 56), (0, 1, 2,
        4, 3)),
        ((32, 3136, 4), (1, 0, 2)),
    ):  # fmt: skip
        name = f"transpose-{'x'.join(map(str, shape))}-{''.join(map(str, permutation))}"
        yield _case("move", name, "copy", mk("transpose", tensor("x", *shape), permutation=permutation))
    for layout in ("NHWC", "NCHW"):
        for c, size in ((64, 56), (256, 14), (32, 112)):
            x = forms.data(layout, 1, c, size)
            axis = layout.index("C")
            yield _case("move", f"concat2-{c}-{size}", layout, mk("concatenate", x, mk("neg", x), dimension=axis))
            y, z = tensor("y", *x.shape), tensor("z", *x.shape)
            yield _case("move", f"concat3-{c}-{size}", layout, mk("concatenate", x, y, z, dimension=axis))
            yield _case("move", f"pad-{c}-{size}", layout, forms.padded(x, layout, 1))
            start, limit = [0] * 4, list(x.shape)
            limit[axis] = c // 2
            half = mk("slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=(1,) * 4)
            yield _case("move", f"half-{c}-{size}", layout, half)
            yield _case("move", f"strided-{c}-{size}", layout, forms.window(x, layout, 0, 0, size // 2, 2))
    yield _case("move", "reverse-1024x256", "rev", mk("rev", tensor("x", 1024, 256), dimensions=(1,)))
    yield _case("move", "broadcast-768", "rows", spread(tensor("x", 768), (128, 768), 1))
    yield _case("move", "broadcast-768", "columns", spread(tensor("x", 768), (768, 128), 0))
    for rows, width, count in ((30522, 768, 128), (1000, 64, 1024), (50, 4096, 16)):
        gather = mk(
            "gather", tensor("t", rows, width, frozen=True), tensor("i", count, 1, dtype="int32"), offset_dims=(1,),
            collapsed_slice_dims=(0,), start_index_map=(0,), operand_batching_dims=(), start_indices_batching_dims=(),
            slice_sizes=(1, width), mode="clip",
        )  # fmt: skip
        yield _case("move", f"gather-{rows}x{width}-{count}", "take", gather)
    x, i = tensor("x", 512, 256), tensor("i", dtype="int32")
    zero = forms.literal(0, "int32")
    yield _case("move", "dynamic-slice", "rows", mk("dynamic_slice", x, i, zero, slice_sizes=(128, 256)))
    update = tensor("u", 1, 256)
    yield _case("move", "dynamic-update", "row", mk("dynamic_update_slice", x, update, i, zero))


def _composites() -> Iterator[MicroCase]:
    for shape in ((12, 128, 128), (64, 1000), (12, 1024, 1024), (1, 1000)):
        yield _case("composite", f"softmax-{'x'.join(map(str, shape))}", "jax", forms.softmax(tensor("x", *shape)))
    for shape in ((128, 768), (197, 192), (1024, 1024), (1, 768)):
        yield _case("composite", f"norm-{'x'.join(map(str, shape))}", "jax", forms.layer_norm(tensor("x", *shape)))
    for m, n, k in ((128, 3072, 768), (196, 256, 1024), (3136, 64, 64)):
        product = dot(tensor("a", m, k), tensor("b", k, n, frozen=True), ((1,), (0,)))
        bias = spread(tensor("c", n, frozen=True), (m, n), 1)
        yield _case("composite", f"dense-{m}x{n}x{k}", "gelu", forms.gelu(mk("add", product, bias), by_tanh=True))
        yield _case("composite", f"dense-{m}x{n}x{k}", "relu", mk("max", mk("add", product, bias), fill(0.0, (m, n))))
    gates = [mk("logistic" if i != 2 else "tanh", tensor(f"g{i}", 1, 512)) for i in range(4)]
    cell = mk("add", mk("mul", gates[1], tensor("c", 1, 512)), mk("mul", gates[0], gates[2]))
    yield _case("composite", "lstm-cell-512", "loop", mk("mul", gates[3], mk("tanh", cell)))


def _library() -> Iterator[MicroCase]:
    """Yield the forms that the library's macro rules make of heavy ops: exactly those that a search prices."""
    rules = [rule for rule in library.load() if rule.mode == "macro"]
    sources: list[tuple[str, str, str, Node]] = []
    for layouts in ("NCHW,OIHW,NCHW", "NHWC,HWIO,NHWC"):
        for c, o, size, k, stride, groups in (
            (64, 64, 56, 3, 1, 1), (256, 256, 14, 3, 1, 1), (48, 64, 28, 5, 1, 1), (96, 96, 28, 3, 2, 96), (128,
            128, 28, 3, 1, 8),
        ):  # fmt: skip
            kind = "conv" if groups == 1 else "depthwise" if groups == c else "grouped"
            node = forms.conv_plain(layouts, 1, c, o, size, k, stride, groups)
            sources.append((kind, f"library-{kind}{k}x{k}-{c}-{size}", layouts, node))
    for layout in ("NCHW", "NHWC"):
        for op in ("max", "sum"):
            node = forms.pool_window(op, layout, 1, 96, 28, 3, 2 if op == "max" else 1, 1)
            sources.append(("pool", f"library-{op}-pool-96-28", layout, node))
    for g, n in ((64, 8), (256, 4)):
        node = dot(tensor("a", g, n, n), tensor("b", g, n, n), ((2,), (1,)), (0,))
        sources.append(("batched", f"library-batched-{g}x{n}", "natural", node))
    for kind, task, layout, node in sources:
        yield _case(kind, task, layout, node)
        for rule in rules:
            try:
                form = expand_macro(rule, node)
            except SuperoptError:
                continue  # the rule is about something else
            (plain,) = hot_part(kernel(form)).outputs
            yield _case(kind, task, f"{layout} {rule.name}", plain)
