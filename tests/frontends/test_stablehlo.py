"""StableHLO modules as graphs: operations against XLA's execution of the module, and files that are refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax._src import compiler
from jaxlib import xla_client

from superopt.backends.xla import to_jax
from superopt.errors import InputError, SuperoptError
from superopt.frontends.stablehlo.module import import_module, load_module
from superopt.frontends.stablehlo.ops import OPS
from tests.frontends.test_frontend_jax import check_close
from tests.support.jax_programs import CASES
from tests.support.sampling import sampled


def compiled(text: str) -> Any:
    """The module as XLA executes it."""
    device = jax.devices()[0]
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    return device.client.compile_and_load(text, xla_client.DeviceList((device,)), options)


def by_xla(text: str, args: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the module from XLA itself."""
    with jax.enable_x64(True):
        found = compiled(text).execute_sharded([jnp.asarray(x) for x in args])
        return [np.asarray(x[0]) for x in found.disassemble_into_single_device_arrays()]


def by_us(text: str | bytes, args: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the graph that is imported."""
    imported = import_module(load_module(text.encode() if isinstance(text, str) else text))
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.jit(to_jax(imported.graph))(*args, *imported.graph.constants.values())]


def check(text: str, *args: Any) -> None:
    arrays = [np.asarray(x) for x in args]
    check_close(by_us(text, arrays), by_xla(text, arrays))


REFUSED = {
    "cumlogsumexp": "reduce_window", "fft": "complex<f32>", "general_reduce": "reduces by a function",
    "linear_solve": "lapack_sgetrf_ffi", "factorised_solve": "lapack_sgetrf_ffi",
}  # fmt: skip
"""Programs with an operation that is refused, and what the refusal names."""


@pytest.mark.parametrize("name", sampled(CASES, lambda n, name: name in REFUSED or n % 4 == 0))
def test_exported_programs(name: str) -> None:
    fn, args = CASES[name]()
    text = jax.jit(fn, keep_unused=True).lower(*args).as_text()
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]) as told:
            import_module(load_module(text.encode()))
        assert "line " in str(told.value)
        return
    types = load_module(text.encode()).arguments
    check(text, *(np.asarray(x).astype(t.dtype) for x, t in zip(jax.tree.leaves(args), types, strict=True)))


# ---- operations one by one

NUMBERS = np.array([0.25, -0.5, 1.5, 0.75], np.float32)
INTEGERS = np.array([7, -3, 2, 0], np.int32)
UNARY = {
    "f32": "abs cbrt ceil cosine exponential exponential_minus_one floor log_plus_one logistic negate "
    "round_nearest_afz round_nearest_even sign sine tan tanh chlo.acos chlo.asin chlo.asinh chlo.atan chlo.atanh "
    "chlo.cosh "
    "chlo.erf chlo.erf_inv chlo.erfc chlo.sinh chlo.square chlo.bessel_i1e chlo.tan",
    "i32": "abs count_leading_zeros negate not popcnt sign",
}
POSITIVE = "log rsqrt sqrt chlo.acosh chlo.digamma chlo.lgamma"
BINARY = {
    "f32": "add atan2 divide maximum minimum multiply power remainder subtract chlo.next_after",
    "i32": "add and divide maximum minimum multiply or remainder shift_left shift_right_arithmetic "
    "shift_right_logical subtract xor",
}
ELEMENTS = [
    *((name, kind, 1, kind) for kind, names in UNARY.items() for name in names.split()),
    *((name, "positive", 1, "f32") for name in POSITIVE.split()),
    *((name, kind, 2, kind) for kind, names in BINARY.items() for name in names.split()),
]


def written(name: str) -> str:
    return name if name.startswith("chlo.") else f"stablehlo.{name}"


@pytest.mark.parametrize(("name", "values", "arity", "kind"), ELEMENTS)
def test_functions_of_elements(name: str, values: str, arity: int, kind: str) -> None:
    of = f"tensor<4x{kind}>"
    names = [f"%{i}" for i in range(arity)]
    op = f'"{written(name)}"({", ".join(names)}) : ({", ".join([of] * arity)}) -> {of}'
    text = main([of] * arity, of, f"%r = {op}\n    return %r : {of}", names)
    x = {"f32": NUMBERS, "positive": np.abs(NUMBERS) + 1, "i32": INTEGERS}[values]
    y = np.array([3, 2, 5, 1]).astype(x.dtype)
    check(text, *[x, y][:arity])


def main(types: list[str], result: str, body: str, names: list[str]) -> str:
    """A module whose main function has this body."""
    given = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    return (
        f"!a = tensor<3x4xf32>\nmodule {{\n  func.func public @main({given}) -> ({result}) {{\n    {body}\n  }}\n}}\n"
    )


A, B = np.arange(12, dtype=np.float32).reshape(3, 4) - 5, np.arange(12, dtype=np.float32).reshape(4, 3)
INFINITE = np.where(A > 0, np.float32(np.inf), np.where(A < 0, -np.float32(np.inf), np.float32(np.nan)))
AT = "!a"
ONE = (
    "\n  ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n    %s = stablehlo.{0} %p, %q : tensor<f32>\n"
    "    stablehlo.return %s : tensor<f32>\n"
)
BODIES: dict[str, tuple[str, list[str], str, list[Any]]] = {
    "broadcast in another order": (
        '%r = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (!a) -> tensor<4x2x3xf32>',
        [AT], "tensor<4x2x3xf32>", [A],
    ),
    "broadcast": ('%r = "stablehlo.broadcast"(%a) {broadcast_sizes = array<i64: 2>} : (!a) -> tensor<2x3x4xf32>',
                  [AT], "tensor<2x3x4xf32>", [A]),
    "sum from a number": (
        "%c = stablehlo.constant dense<2.5> : tensor<f32>\n"
        "    %r = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [1] : "
        "(!a, tensor<f32>) -> tensor<3xf32>",
        [AT], "tensor<3xf32>", [A],
    ),
    "maximum from an argument": (
        "%r = stablehlo.reduce(%a init: %b) applies stablehlo.maximum across dimensions = [0] : "
        "(!a, tensor<f32>) -> tensor<4xf32>",
        [AT, "tensor<f32>"], "tensor<4xf32>", [A, np.float32(1.5)],
    ),
    "slice that is clamped": (
        "%r = stablehlo.dynamic_slice %a, %b, %c, sizes = [2, 3] : "
        "(!a, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>",
        [AT, "tensor<i32>", "tensor<i32>"], "tensor<2x3xf32>", [A, np.int32(-2), np.int32(7)],
    ),
    "update that is clamped": (
        "%r = stablehlo.dynamic_update_slice %a, %b, %c, %d : "
        "(!a, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> !a",
        [AT, "tensor<2x2xf32>", "tensor<i32>", "tensor<i32>"], AT, [A, A[:2, :2] * 10, np.int32(-1), np.int32(3)],
    ),
    "gather with indices in front": (
        '%r = "stablehlo.gather"(%a, %b) {dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 0>, "
        "slice_sizes = array<i64: 1, 2>} : "
        "(!a, tensor<2x5xi32>) -> tensor<5x2xf32>",
        [AT, "tensor<2x5xi32>"], "tensor<5x2xf32>", [A, np.array([[0, 1, 2, -1, 9], [0, 1, 2, 3, -4]], np.int32)],
    ),
    "gather of rows": (
        '%r = "stablehlo.gather"(%a, %b) {dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>} : "
        "(!a, tensor<2xi32>) -> tensor<2x4xf32>",
        [AT, "tensor<2xi32>"], "tensor<2x4xf32>", [A, np.array([2, 0], np.int32)],
    ),
    "dot": ('%r = "stablehlo.dot"(%a, %b) : (!a, tensor<4x3xf32>) -> tensor<3x3xf32>',
            [AT, "tensor<4x3xf32>"], "tensor<3x3xf32>", [A, B]),
    "kernel that is reversed": (
        "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], "
        "window = {pad = [[1, 0]], reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<1x3x4xf32>, tensor<2x3x2xf32>) -> tensor<1x2x4xf32>",
        ["tensor<1x3x4xf32>", "tensor<2x3x2xf32>"], "tensor<1x2x4xf32>", [A[None], B.reshape(2, 3, 2)],
    ),
    "branch out of range": (
        '%r = "stablehlo.case"(%b) ({\n stablehlo.return %a : !a\n}, {\n'
        " %n = stablehlo.negate %a : !a\n stablehlo.return %n : !a\n}) : (tensor<i32>) -> !a",
        [AT, "tensor<i32>"], AT, [A, np.int32(-5)],
    ),
    "if": (
        '%r = "stablehlo.if"(%b) ({\n stablehlo.return %a : !a\n}, {\n'
        " %n = stablehlo.negate %a : !a\n stablehlo.return %n : !a\n}) : (tensor<i1>) -> !a",
        [AT, "tensor<i1>"], AT, [A, np.False_],
    ),
    "choice by one condition": (
        "%r = stablehlo.select %b, %a, %c : tensor<i1>, !a",
        [AT, "tensor<i1>", AT], AT, [A, np.True_, -A],
    ),
    "clamp": ("%r = stablehlo.clamp %b, %a, %c : (tensor<f32>, !a, tensor<f32>) -> !a",
              [AT, "tensor<f32>", "tensor<f32>"], AT, [A, np.float32(-1), np.float32(3)]),
    "padding of both signs": (
        "%r = stablehlo.pad %a, %b, low = [1, -1], high = [-1, 2], interior = [1, 0] : "
        "(!a, tensor<f32>) -> tensor<5x5xf32>",
        [AT, "tensor<f32>"], "tensor<5x5xf32>", [A, np.float32(9)],
    ),
    "windows": (
        '%c = stablehlo.constant dense<0xFF800000> : tensor<f32>\n    %r = "stablehlo.reduce_window"(%a, %c) <{'
        "window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>, "
        "padding = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>"
        "}> ({" + ONE.format("maximum") + "}) : (!a, tensor<f32>) -> tensor<3x2xf32>",
        [AT], "tensor<3x2xf32>", [A],
    ),
    "batch norm": (
        '%r = "stablehlo.batch_norm_inference"(%a, %b, %c, %d, %e) {epsilon = 0.01 : f32, feature_index = 1 : i64} : '
        "(!a, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> !a",
        [AT, *["tensor<4xf32>"] * 4], AT, [A, A[0], A[1], A[2], A[2] ** 2],
    ),
    "rounding to a format": ("%r = stablehlo.reduce_precision %a, format = e5m10 : !a", [AT], AT, [A / 3]),
    "bits": ("%r = stablehlo.bitcast_convert %a : (!a) -> tensor<3x4xi32>", [AT], "tensor<3x4xi32>", [A]),
    "finite": ("%r = stablehlo.is_finite %a : (!a) -> tensor<3x4xi1>", [AT], "tensor<3x4xi1>", [INFINITE]),
    "infinite": ("%r = chlo.is_inf %a : !a -> tensor<3x4xi1>", [AT], "tensor<3x4xi1>", [INFINITE]),
    "barrier": ("%r = stablehlo.optimization_barrier %a : !a", [AT], AT, [A]),
    "reverse": ("%r = stablehlo.reverse %a, dims = [1] : !a", [AT], AT, [A]),
    "zeta": ("%r = chlo.zeta %a, %b : !a, !a -> !a", [AT, AT], AT, [A * 0 + 2, A * 0 + 3]),
    "top": ("%r:2 = chlo.top_k(%a, k = 2) : !a -> (tensor<3x2xf32>, tensor<3x2xi32>)",
            [AT], "tensor<3x2xf32>, tensor<3x2xi32>", [A]),
}  # fmt: skip


CONSTANTS = {
    "[1.5, -2.25, 0x7F80, 3.0e10]": "4xbf16", '"0x803F00C0"': "2xbf16", "[1.5, -2.25, 0x7C00]": "3xf16",
    "[[1.5, -2.25e300]]": "1x2xf64", '"0x0000803F000000C0"': "2x1xf32", "[1, 4294967295]": "2xui32",
    "18446744073709551615": "2xui64", "[1, -128]": "2xi8", "[1, -9223372036854775808]": "2xi64",
    "[true, false, true]": "3xi1", "": "0x3xf32", "-1.0": "bf16",
}  # fmt: skip


@pytest.mark.parametrize(("values", "kind"), CONSTANTS.items())
def test_constants(values: str, kind: str) -> None:
    result = f"tensor<{kind}>"
    check(
        main([AT], result, f"%r = stablehlo.constant dense<{values}> : {result}\n    return %r : {result}", ["%a"]), A
    )


@pytest.mark.parametrize("name", BODIES)
def test_bodies_as_written(name: str) -> None:
    body, types, result, args = BODIES[name]
    names = [f"%{x}" for x in "abcde"[: len(types)]]
    results = "%r" if "%r:2" not in body else "%r#0, %r#1"
    check(main(types, result, f"{body}\n    return {results} : {result}", names), *args)


@pytest.mark.parametrize("kind", ["add", "multiply", "maximum", "minimum", "and", "or", "xor"])
def test_reductions_of_integers(kind: str) -> None:
    start = {"multiply": "1", "maximum": "-2147483648", "minimum": "2147483647", "and": "-1"}.get(kind, "0")
    text = main(["tensor<3x4xi32>"], "tensor<3xi32>", (
        f"%c = stablehlo.constant dense<{start}> : tensor<i32>\n    %r = stablehlo.reduce(%a init: %c) "
        f"applies stablehlo.{kind} "
        "across dimensions = [1] : (tensor<3x4xi32>, tensor<i32>) -> tensor<3xi32>\n    return %r : tensor<3xi32>"
    ), ["%a"])  # fmt: skip
    check(text, (A * 3 + 1).astype(np.int32))


def vectors(**values: str) -> str:
    return "".join(
        f"%{name} = stablehlo.constant dense<[{text}]> : tensor<{len(text.split(','))}xi32>\n    "
        for name, text in values.items()
    )


CONV = (
    "%x = stablehlo.reshape %a : (!a) -> tensor<1x3x4xf32>\n    "
    "%w = stablehlo.constant dense<2.0> : tensor<1x4x2xf32>\n    "
)
AS_STATIC: dict[str, tuple[str, str, str]] = {
    "dynamic_broadcast_in_dim": (
        "tensor<2x3x4xf32>",
        vectors(n="2, 3, 4")
        + "%r = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [1, 2] : (!a, tensor<3xi32>) -> !r",
        "%r = stablehlo.broadcast_in_dim %a, dims = [1, 2] : (!a) -> !r",
    ),
    "dynamic_reshape": (
        "tensor<4x3xf32>",
        vectors(n="4, 3") + "%r = stablehlo.dynamic_reshape %a, %n : (!a, tensor<2xi32>) -> !r",
        "%r = stablehlo.reshape %a : (!a) -> !r",
    ),
    "dynamic_iota": (
        "tensor<4x3xi32>",
        vectors(n="4, 3") + "%r = stablehlo.dynamic_iota %n, dim = 1 : (tensor<2xi32>) -> !r",
        "%r = stablehlo.iota dim = 1 : !r",
    ),
    "dynamic_pad": (
        "tensor<6x9xf32>",
        vectors(l="1, 0", h="2, -1", i="0, 2")
        + "%v = stablehlo.constant dense<5.0> : tensor<f32>\n    %r = stablehlo.dynamic_pad %a, %v, %l, %h, %i : "
        "(!a, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> !r",
        "%v = stablehlo.constant dense<5.0> : tensor<f32>\n    "
        "%r = stablehlo.pad %a, %v, low = [1, 0], high = [2, -1], interior = [0, 2] : (!a, tensor<f32>) -> !r",
    ),
    "real_dynamic_slice": (
        "tensor<2x2xf32>",
        vectors(l="1, 0", h="3, 4", i="1, 2") + "%r = stablehlo.real_dynamic_slice %a, %l, %h, %i : "
        "(!a, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> !r",
        "%r = stablehlo.slice %a [1:3, 0:4:2] : (!a) -> !r",
    ),
    "dynamic_gather": (
        "tensor<2x4xf32>",
        vectors(n="1, 4") + "%i = stablehlo.constant dense<[2, 0]> : tensor<2xi32>\n    "
        '%r = "stablehlo.dynamic_gather"(%a, %i, %n) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}> : "
        "(!a, tensor<2xi32>, tensor<2xi32>) -> !r",
        "%i = stablehlo.constant dense<[2, 0]> : tensor<2xi32>\n    "
        '%r = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
        "slice_sizes = array<i64: 1, 4>}> : (!a, tensor<2xi32>) -> !r",
    ),
    "dynamic_conv": (
        "tensor<1x4x2xf32>",
        "%p = stablehlo.constant dense<[[1, 0]]> : tensor<1x2xi32>\n    "
        + CONV
        + '%r = "stablehlo.dynamic_conv"(%x, %w, %p) <{batch_group_count = 1 : i64, feature_group_count = 1 : i64, '
        "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>}> : "
        "(tensor<1x3x4xf32>, tensor<1x4x2xf32>, tensor<1x2xi32>) -> !r",
        CONV + '%r = "stablehlo.convolution"(%x, %w) <{batch_group_count = 1 : i64, feature_group_count = 1 : i64, '
        "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, padding = dense<[[1, 0]]> : "
        "tensor<1x2xi64>}> : (tensor<1x3x4xf32>, tensor<1x4x2xf32>) -> !r",
    ),
    "get_dimension_size": (
        "tensor<i32>",
        "%r = stablehlo.get_dimension_size %a, dim = 1 : (!a) -> !r",
        "%r = stablehlo.constant dense<4> : !r",
    ),
}
"""Operations whose sizes are operands, and the ones of the same meaning whose sizes are written."""


@pytest.mark.parametrize("name", AS_STATIC)
def test_sizes_that_are_operands(name: str) -> None:
    result, dynamic, static = AS_STATIC[name]
    texts = [
        main([AT], result, f"{body}\n    return %r : !r".replace("!r", result), ["%a"]) for body in (dynamic, static)
    ]
    check_close(by_us(texts[0], [A]), by_xla(texts[1], [A]))


def test_no_operation_is_untested() -> None:
    """Operations of the table that neither these texts nor the exported programs hold."""
    seen = {written(name) for name, *_ in ELEMENTS} | {"stablehlo.composite", "stablehlo.custom_call"}
    texts = ["stablehlo.constant", *(body for body, *_ in BODIES.values()), *(x for _, x, _ in AS_STATIC.values())]
    texts += [jax.jit(f).lower(*args).as_text() for f, args in (CASES[name]() for name in CASES if name not in REFUSED)]
    assert not {op for op in OPS if op not in seen and not any(op.removeprefix("func.") in text for text in texts)}


def test_a_composite_is_what_it_is_composed_of() -> None:
    text = main([AT], AT, '%r = stablehlo.composite "some.op" %a {decomposition = @twice} : (!a) -> !a\n'
                f"    return %r : {AT}", ["%a"])  # fmt: skip
    inner = (
        f"func.func private @twice(%a: {AT}) -> {AT} {{\n %r = stablehlo.add %a, %a : {AT}\n return %r : {AT}\n}}\n}}\n"
    )
    (got,) = by_us(text.rstrip()[:-1] + inner, [A])
    np.testing.assert_array_equal(got, A + A)


def test_tensors_behind_the_module() -> None:
    text = main(
        [AT],
        AT,
        f"%c = stablehlo.constant dense_resource<w> : {AT}\n    %r = stablehlo.add %a, %c : {AT}\n    return %r : {AT}",
        ["%a"],
    )
    blob = (4).to_bytes(4, "little") + B.tobytes()
    behind = '{-# dialect_resources: { builtin: { w: "0x%s" } } #-}\n'
    (got,) = by_us(text + behind % blob.hex(), [A])
    np.testing.assert_array_equal(got, A + B.reshape(3, 4))
    for wrong, why in ((text + behind % blob.hex()[:-8], "has 44 bytes"), (text, "are not in the file")):
        with pytest.raises(InputError, match=why):
            load_module(wrong.encode())


def test_bytes_that_jax_exports() -> None:
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x) @ B))(A)
    (got,) = by_us(exported.mlir_module_serialized, [A])
    np.testing.assert_allclose(got, np.tanh(A) @ B, rtol=1e-5, atol=1e-5)


def sorted_by(text: str, *kinds: str) -> str:
    """A module that sorts vectors of four by a comparison of the pairs of its elements."""
    tensors = [f"tensor<4x{kind}>" for kind in kinds]
    pairs = ", ".join(f"%a{2 * i + j}: tensor<{kind}>" for i, kind in enumerate(kinds) for j in range(2))
    names = ", ".join(f"%x{i}" for i in range(len(kinds)))
    found = ", ".join(f"%r#{i}" for i in range(len(kinds))) if len(kinds) > 1 else "%r"
    given = ", ".join(f"%x{i}: {t}" for i, t in enumerate(tensors))
    many = f":{len(kinds)}" if len(kinds) > 1 else ""
    return f"""func.func @main({given}) -> ({", ".join(tensors)}) {{
  %r{many} = "stablehlo.sort"({names}) ({{
  ^bb0({pairs}):
    %c = stablehlo.compare {text}
    stablehlo.return %c : tensor<i1>
  }}) {{dimension = 0 : i64, is_stable = true}} : ({", ".join(tensors)}) -> ({", ".join(tensors)})
  return {found} : {", ".join(tensors)}
}}"""


SAME = np.array([2.0, -1.0, 2.0, -1.0], np.float32)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (sorted_by("GT, %a0, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>", "f32"), (NUMBERS,)),
        (sorted_by("LT, %a1, %a0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>", "f32"), (NUMBERS,)),
        (sorted_by("LT, %a0, %a1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>", "i32"), (INTEGERS,)),
        (sorted_by("GT, %a0, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>", "f32", "i32"), (SAME, INTEGERS)),
        (sorted_by("GT, %a2, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>", "i32", "f32"), (INTEGERS, SAME)),
    ],
)
def test_sorts_by_other_comparisons(text: str, args: tuple[Any, ...]) -> None:
    check(text, *args)


def test_a_sort_by_no_order_is_refused() -> None:
    for compared in ("GT, %a0, %a0", "GT, %a0, %a3", "LE, %a0, %a1"):
        text = sorted_by(f"{compared}, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>", "f32", "f32")
        with pytest.raises(InputError, match="sorts by a comparison"):
            import_module(load_module(text.encode()))


# ---- files that are refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no function main"),
        ("module {", "line 1"),
        ("nonsense", "no StableHLO module"),
        ("\xff\xfe", "no StableHLO module"),
        (main([AT], AT, "return %a : tensor<3x4xi32>", ["%a"]), "line 4"),
        (main([AT], AT, "%r = stablehlo.add %a, %b : !a\n return %r : !a", ["%a"]), "line 4"),
        (main(["tensor<?x4xf32>"], "tensor<?x4xf32>", "return %a : tensor<?x4xf32>", ["%a"]), "leaves sizes open"),
        (main(["tensor<*xf32>"], "tensor<*xf32>", "return %a : tensor<*xf32>", ["%a"]), "no tensor of a known rank"),
        (main(["tensor<2xi4>"], "tensor<2xi4>", "return %a : tensor<2xi4>", ["%a"]), "elements of i4"),
        (main([AT], AT, "%r = stablehlo.custom_call @evil(%a) : (!a) -> !a\n return %r : !a", ["%a"]), "calls 'evil'"),
        (main([AT], AT, f"%r = func.call @main(%a) : ({AT}) -> {AT}\n return %r : {AT}", ["%a"]), "calls itself"),
        (main([AT], AT, "%c = stablehlo.constant dense_resource<w> : !a\n return %c : !a", ["%a"]), "not in the file"),
        ("module {" + "module {" * 300 + "}" * 301, "nests brackets"),
        ("module @m { memref.global @g : memref<2xf32> }", "beside functions"),
    ],
)  # fmt: skip
def test_files_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        import_module(load_module(text.encode("latin-1")))


def test_functions_that_call_each_other_twice_are_bounded() -> None:
    call = (
        f"%r = func.call @f{{0}}(%a) : ({AT}) -> {AT}\n %s = func.call @f{{0}}(%r) : ({AT}) -> {AT}\n return %s : {AT}"
    )
    functions = [f"func.func @f{i}(%a: {AT}) -> {AT} {{\n {call.format(i + 1)}\n}}" for i in range(30)]
    functions.append(f"func.func @f30(%a: {AT}) -> {AT} {{\n return %a : {AT}\n}}")
    text = "!a = tensor<3x4xf32>\nmodule {\n" + "\n".join(functions).replace("@f0(", "@main(") + "\n}"
    with pytest.raises(InputError, match="operations"):
        import_module(load_module(text.encode()))


def test_a_huge_constant_is_not_written_out() -> None:
    text = main([], "tensor<f32>", (
        "%c = stablehlo.constant dense<1.0> : tensor<1000000x1000000xf32>\n    %r = stablehlo.slice %c [0:1, 0:1] : "
        "(tensor<1000000x1000000xf32>) -> tensor<1x1xf32>\n"
        "    %s = stablehlo.reshape %r : (tensor<1x1xf32>) -> tensor<f32>\n"
        "    return %s : tensor<f32>"
    ), [])  # fmt: skip
    assert import_module(load_module(text.encode())).graph.outputs[0].dtype == "float32"


def test_damaged_files() -> None:
    """Whatever a file holds, it is read or refused in a typed error."""
    text = jax.jit(CASES["attention"]()[0]).lower(*CASES["attention"]()[1]).as_text().encode()
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x) @ B))(A).mlir_module_serialized
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(60):
        whole = bytearray(text if number % 2 else exported)
        for _ in range(3):
            at = int(rng.integers(len(whole)))
            whole[at : at + int(rng.integers(4))] = bytes(rng.integers(0, 256, int(rng.integers(4)), np.uint8))
        try:
            import_module(load_module(bytes(whole)))
        except SuperoptError:
            refused += 1
    assert refused > 30
