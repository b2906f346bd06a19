"""Every ONNX operator with every element type that ONNX Runtime runs, against it and the reference evaluator.

The cases are those of `onnx_contrib` for operators of ONNX Runtime's own, and the single-node tests of the `onnx`
package.  Each is run with every element type that the operator's definition allows for its first operand (and for each
other operand with a type of its own).  There are two kinds of values: those of the test, cast, and the extremes of the
type.  A result is right when it agrees with ONNX Runtime; where it does not, the reference evaluator decides.  The case
is `reference` if we agree with that and ONNX Runtime does not.  It is `named` if, for all elements that differ, `NAMED`
states that no value is defined, or that ours is the right one (see docs/onnx.md).  Otherwise it is `wrong`.

    superopt bench --suite onnx-types [--case Gemm] [--json]

Without onnxruntime, results are compared with the reference evaluator alone, and the suite reports that.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from superopt.errors import SuperoptError
from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.ops.quant import int_range
from superopt.frontends.onnx.read import subgraphs
from superopt.lab.bench.onnx.contrib import contrib_cases
from superopt.lab.bench.onnx.nodes import RANDOM_OPS, node_cases, run_model

TESTS_PER_OP = 3  # later tests of an operator differ from earlier ones in attributes that types do not touch
NEWEST_OPSET = 25  # of the operator sets that ONNX Runtime 1.32 knows
# relative difference that rounding explains, by bits of the significand
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
# values of casts that every target has, halves among them
IN_RANGE = np.array([0.0, 1.0, 0.75, 1.5, 0.5, 1.25])
# operators that add products: infinities and the largest numbers meet others, in an order that is nobody's promise
SUMS = frozenset({
    "AffineGrid", "Attention", "AveragePool", "BatchNormalization", "CausalConvWithState", "CenterCropPad", "Conv",
    "ConvTranspose", "DFT", "DeformConv", "Det", "DynamicQuantizeLinear", "Einsum", "FlexAttention", "GRU", "Gemm",
    "GlobalAveragePool", "GlobalLpPool", "GridSample", "GroupNormalization", "InstanceNormalization", "LRN", "LSTM",
    "LayerNormalization", "LinearAttention", "LpNormalization", "LpPool", "MatMul", "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "DequantizeLinear",
    "RMSNormalization", "RNN", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Resize", "RoiAlign", "RotaryEmbedding", "STFT", "SoftmaxCrossEntropyLoss", "Upsample",
    "Adam", "Adagrad", "Momentum", "Mean", "Sum", "CumSum", "CumProd", "Swish", "Mish",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TypeCase:
    """One node with inputs of one element type."""

    op: str
    dtype: str
    test: str
    values: str
    model: onnx.ModelProto
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One case.

    `status`: `ok`, `reference` (agrees with the reference evaluator, not with ONNX Runtime), `named`, `wrong`,
    `refused` (by a typed error), `crash`, or `not-run` (neither ONNX Runtime nor, without it, the reference runs it).
    """

    op: str
    dtype: str
    test: str
    values: str
    status: str
    reason: str = ""


# ---- cases


def typed_cases(parts: Sequence[str] = ()) -> Iterator[TypeCase]:
    """All cases, or those whose `operator-type` contains one of `parts`."""
    for number, (op, dtype, model, inputs) in enumerate(contrib_cases()):
        if _is_wanted(f"com.microsoft.{op}", dtype, parts):
            yield TypeCase(f"com.microsoft.{op}", dtype, f"contrib_{number}", "test", model, inputs)
    taken: Counter[str] = Counter()
    for test in node_cases():
        model = test.model
        if len(model.graph.node) != 1 or model.functions:
            continue
        node = model.graph.node[0]
        opset = next(o.version for o in model.opset_import if o.domain == node.domain)
        newest = next((o.version for o in model.opset_import if o.domain == ""), 0)
        if node.op_type in RANDOM_OPS or node.op_type == "Dropout" or newest > NEWEST_OPSET:
            continue
        if taken[node.op_type] >= TESTS_PER_OP:
            continue
        taken[node.op_type] += 1
        given = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in test.data_sets[0][0]]
        inputs = dict(zip([v.name for v in model.graph.input], given, strict=False))
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        kinds = ("test", "extreme") if taken[node.op_type] == 1 else ("test",)
        yield from _typed(test.name, model, schema, inputs, kinds, parts)


def _is_wanted(op: str, dtype: str, parts: Sequence[str]) -> bool:
    return not parts or any(p in f"{op}-{dtype}" for p in parts)


def _typed(
    name: str, model: onnx.ModelProto, schema: Any, inputs: dict[str, Any], kinds: Sequence[str], parts: Sequence[str]
) -> Iterator[TypeCase]:
    node = model.graph.node[0]
    allowed = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    formals = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(node.input))]
    variables = dict.fromkeys(f.type_str for f in formals if f.type_str in allowed)
    if not variables or subgraphs(node):  # bodies state the types of what they are given
        if _is_wanted(node.op_type, "-", parts):
            yield TypeCase(node.op_type, "-", name, "test", model, inputs)
        return
    casts = node.op_type in ("Cast", "CastLike")
    for variable in variables:
        indices = not any("float" in text for text in allowed[variable])
        names = [n for n, f in zip(node.input, formals, strict=True) if f.type_str == variable and n]
        if not all(isinstance(inputs.get(n), np.ndarray) for n in names):
            continue
        for text in sorted(allowed[variable]):
            dtype = _dtype(text)
            if dtype is None or not _is_wanted(node.op_type, dtype.name, parts):
                continue
            outputs = _output_names(node, schema, variable)
            for values in kinds:
                if values == "extreme" and (casts or indices):
                    continue  # outside of their range indices may be read, and casts are not defined
                changed = _with_values(inputs, names, dtype, values, node.op_type in SUMS)
                if changed is not None:
                    if casts:
                        changed |= {n: np.resize(IN_RANGE, a.shape).astype(a.dtype) for n, a in _floats(changed)}
                    typed = _with_type(model, (*names, *outputs), dtype)
                    yield TypeCase(node.op_type, dtype.name, name, values, typed, changed)


def _dtype(text: str) -> np.dtype | None:
    """The dtype of a type such as `tensor(float16)`; None for strings, complex numbers, sequences."""
    if not text.startswith("tensor("):
        return None
    kind = text[len("tensor(") : -1].upper()
    if not hasattr(TensorProto, kind):
        return None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind)))
    return None if dtype.kind in "OUSTc" else dtype


def _output_names(node: onnx.NodeProto, schema: Any, variable: str) -> list[str]:
    names: list[str] = []
    for i, name in enumerate(node.output):
        if schema.outputs[min(i, len(schema.outputs) - 1)].type_str == variable and name:
            names.append(name)
    return names


def _with_type(model: onnx.ModelProto, names: Sequence[str], dtype: np.dtype) -> onnx.ModelProto:
    new = onnx.ModelProto()
    new.CopyFrom(model)
    for value in (*new.graph.input, *new.graph.output):
        if value.name in names and value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    return new


def _floats(inputs: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    return [(n, a) for n, a in inputs.items() if isinstance(a, np.ndarray) and is_float(a.dtype)]


def _with_values(
    inputs: dict[str, Any], names: Sequence[str], dtype: np.dtype, kind: str, finite: bool
) -> dict[str, Any] | None:
    changed = dict(inputs)
    for offset, name in enumerate(names):
        array = inputs[name]
        if kind == "test":
            changed[name] = cast_values(array, dtype)
            continue
        if array.size < 2:
            return None
        extremes = _extremes(dtype)
        if finite and is_float(dtype):
            extremes = extremes[np.abs(extremes.astype(np.float64)) < 100]
        extremes = np.roll(extremes, 2 * offset)
        changed[name] = np.resize(extremes, array.shape)
    return changed


def cast_values(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values of a test as another type: fractions spread over small integers, signs dropped where there are none."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "OUST":
        return np.ones(array.shape, dtype)
    wide = array.astype(np.float64)
    if dtype == np.bool_:
        return wide > 0
    if is_float(dtype):
        return wide.astype(dtype)
    if is_float(array.dtype) and not (wide == np.round(wide)).all():
        wide = np.round(wide * 3)
    low, high = int_range(dtype)
    wide = np.abs(wide) if low == 0 else wide
    return np.clip(np.nan_to_num(wide), max(low, -(2**31)), min(high, 2**31)).astype(np.int64).astype(dtype)


def _extremes(dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return np.array([True, False, False])
    if is_float(dtype):
        info = ml_dtypes.finfo(dtype)
        top, tiny = float(info.max), float(info.smallest_normal)
        return np.array(
            [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, top, -top, tiny, 0.5, -0.5, 3.0], np.float64
        ).astype(dtype)
    low, high = int_range(dtype)
    middle = [low, low + 1, high, high - 1, 0, 1, 2, 3, high // 2, high // 2 + 1]
    signed = [-1, -2, -3] if low < 0 else []
    return np.array([*middle, *signed], np.int64 if low < 0 else np.uint64).astype(dtype)


# ---- the three evaluations

_FEEDS = (
    "float32",
    "float64",
    "float16",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)


def runtime(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Outputs of ONNX Runtime without graph optimisation; types that it accepts no arrays of are cast on the way."""
    import onnxruntime  # late: an optional peer  # pyright: ignore[reportMissingImports]

    wrapped, feeds, kinds = _wrapped(model, inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(wrapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, feeds)
    return [o if k is None else np.asarray(o).astype(k) for o, k in zip(outputs, kinds, strict=True)]


def _wrapped(model: onnx.ModelProto, inputs: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any], list[Any]]:
    new = onnx.ModelProto()
    new.CopyFrom(model)
    new.ir_version = min(new.ir_version, 11)
    graph, feeds = new.graph, dict[str, Any]()
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for value in graph.input:
        given = inputs.get(value.name)
        if isinstance(given, np.ndarray) and given.dtype.kind not in "OUSTc" and given.dtype.name not in _FEEDS:
            carrier = np.float32 if is_float(given.dtype) else np.int8
            carrier = np.uint8 if given.dtype.name.startswith("uint") else carrier
            before.append(
                helper.make_node("Cast", [f"{value.name}__in"], [value.name], to=value.type.tensor_type.elem_type)
            )
            value.name = f"{value.name}__in"
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(carrier))
            given = given.astype(carrier)
        if given is not None:
            feeds[value.name] = given
    kinds: list[Any] = []
    for value in graph.output:
        kind = value.type.tensor_type.elem_type if value.type.WhichOneof("value") == "tensor_type" else 0
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None
        if dtype is None or dtype.kind in "OUSTc" or dtype.name in _FEEDS:
            kinds.append(None)
            continue
        carrier = np.float32 if is_float(dtype) else np.uint8 if dtype.name.startswith("uint") else np.int8
        to = helper.np_dtype_to_tensor_dtype(np.dtype(carrier))
        after.append(helper.make_node("Cast", [value.name], [f"{value.name}__out"], to=to))
        value.name = f"{value.name}__out"
        value.type.tensor_type.elem_type = to
        kinds.append(dtype)
    if before or after:
        nodes = [*before, *graph.node, *after]
        del graph.node[:]
        graph.node.extend(nodes)
        if not any(o.domain == "" for o in new.opset_import):
            new.opset_import.append(helper.make_opsetid("", 21))
    return new, feeds, kinds


def reference(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Outputs of ONNX's reference evaluator."""
    return list(ReferenceEvaluator(model).run(None, inputs))


def difference(got: Any, wanted: Any) -> str:
    """The difference of an output beyond rounding, in words; empty when there is none."""
    if isinstance(wanted, list) or got is None or wanted is None:
        if got is None or wanted is None or not isinstance(got, list | tuple) or len(got) != len(wanted):
            return "" if got is wanted else "presence"
        return next((d for g, w in zip(got, wanted, strict=True) if (d := difference(g, w))), "")
    a, b = np.asarray(got), np.asarray(wanted)
    if a.dtype != b.dtype and not {a.dtype.kind, b.dtype.kind} <= set("OUST"):
        return f"{a.dtype} for {b.dtype}"
    if a.shape != b.shape:
        return f"shape {list(a.shape)} for {list(b.shape)}"
    same = _same(a, b)
    if same.all():
        return ""
    at = np.unravel_index(int(np.argmin(same)), same.shape)
    return f"{a[at]} for {b[at]} ({int((~same).sum())} of {same.size})"


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays of one type agree but for rounding."""
    if not is_float(a.dtype):
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(y[np.isfinite(y)])
        scale = np.maximum(np.abs(y), 0.05 * (float(finite.max()) if finite.size and finite.max() < 1e30 else 0.0))
        near = np.abs(x - y) <= TOLERANCE.get(a.dtype.name, 1e-6) * scale
        return near | (x == y) | (np.isnan(x) & np.isnan(y))


def _differences(got: Sequence[Any], wanted: Sequence[Any]) -> str:
    if len(got) < len(wanted):
        return f"{len(got)} outputs for {len(wanted)}"
    return next((d for g, w in zip(got, wanted, strict=False) if (d := difference(g, w))), "")


def check(case: TypeCase, with_runtime: bool) -> TypeRow:
    """Run one case."""

    def row(status: str, reason: str = "") -> TypeRow:
        return TypeRow(case.op, case.dtype, case.test, case.values, status, reason)

    peers: dict[str, Any] = {}
    for name, run_peer in (("runtime", runtime), ("reference", reference)):
        if name == "runtime" and not with_runtime:
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                peers[name] = run_peer(case.model, case.inputs)
        except Exception as error:  # a peer may raise anything: it does not run this case
            peers[name] = error
    first = peers.get("runtime", peers["reference"])
    if isinstance(first, Exception):
        return row("not-run", (str(first).strip().splitlines() or [""])[0][:160])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, got, _ = run_model(case.model, case.inputs)
    except SuperoptError as error:
        return row("refused", str(error).splitlines()[0])
    except Exception as error:  # anything but a typed error is a crash of ours
        return row("crash", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
    differences = _differences(got, first)
    if not differences:
        return row("ok")
    if with_runtime and not isinstance(peers["reference"], Exception) and not _differences(got, peers["reference"]):
        return row("reference", differences)
    reason = named(case, got, first)
    if reason:
        return row("named", reason)
    told = peers["reference"] if isinstance(peers["reference"], Exception) else _differences(got, peers["reference"])
    return row("wrong", f"{differences}; reference: {str(told)[:120]}" if with_runtime else differences)


# ---- differences that are none

Elements = Callable[[TypeCase, np.ndarray, np.ndarray], np.ndarray]


def named(case: TypeCase, got: Sequence[Any], wanted: Sequence[Any]) -> str:
    """The reason why no element that differs counts; empty where one does."""
    reason, none = NAMED.get(case.op, _FLUSHED)
    for g, w in zip(got, wanted, strict=False):
        if isinstance(g, list) or isinstance(w, list):  # a sequence is as a whole right or not
            if difference(g, w):
                return ""
            continue
        a, b = np.asarray(g), np.asarray(w)
        if a.dtype != b.dtype or a.shape != b.shape or not (_same(a, b) | none(case, a, b)).all():
            return ""
    return reason


def _one_unit(_: TypeCase, got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.abs(got.astype(np.int64) - wanted.astype(np.int64)) <= 1


def _windows_with_nan(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    ((name, x),) = case.inputs.items()
    if not is_float(x.dtype):
        return np.zeros(got.shape, bool)
    results = run_model(case.model, {name: np.isnan(x.astype(np.float64)).astype(x.dtype)})[1]
    return np.asarray(np.asarray(results[0]) > 0)


def _powers_out_of_range(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    if is_float(got.dtype):
        return np.zeros(got.shape, bool)
    low, high = int_range(got.dtype)
    pairs = zip(*(x.ravel() for x in np.broadcast_arrays(*case.inputs.values())), strict=True)
    inside = [low <= _power(int(base), exponent.item()) <= high for base, exponent in pairs]
    return ~np.array(inside, bool).reshape(got.shape)


def _power(base: int, exponent: float) -> float:
    """A power of an integer, exact below 64 bits; NaN or infinite where it is not defined."""
    if not math.isfinite(exponent) or exponent != int(exponent):
        with np.errstate(all="ignore"):
            return float(np.power(np.float64(base), np.float64(exponent)))
    if abs(base) < 2:
        return math.nan if base == 0 and exponent < 0 else base if exponent % 2 else base * base if exponent else 1
    return base ** int(exponent) if 0 <= exponent < 64 else 0 if exponent < 0 else math.inf


def _exact_means(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    if is_float(got.dtype):
        return np.zeros(got.shape, bool)
    totals, count = _totals(case, 1)
    exact = [abs(t) // count * (1 if t > 0 else -1) for t in totals]
    return np.array([g == e for g, e in zip(got.ravel().tolist(), exact, strict=True)], bool).reshape(got.shape)


def _squares_out_of_range(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    if is_float(got.dtype):
        return np.zeros(got.shape, bool)
    return np.array([t > int_range(got.dtype)[1] for t in _totals(case, 2)[0]], bool).reshape(got.shape)


def _totals(case: TypeCase, power: int) -> tuple[list[int], int]:
    """The exact sums of powers of the integers that a reduction combines, and the number of these integers."""
    x, *more = case.inputs.values()
    attrs = {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}
    axes = tuple(int(a) for a in (more[0] if more else attrs.get("axes", ()))) or tuple(range(x.ndim))
    totals = np.asarray((x.astype(object) ** power).sum(axis=axes))
    return list(totals.ravel()), math.prod(x.shape[a] for a in axes)


def _float32_constants(_: TypeCase, got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.isclose(got, wanted, rtol=1e-7, atol=1e-7) & (got.dtype == np.float64)


def _flushed(_: TypeCase, got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    if not is_float(got.dtype):
        return np.zeros(got.shape, bool)
    least = float(ml_dtypes.finfo(got.dtype).smallest_normal)
    return (got == 0) & (np.abs(wanted.astype(np.float64)) < least)


def _as_float32(_: TypeCase, got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.isclose(got, wanted, rtol=1e-6, atol=1e-7) & (got.dtype == np.float64)


def _unchanged(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    attrs = {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}
    (x,) = case.inputs.values()
    same = (got == x) & (not attrs.get("bias", 0)) & (not is_float(got.dtype))
    return np.asarray(same, bool)


def _rounded_once(case: TypeCase, got: np.ndarray, _: np.ndarray) -> np.ndarray:
    names = [n for n, x in case.inputs.items() if x.dtype == got.dtype]
    model = _with_type(case.model, (*names, *[v.name for v in case.model.graph.output]), np.dtype(np.float64))
    (exact,) = run_model(model, {n: x.astype(np.float64) if n in names else x for n, x in case.inputs.items()})[1]
    return got == np.asarray(exact).astype(got.dtype)


_FLUSHED = ("a number below the least normal one, which compiled code takes for 0", _flushed)
_HALVES = ("real values halfway between two integers, rounded one unit apart", _one_unit)
# by operator: why a difference is no fault, and at which elements; docs/onnx.md has the same list
NAMED: dict[str, tuple[str, Elements]] = {
    "AffineGrid": ("the result rounded once, where ONNX Runtime rounds at each node of the definition", _rounded_once),
    "com.microsoft.QLinearAveragePool": _HALVES,
    "com.microsoft.QLinearMul": _HALVES,
    "MaxPool": ("a window that holds NaN, which the peers skip or not by its place", _windows_with_nan),
    "Pow": ("a power beyond the range of the integers, or 0 to a negative power", _powers_out_of_range),
    "ReduceMean": ("the exact mean of integers, which both peers compute in float64", _exact_means),
    "Shrink": ("the integer itself, which both peers cast to a float and back, out of its range", _unchanged),
    "ReduceSumSquare": ("a sum of squares beyond the range of the integers", _squares_out_of_range),
    "GroupNormalization": ("doubles whose means are taken in float32, as the definition says", _as_float32),
    "Gelu": ("the constants of the tanh form, which both peers have in float32 only", _float32_constants),
}


# ---- the suite


def run(
    *, budget: str = "", cases: Sequence[str] = (), seed: int = 0, say: Callable[[str], None] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Run every case whose `operator-type` contains one of `cases` (all when there are none).

    `budget` and `seed` are arguments of all suites; nothing here depends on them.
    """
    start = time.perf_counter()
    with_runtime = importlib.util.find_spec("onnxruntime") is not None
    rows: list[TypeRow] = []
    for case in typed_cases(cases):
        rows.append(check(case, with_runtime))
        if say is not None and len(rows) % 500 == 0:
            say(f"{len(rows)} operators with a type")
    return _told(rows, with_runtime, time.perf_counter() - start)


def _told(
    rows: Sequence[TypeRow], with_runtime: bool, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    ran = [r for r in rows if r.status != "not-run"]
    pairs = {(r.op, r.dtype) for r in ran}
    worst = ("crash", "wrong", "refused", "named", "reference", "ok")
    by_pair = {p: next(s for s in worst if any(r.status == s for r in ran if (r.op, r.dtype) == p)) for p in pairs}
    count = Counter(by_pair.values())
    version = ""
    if with_runtime:
        import onnxruntime  # late: see `runtime`  # pyright: ignore[reportMissingImports]

        version = onnxruntime.__version__
    summary = {
        "onnxruntime": version or None,
        "cases": len(ran),
        "not_run": len(rows) - len(ran),
        "pairs": len(pairs),
        **{f"pairs_{s}": count[s] for s in reversed(worst)},
        "wrong": sum(r.status in ("wrong", "crash") for r in ran),
        "refused": sum(r.status == "refused" for r in ran),
        "seconds": round(seconds, 1),
    }
    lines = [
        f"{r.status:10} {r.op:28} {r.dtype:14} {r.values:8} {r.test:50} {r.reason}"
        for r in ran
        if r.status not in ("ok", "named", "reference")
    ]
    lines.append(
        f"{summary['cases']} cases of {summary['pairs']} operators with a type: {summary['wrong']} wrong, "
        f"{summary['refused']} refused, in {summary['seconds']} s"
    )
    against = (
        f"against ONNX Runtime {version}" if version else "onnxruntime is not installed: the reference evaluator alone"
    )
    lines.append(against)
    return [asdict(r) for r in rows], summary, "\n".join(lines)
