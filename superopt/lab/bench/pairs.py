"""Pairs of ONNX models: small ones as optimisers rewrite them, outputs of installed optimisers, and seeded faults.

`pair` is a model and what an optimiser makes of it: batch norm folded into kernels in float32, transposed weights
stored, scales folded, products in place of `Gemm`, operators without effect dropped.  `faulty` is the same with one
fault in the second model.  onnxsim and onnxslim rewrite the models as well where they are installed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from superopt.compare.models import compare_models
from verifier.verdict import PROVED, REFUTED

OPTIMISERS = ("onnxsim", "onnxslim")
Pair = tuple[onnx.ModelProto, onnx.ModelProto]


class _Builder:
    """Nodes and stored tensors of one model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {}

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def keep(self, name: str, array: Any) -> str:
        self.stored[name] = np.asarray(array, getattr(array, "dtype", np.float32))
        return name

    def normal(self, name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def model(self, inputs: dict[str, tuple[int, ...]], output: str) -> onnx.ModelProto:
        made = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in self.stored.items()],
        )  # fmt: skip
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _convnet(seed: int, rewritten: bool) -> onnx.ModelProto:
    """Two convolutions with batch norm and a residual, pooling, a classifier."""
    b = _Builder(seed)
    x = "x"
    sources: list[str] = []
    for i, (to, of) in enumerate(((8, 3), (8, 8))):
        w = b.normal("w", to, of, 3, 3, scale=(2 / (9 * of)) ** 0.5)
        scale, shift, mean = (b.normal("n", to, scale=0.1) + (k == 0) for k in range(3))
        var = b.rng.uniform(0.7, 1.3, to).astype(np.float32)
        attributes = {"pads": [1, 1, 1, 1], "strides": [2 - i, 2 - i]}
        if rewritten:
            factor = scale / np.sqrt(var + np.float32(1e-3))
            kernel = b.keep(f"w{i}", w * factor[:, None, None, None])
            y = b("Conv", x, kernel, b.keep(f"b{i}", shift - mean * factor), **attributes)
        else:
            y = b("Conv", x, b.keep(f"w{i}", w), **attributes)
            names = [b.keep(f"{k}{i}", v) for k, v in zip("smbv", (scale, shift, mean, var), strict=True)]
            y = b("BatchNormalization", y, *names, epsilon=1e-3)
        x = b("Relu", y if i == 0 else b("Sub", y, sources[0]))
        sources.append(x)
    x = b("Flatten", b("GlobalAveragePool", x if rewritten else b("Identity", x)))
    w, shift = b.normal("w", 5, 8), b.normal("c", 5)
    if rewritten:
        x = b("Add", b("MatMul", x, b.keep("w", np.ascontiguousarray(w.T))), b.keep("c", shift))
    else:
        x = b("Gemm", x, b.keep("w", w), b.keep("c", shift), transB=1)
    return b.model({"x": (1, 3, 10, 10)}, b("Softmax", x, axis=1))


def _attention(seed: int, rewritten: bool) -> onnx.ModelProto:
    """A layer norm and attention of two heads, as exporters write them."""
    b = _Builder(seed)
    n, d, heads = 5, 8, 2
    scale, shift = b.normal("s", d, scale=0.1) + np.float32(1), b.normal("t", d, scale=0.1)
    weights = [b.normal("w", d, d, scale=d**-0.5) for _ in range(4)]
    centred = b("Sub", "x", b("ReduceMean", "x", axes=[-1]))
    variance = b("ReduceMean", b("Mul", centred, centred), axes=[-1])
    root = b("Sqrt", b("Add", variance, b.keep("eps", np.asarray(1e-2, np.float32))))
    x = b("Add", b("Mul", b("Div", centred, root), b.keep("s", scale)), b.keep("t", shift))
    split, joined = b.keep("split", np.asarray([1, n, heads, d // heads])), b.keep("joined", np.asarray([1, n, d]))
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    parts: list[str] = []
    for i, order in enumerate(orders):
        if rewritten:
            y = b("MatMul", x, b.keep(f"w{i}", np.ascontiguousarray(weights[i].T)))
        else:
            y = b("MatMul", x, b("Transpose", b.keep(f"w{i}", weights[i]), perm=[1, 0]))
        parts.append(b("Transpose", b("Reshape", y, split), perm=order))
    scores = b("Div", b("MatMul", parts[0], parts[1]), b.keep("root", np.asarray(math.sqrt(d // heads), np.float32)))
    y = b("MatMul", b("Softmax", scores, axis=-1), parts[2])
    y = b("MatMul", b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), joined), b.keep("w3", weights[3]))
    y = y if rewritten else b("Identity", y)
    return b.model({"x": (1, n, d)}, b("Sub", y, "x"))


_BUILD: dict[str, Callable[[int, bool], onnx.ModelProto]] = {"convnet": _convnet, "attention": _attention}
MODELS = tuple(_BUILD)


def pair(name: str, seed: int) -> Pair:
    """A model and what an optimiser makes of it."""
    return _BUILD[name](seed, False), _BUILD[name](seed, True)


def others() -> tuple[list[tuple[str, Callable[[onnx.ModelProto], onnx.ModelProto]]], list[str]]:
    """Optimisers of others that are installed, and the names of those that are not."""
    found: list[tuple[str, Callable[[onnx.ModelProto], onnx.ModelProto]]] = []
    for name in OPTIMISERS:
        if find_spec(name) is not None:
            found.append((name, _simplified if name == "onnxsim" else _slim))
    return found, [name for name in OPTIMISERS if find_spec(name) is None]


def _simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim  # pyright: ignore[reportMissingImports]  # late: not a dependency

    made: Any = onnxsim.simplify(model)
    return made[0] if isinstance(made, tuple) else made


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim  # pyright: ignore[reportMissingImports]  # late: not a dependency

    return onnxslim.slim(model)


# ---- faults


def faulty(name: str, fault: str, seed: int) -> Pair | None:
    """A pair whose second model has one fault, or None where there is no place for it."""
    first, second = pair(name, seed)
    second = copy.deepcopy(second)
    made = _FAULTS[fault](second, np.random.default_rng(seed))
    return (first, second) if made else None


def _pick(items: list[Any], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))] if items else None


def _nodes(model: onnx.ModelProto, *ops: str) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type in ops]


def _constant(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """One element of a stored tensor is off by a tenth."""
    tensor = _pick([t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims], rng)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[int(rng.integers(array.size))] += 0.1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _scale(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """A stored tensor is a thousandth too large."""
    tensor = _pick([t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims], rng)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.001), tensor.name))
    return True


def _epsilon(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Another epsilon under the root."""
    for tensor in model.graph.initializer:
        if tensor.name == "eps":
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(1.1e-2, np.float32), "eps"))
            return True
    return False


def _axis(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """A softmax or a mean along another axis of a tensor."""
    node = _pick([n for n in _nodes(model, "Softmax") if n.attribute[0].i == -1], rng)
    if node is not None:
        node.attribute[0].i = -2
    return node is not None


def _operands(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Operands of a difference the other way round."""
    node = _pick(_nodes(model, "Sub")[-1:], rng)
    node.input[:] = [node.input[1], node.input[0]]
    return True


def _dropped(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """A function is left out."""
    node = _pick(_nodes(model, "Relu", "Softmax", "Sqrt"), rng)
    del node.attribute[:]
    node.op_type = "Identity"
    return True


def _other(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Another function in place of one."""
    node = _pick(_nodes(model, "Relu", "Sub"), rng)
    node.op_type = {"Relu": "Sigmoid", "Sub": "Add"}[node.op_type]
    return True


def _window(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """A window padded on the other side."""
    node = _pick([n for n in _nodes(model, "Conv") if any(a.name == "pads" for a in n.attribute)], rng)
    for attribute in node.attribute if node is not None else ():
        if attribute.name == "pads":
            attribute.ints[:] = [2, 1, 0, 1]
    return node is not None


def _order(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Heads split the other way."""
    shape = [t for t in model.graph.initializer if t.name == "split"]
    node = _pick([n for n in _nodes(model, "Transpose") if len(n.attribute[0].ints) == 4][-1:], rng)
    if not shape or node is None:
        return False
    node.op_type = "Reshape"
    del node.attribute[:]
    joined = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "joined"))
    split = numpy_helper.to_array(shape[0])
    swapped = np.asarray([joined[0], split[1], split[2], split[3]])
    model.graph.initializer.append(numpy_helper.from_array(swapped, "swapped"))
    node.input.append("swapped")
    return True


_FAULTS: dict[str, Callable[[onnx.ModelProto, np.random.Generator], bool]] = {
    "constant": _constant, "scale": _scale, "epsilon": _epsilon, "axis": _axis, "operands": _operands,
    "dropped": _dropped, "other": _other, "window": _window, "order": _order,
}  # fmt: skip
FAULTS = tuple(_FAULTS)


def faults(count: int, seed: int) -> Iterator[tuple[str, Pair]]:
    """So many faulty pairs by name: kinds and models in turn, other weights and places each time."""
    made, number = 0, seed
    while made < count:
        for kind in FAULTS:
            for name in MODELS:
                found = faulty(name, kind, number) if made < count else None
                if found is not None:
                    made += 1
                    yield f"{kind} {name} {number}", found
        number += 1


def compared(count: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of pairs, and of faults that are not refuted; the summary. `count`: of faults."""
    optimisers, missing = others()
    todo = [(f"{name} by hand", pair(name, seed)) for name in MODELS]
    for by, optimise in optimisers:
        todo += [
            (f"{name} by {by}", (first, optimise(first))) for name, (first, _) in ((n, pair(n, seed)) for n in MODELS)
        ]
    rows: list[dict[str, Any]] = []
    outputs: list[str] = []
    for name, (first, second) in todo:
        found = compare_models(first, second, seed=seed)
        rows.append({"part": "pairs", "name": name, **found.to_json()})
        outputs += [o.status for o in found.outputs]
    statuses: list[str] = []
    for name, (first, second) in faults(count, seed):
        status = compare_models(first, second, seed=seed).status
        statuses.append(status)
        if status != REFUTED:
            rows.append({"part": "pairs", "name": name, "status": status})
    return rows, {
        "pair_outputs": len(outputs),
        "pair_outputs_proved": outputs.count(PROVED) / len(outputs),
        "pair_slowest_s": round(max(row.get("seconds", 0.0) for row in rows), 2),
        "pair_faults": len(statuses),
        "pair_faults_proved": statuses.count(PROVED),
        "pair_faults_refuted": statuses.count(REFUTED) / max(1, len(statuses)),
        "pair_optimisers_missing": ", ".join(missing) or "none",
    }


__all__ = ["FAULTS", "MODELS", "OPTIMISERS", "compared", "faults", "faulty", "others", "pair"]
