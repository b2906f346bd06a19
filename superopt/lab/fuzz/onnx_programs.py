"""Random ONNX models: node after node, each evaluated by the reference evaluator as it is drawn.

Every model has a value, since three kinds of nodes are drawn again.  The standard does not define them (types that an
operator does not take, integers divided by zero), the reference refuses them, or they have no finite small value.  A
node is kept as a line of code (`op(inputs) attributes`), so that models are reduced and printed as JAX programs are.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

from superopt.frontends.onnx.frontend import load_model
from superopt.lab.fuzz.case import FuzzCase, FuzzValue

OPSET = 20
_UNARY = (
    "Relu Tanh Sigmoid Neg Abs Exp Erf Softplus Softsign Sqrt Floor Ceil Round Sign Identity Not "
    "BitwiseNot Gelu Mish Elu Selu HardSwish Reciprocal"
)
_BINARY = "Add Sub Mul Div Max Min Pow Mod Equal Less Greater And Or Xor BitwiseAnd BitwiseOr MatMul PRelu"
_SHAPED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Transpose", {}),
    ("Flatten", {"axis": 1}),
    ("Softmax", {"axis": -1}),
    ("LogSoftmax", {"axis": 0}),
    ("ReduceSum", {"keepdims": 0}),
    ("ReduceMean", {}),
    ("ReduceMax", {"keepdims": 0}),
    ("ReduceMin", {}),
    ("ReduceL2", {}),
    ("ReduceLogSumExp", {}),
    ("ReduceProd", {}),
    ("ReduceSumSquare", {}),
    ("ArgMax", {"axis": 0}),
    ("ArgMin", {"axis": -1, "keepdims": 0}),
    ("Concat", {"axis": 0}),
    ("LeakyRelu", {"alpha": 0.25}),
    ("Shape", {}),
    ("GlobalAveragePool", {}),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [1, 1]}),
    ("Shrink", {"bias": 0.5, "lambd": 0.5}),
    ("AveragePool", {"kernel_shape": [2, 2], "pads": [0, 1, 1, 0], "count_include_pad": 1}),
    ("DepthToSpace", {"blocksize": 2}),
    ("LRN", {"size": 3}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Trilu", {"upper": 0}),
    ("Celu", {"alpha": 1.5}),
    ("Gemm", {"alpha": 0.5, "transB": 1}),
    ("Cast", {"to": 1}),
    ("Cast", {"to": 6}),
    ("Cast", {"to": 10}),
    ("Size", {}),
    ("LpNormalization", {"axis": -1}),
    ("Hardmax", {"axis": -1}),
    ("HardSigmoid", {}),
    ("InstanceNormalization", {}),
    ("IsNaN", {}),
)
_HALF_SHAPED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("GlobalLpPool", {}),
    ("LpPool", {"kernel_shape": [2, 2]}),
    ("ReduceL1", {}),
    ("ReduceLogSum", {}),
    ("MeanVarianceNormalization", {"axes": [0]}),
    ("Sum", {}),
    ("Mean", {}),
)
"""Operators that sum many numbers, for which half precision is too coarse to compare."""
_FAMILIES = {"plain": 60, "half": 20, "quantised": 20}
_FAR = (0.02, 0.05, 0.1, 0.25, 1.0)  # scales
_LOOSE = ("ArgMax", "ArgMin", "Floor", "Ceil", "Round", "Sign", "Equal", "Less", "Greater", "Cast", "Mod", "Hardmax")
_MOST = 4096
_SUMS = ("ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sum", "Mean")
_OUTPUT = "output"  # attribute that selects the output of a node with several, of which a line is one


def program(seed: int) -> FuzzCase:
    """The model of a number."""
    rng = random.Random(f"onnx {seed}")
    family = rng.choices(tuple(_FAMILIES), tuple(_FAMILIES.values()))[0]
    kinds = ("float32", "float32", "float32", "float16", "int32", "int64", "int8", "uint8", "bool")
    kinds = {"half": ("float16",), "quantised": ("float32", "float32", "int8", "uint8")}.get(family, kinds)
    inputs: list[FuzzValue] = []
    for i in range(rng.randint(1, 3)):
        shape = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.choice((1, 2, 2, 3, 4))))
        inputs.append(FuzzValue(f"x{i}", shape, rng.choice(kinds)))
    case = FuzzCase(seed, tuple(inputs), (), (), (), "deterministic", "onnx")
    known = dict(zip((x.name for x in inputs), case.arrays(), strict=True))
    lines: list[FuzzValue] = []
    for _ in range(rng.randint(2, 9)):
        values = [*inputs, *lines]
        if family == "quantised" and rng.random() < 0.6:
            lines += _quantised(rng, values, known, len(lines))
            continue
        made = _line(rng, values, known, len(lines), _SHAPED if family == "plain" else (*_SHAPED, *_HALF_SHAPED))
        if made is not None:
            lines.append(made)
    names = [x.name for x in lines[-3:]] or [inputs[0].name]
    if not lines:
        lines = [FuzzValue("v0", inputs[0].shape, inputs[0].dtype, f"Identity({inputs[0].name}) {{}}")]
        names = ["v0"]
    outputs = tuple(dict.fromkeys([lines[-1].name, *(rng.choice(names) for _ in range(rng.choice((0, 0, 1))))]))
    mode = rng.choices(("deterministic", "save", "recall", "kernels"), (60, 15, 10, 15))[0]
    return FuzzCase(seed, tuple(inputs), tuple(lines), outputs, (), mode, "onnx")


def _line(
    rng: random.Random,
    values: Sequence[FuzzValue],
    known: dict[str, np.ndarray],
    number: int,
    shaped: Sequence[tuple[str, dict[str, Any]]] = _SHAPED,
) -> FuzzValue | None:
    for _ in range(25):
        a = rng.choice(values[-4:])
        same = [x for x in values if x.dtype == a.dtype]
        b = rng.choice(same)
        kind = rng.random()
        if kind < 0.3:
            op, args, attrs = rng.choice(_UNARY.split()), [a.name], {}
        elif kind < 0.55:
            op, args, attrs = rng.choice(_BINARY.split()), [a.name, b.name], {}
        else:
            op, given = rng.choice(shaped)
            attrs = dict(given)
            args = [a.name, b.name] if op in ("Concat", "Gemm", "Sum", "Mean") else [a.name]
            if op == "Concat":
                attrs["axis"] = rng.randrange(max(len(a.shape), 1))
            if op == "Mod" and a.dtype.startswith("float"):
                attrs["fmod"] = 1
        code = f"{op}({', '.join(args)}) {json.dumps(attrs)}"
        if not _is_defined(op, [known[n] for n in args]):
            continue
        try:
            with np.errstate(all="ignore"):
                (found,) = _evaluated(code, known)
        except Exception:  # the reference refuses it
            continue
        found = np.asarray(found)
        good = found.dtype.kind in "biu" or (found.dtype.kind == "f" and bool(np.isfinite(found).all()))
        if (
            found.dtype.kind not in "biuf"
            or not good
            or found.size > _MOST
            or np.abs(found.astype(float)).max(initial=0) > 1e6
        ):
            continue
        name = f"v{number}"
        known[name] = found
        read = [x for x in values if x.name in args]
        loose = any(x.loose for x in read) or (op in _LOOSE and any(x.dtype.startswith("float") for x in read))
        return FuzzValue(name, found.shape, str(found.dtype), code, loose)
    return None


def _quantised(
    rng: random.Random, values: Sequence[FuzzValue], known: dict[str, np.ndarray], number: int
) -> list[FuzzValue]:
    """Lines that quantise a value, compute on it as quantised models do, and convert it to floats again."""
    floats = [x for x in values if x.dtype == "float32" and x.shape]
    if not floats:
        return []
    made: list[FuzzValue] = []

    def add(op: str, args: Sequence[str], attrs: dict[str, Any], loose: bool = False) -> str:
        code = f"{op}({', '.join(args)}) {json.dumps(attrs)}"
        with np.errstate(all="ignore", invalid="raise"):  # the reference makes int32 of what it quantises, of any size
            found = np.asarray(_evaluated(code, known)[attrs.get(_OUTPUT, 0)])
        if found.size > _MOST or not np.isfinite(found.astype(float)).all():
            raise ValueError("not a small finite value")
        name = f"v{number + len(made)}"
        known[name] = found
        made.append(FuzzValue(name, found.shape, str(found.dtype), code, loose))
        return name

    def grid(kind: int) -> tuple[str, str]:
        scale = add("Constant", [], {"value_float": rng.choice(_FAR)})
        # even ones: ONNX's reference adds a zero point before it rounds, so that halves go the other way with odd ones
        zero = add("Constant", [], {"value_int": rng.choice((0, 0, 4) if kind == onnx.TensorProto.INT8 else (0, 128))})
        return scale, add("Cast", [zero], {"to": kind})

    kind = rng.choice((onnx.TensorProto.INT8, onnx.TensorProto.UINT8))
    a, form = rng.choice(floats), rng.choice(("qdq", "qoperator", "integer", "dynamic"))
    loose = a.loose or not a.name.startswith("x")  # computed values may differ in the last bit
    try:
        if form == "dynamic":
            q, s, z = (add("DynamicQuantizeLinear", [a.name], {_OUTPUT: i}, loose) for i in range(3))
        else:
            s, z = grid(kind)
            q = add("QuantizeLinear", [a.name, s, z], {}, loose)
        shape = known[q].shape
        if form == "qdq" or len(shape) < 2:
            add("DequantizeLinear", [q, s, z], {}, loose)
            return made
        turned = add("Transpose", [q], {"perm": [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]}, loose)
        if form == "qoperator":
            result = grid(kind)
            product = add("QLinearMatMul", [q, s, z, turned, s, z, *result], {}, True)
            add("DequantizeLinear", [product, *result], {}, True)
        else:
            product = add("MatMulInteger", [q, turned, z, z], {}, loose)
            wide = add("Cast", [product], {"to": onnx.TensorProto.FLOAT}, loose)
            add("Mul", [wide, add("Mul", [s, s], {}, loose)], {}, loose)
    except Exception:  # the reference refuses it
        for x in made:
            known.pop(x.name, None)
        return []
    return made


def _is_defined(op: str, operands: Sequence[np.ndarray]) -> bool:
    """Whether the standard defines the operator's result for such operands, and the reference computes it."""
    if op in ("Div", "Mod") and operands[1].dtype.kind in "iu":  # other inputs may hold zeros
        return False
    if op in _SUMS and operands[0].dtype.kind in "iu":
        return False  # for sums that overflow, and for the type of int32's squares, the runtimes differ
    if op == "Shrink" and operands[0].dtype.kind in "iu":
        return False  # ONNX Runtime makes an integer of a float32 beyond the integers
    if op == "Pow" and operands[0].dtype.kind in "iu":
        return False  # of powers beyond the type, too
    if op == "Gemm" and any(x.ndim != 2 for x in operands):
        return False
    if op == "LRN" and operands[0].ndim > 1 and operands[0].shape[0] < operands[0].shape[1]:
        return False  # the reference leaves channels out whose number no example of the batch has
    schema = defs.get_schema(op, OPSET)
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, str] = {}
    for i, x in enumerate(operands):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        kind = helper.tensor_dtype_to_string(helper.np_dtype_to_tensor_dtype(x.dtype))
        kind = f"tensor({kind.removeprefix('TensorProto.').lower()})"
        if kind not in allowed.get(formal.type_str, {formal.type_str}):
            return False
        if formal.is_homogeneous and bound.setdefault(formal.type_str, kind) != kind:
            return False
    return True


def _node(code: str, output: str) -> Any:
    head, _, text = code.partition(") ")
    op, _, args = head.partition("(")
    attrs = json.loads(text)
    at = attrs.pop(_OUTPUT, None)
    count = defs.get_schema(op, OPSET).min_output if at is not None else 1
    names = [output if i == (at or 0) else f"{output}_{i}" for i in range(count)]
    return helper.make_node(op, [x for x in args.split(", ") if x], names, **attrs)


def _evaluated(code: str, known: dict[str, np.ndarray]) -> list[Any]:
    node = _node(code, "out")
    names = list(dict.fromkeys(node.input))
    outs = [_unknown(name) for name in node.output]
    graph = helper.make_graph([node], "g", [_info(n, known[n].dtype, known[n].shape) for n in names], outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    found: Any = ReferenceEvaluator(model).run(None, {n: known[n] for n in names})
    return list(found)


def _info(name: str, dtype: Any, shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


def _unknown(name: str) -> Any:
    return helper.make_empty_tensor_value_info(name)


def model_of(case: FuzzCase) -> Any:
    """The model of a program."""
    types = {x.name: x for x in (*case.inputs, *case.lines)}
    nodes = [
        helper.make_node(
            "Constant", [], [x.name], value=helper.make_tensor("c", 1, x.shape, [1.0] * int(np.prod(x.shape)))
        )
        if x.code.startswith("jnp.ones")
        else _node(f"Identity({x.code}) {{}}" if "(" not in x.code else x.code, x.name)
        for x in case.lines
    ]
    takes, gives = [
        [_info(n, types[n].dtype, types[n].shape) for n in names]
        for names in ([x.name for x in case.inputs], case.outputs)
    ]
    graph = helper.make_graph(nodes, "fuzz", takes, gives)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def original(case: FuzzCase) -> tuple[Any, Callable[..., list[np.ndarray]]]:
    """The model for the optimiser, and a function that runs it, by ONNX Runtime where that accepts it."""
    proto = model_of(case)
    names = [x.name for x in case.inputs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(proto, path)
        model = load_model(path)
    run = _runtime(proto) or ReferenceEvaluator(proto).run
    return model, lambda *args: [np.asarray(x) for x in run(None, dict(zip(names, args, strict=True)))]


def widened(case: FuzzCase) -> Callable[..., list[np.ndarray]] | None:
    """The program with float32 in place of float16, run by the reference; None where it names types or has no half."""
    values = (*case.inputs, *case.lines)
    if all(x.dtype != "float16" for x in values) or any('"to"' in x.code or "Quantize" in x.code for x in case.lines):
        return None
    inputs, lines = (tuple([_wide(x) for x in some]) for some in (case.inputs, case.lines))
    run = ReferenceEvaluator(model_of(replace(case, inputs=inputs, lines=lines))).run
    types = {x.name: x.dtype for x in inputs}
    return lambda *args: [
        np.asarray(x)
        for x in run(None, {name: np.asarray(a, types[name]) for name, a in zip(types, args, strict=True)})
    ]


def _wide(x: FuzzValue) -> FuzzValue:
    return replace(x, dtype="float32") if x.dtype == "float16" else x


def _runtime(proto: Any) -> Callable[..., Any] | None:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]  # where it is installed
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    # as in the model: a runtime may drop one of two pairs of quantisation, which changes the values
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run
    except Exception:  # it has no such operator
        return None
