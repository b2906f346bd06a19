"""Pairs of ONNX models: networks and their optimised versions, by hand or by installed optimisers, and seeded faults.

`pair` is a model and an optimised version written by hand: batch norm folded into kernels in float32, transposed
weights stored, scales folded, products in place of `Gemm`, operators without effect dropped.  `corpus` holds models for
onnxsim, onnxslim and ONNX Runtime to rewrite where they are installed: pieces of networks as exporters write them,
random ones, and those of the onnx package.  `faulty` is a pair with one fault in the second model.
"""

from __future__ import annotations

import copy
import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from superopt.equivalence.models import compare_models
from superopt.errors import InputError
from superopt.lab.bench import once
from superopt.lab.bench.onnx.networks import NETWORKS, NetworkBuilder, network
from superopt.lab.bench.onnx.zoo import LIGHT, light
from superopt.lab.fuzz.onnx_programs import model_of, program
from verifier.rules.process import processor_s
from verifier.verdict import PROVED, REFUTED, UNKNOWN

RANDOM = 12  # random models of the corpus, beside the networks
OnnxModelProto = onnx.ModelProto
ModelPair = tuple[OnnxModelProto, OnnxModelProto]


def _convnet(seed: int, rewritten: bool) -> OnnxModelProto:
    """Two convolutions with batch norm and a residual, pooling, a classifier."""
    b = NetworkBuilder(seed)
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
    return b.model(b("Softmax", x, axis=1), {"x": (1, 3, 10, 10)})


def _attention(seed: int, rewritten: bool) -> OnnxModelProto:
    """A layer norm and attention of two heads, as exporters write them."""
    b = NetworkBuilder(seed)
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
    return b.model(b("Sub", y, "x"), {"x": (1, n, d)})


_BUILD: dict[str, Callable[[int, bool], OnnxModelProto]] = {"convnet": _convnet, "attention": _attention}
MODELS = tuple(_BUILD)


def pair(name: str, seed: int) -> ModelPair:
    """A model and its optimised version."""
    return _BUILD[name](seed, False), _BUILD[name](seed, True)


def corpus(seed: int) -> dict[str, Callable[[], OnnxModelProto]]:
    """Models by name, built on first use."""
    made: dict[str, Callable[[], OnnxModelProto]] = {name: functools.partial(network, name, seed) for name in NETWORKS}
    made |= {f"random {i}": functools.partial(_random, i) for i in range(seed, seed + RANDOM)}
    return made | {name: functools.partial(light, name, seed) for name in LIGHT}


def _random(number: int) -> OnnxModelProto:
    return model_of(program(number))


# ---- optimisers


def others() -> tuple[dict[str, Callable[[OnnxModelProto], OnnxModelProto]], list[str]]:
    """Other optimisers that are installed, and the names of those that are not."""
    known = {"onnxsim": _simplified, "onnxslim": _slim, "onnxruntime": _runtime}
    return {k: f for k, f in known.items() if find_spec(k)}, [k for k in known if find_spec(k) is None]


def _simplified(model: OnnxModelProto) -> OnnxModelProto:
    import onnxsim  # pyright: ignore[reportMissingImports]  # late: not a dependency

    made: Any = onnxsim.simplify(model)
    return made[0] if isinstance(made, tuple) else made


def _slim(model: OnnxModelProto) -> OnnxModelProto:
    import onnxslim  # pyright: ignore[reportMissingImports]  # late: not a dependency

    made: Any = onnxslim.slim(copy.deepcopy(model))
    return made


def _runtime(model: OnnxModelProto) -> OnnxModelProto:
    """The model as ONNX Runtime rewrites it for any processor: `ORT_ENABLE_ALL` would lay tensors out for this one."""
    import onnxruntime  # pyright: ignore[reportMissingImports]  # late: not a dependency

    options: Any = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


# ---- faults


def faulty(
    name: str, fault: str, seed: int, optimise: Callable[[OnnxModelProto], OnnxModelProto] | None = None
) -> ModelPair | None:
    """A pair whose second model has one fault; None where there is no place for it."""
    first, second = pair(name, seed) if name in MODELS else (network(name, seed),) * 2
    second = copy.deepcopy(second) if optimise is None else optimise(first)
    made = _FAULTS[fault](second, np.random.default_rng(seed))
    return (first, second) if made else None


def _pick(items: list[Any], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))] if items else None


def _nodes(model: OnnxModelProto, *ops: str) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type in ops]


def _tensor(model: OnnxModelProto, rng: np.random.Generator) -> Any:
    """A stored tensor of floats that affects the outputs: not a table, of which inputs may read other rows, nor a mask.

    Biases are left out too: one of the keys of attention has no effect at all.
    """
    tables = {n.input[0] for n in _nodes(model, "Gather")}
    least = 1 + bool(_nodes(model, "Softmax", "Attention", "MultiHeadAttention"))
    kept = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) >= least]
    values = [(t, np.abs(numpy_helper.to_array(t))) for t in kept if t.name not in tables]
    return _pick([t for t, x in values if x.any() and x.max() < 100], rng)


def _constant(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """One element of a stored tensor is off by a tenth."""
    tensor = _tensor(model, rng)
    if tensor is None:
        return False
    array = numpy_helper.to_array(tensor).copy()
    array.flat[int(rng.integers(array.size))] += 0.1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _scale(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """A stored tensor is a thousandth too large."""
    tensor = _tensor(model, rng)
    if tensor is None:
        return False
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.001), tensor.name))
    return True


def _epsilon(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """Another epsilon under the root."""
    for tensor in model.graph.initializer:
        if tensor.name == "eps":
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(1.1e-2, np.float32), "eps"))
            return True
    return False


def _axis(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """A softmax or a mean along another axis of a tensor."""
    node = _pick([n for n in _nodes(model, "Softmax") if n.attribute[0].i == -1], rng)
    if node is not None:
        node.attribute[0].i = -2
    return node is not None


def _operands(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """Operands of a difference swapped."""
    node = _pick(_nodes(model, "Sub")[-1:], rng)
    if node is None:
        return False
    node.input[:] = [node.input[1], node.input[0]]
    return True


def _dropped(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """A function removed."""
    node = _pick(_nodes(model, "Relu", "Softmax", "Sqrt", "Tanh", "Sigmoid", "Erf"), rng)
    if node is None:
        return False
    del node.attribute[:]
    node.op_type = "Identity"
    return True


def _other(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """A function replaced by another."""
    others = {"Relu": "Sigmoid", "Sub": "Add", "Tanh": "Sigmoid", "Erf": "Tanh", "Add": "Sub", "Mul": "Add"}
    node = _pick(_nodes(model, *others), rng)
    if node is None:
        return False
    node.op_type = others[node.op_type]
    return True


def _window(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """A window padded on the other side."""
    node = _pick([n for n in _nodes(model, "Conv") if any(a.name == "pads" for a in n.attribute)], rng)
    for attribute in node.attribute if node is not None else ():
        if attribute.name == "pads":
            half = len(attribute.ints) // 2
            attribute.ints[0] += 1
            attribute.ints[half] -= 1
            return attribute.ints[half] >= 0
    return False


def _order(model: OnnxModelProto, rng: np.random.Generator) -> bool:
    """Heads split in the other order."""
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


_FAULTS: dict[str, Callable[[OnnxModelProto, np.random.Generator], bool]] = {
    "constant": _constant, "scale": _scale, "epsilon": _epsilon, "axis": _axis, "operands": _operands,
    "dropped": _dropped, "other": _other, "window": _window, "order": _order,
}  # fmt: skip
FAULTS = tuple(_FAULTS)


def faults(count: int, seed: int) -> Iterator[tuple[str, ModelPair]]:
    """A sequence of `count` faulty pairs by name: kinds, models and optimisers in turn, other weights each."""
    optimisers = [None, *others()[0].values()]
    made, number = 0, seed
    while made < count:
        chosen = (*MODELS, *(NETWORKS[(number * 3 + i) % len(NETWORKS)] for i in range(3)))
        for kind in FAULTS:
            for name in chosen:
                by = None if name in MODELS else optimisers[number % len(optimisers)]
                found = faulty(name, kind, number, by) if made < count else None
                if found is not None:
                    made += 1
                    yield f"{kind} {name} {number}", found
        number += 1


# ---- the part of the suite


def compared(count: int, seed: int, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of pairs, and of faults that are not refuted; and the summary.  `count` is the number of faults."""
    optimisers, missing = others()
    rows = [_row(f"{name} by hand", functools.partial(pair, name, seed), seed) for name in MODELS]
    for number, (name, make) in enumerate(corpus(seed).items() if optimisers else ()):
        for by, optimise in optimisers.items():
            rows.append(_row(f"{name} by {by}", functools.partial(_optimised, make, optimise), seed))
        if number % 10 == 9:
            say(f"{len(rows)} pairs")
    outputs = [o["status"] for row in rows for o in row.get("outputs", ())]
    seconds = [row["processor_s"] for row in rows if "processor_s" in row]
    changed = [row for row in rows if row.get("changed")]
    statuses: list[str] = []
    for name, models in faults(count, seed):
        row = once([__name__, name, seed], functools.partial(_fault, name, models, seed))
        statuses.append(row["status"])
        if row["status"] != REFUTED:
            rows.append(row)
        if len(statuses) % 50 == 0:
            say(f"{len(statuses)} faults: {statuses.count(REFUTED)} refuted, {statuses.count(PROVED)} proved")
    return rows, {
        "pair_models": len(corpus(seed)) + len(MODELS) if optimisers else len(MODELS),
        "pairs": len(seconds),
        "pairs_changed": len(changed),
        "pairs_refused": sum("refused" in row for row in rows),
        "pair_outputs": len(outputs),
        "pair_outputs_proved": outputs.count(PROVED) / max(1, len(outputs)),
        "pair_outputs_refuted": outputs.count(REFUTED),
        "pair_median_processor_s": round(median(seconds), 2),
        "pair_slowest_processor_s": round(max(seconds), 2),
        "pair_faults": len(statuses),
        "pair_faults_proved": statuses.count(PROVED),
        "pair_faults_refuted": statuses.count(REFUTED) / max(1, len(statuses)),
        "pair_optimisers_missing": ", ".join(missing) or "none",
    }


def _optimised(make: Callable[[], OnnxModelProto], optimise: Callable[[OnnxModelProto], OnnxModelProto]) -> ModelPair:
    model = make()
    return model, optimise(model)


def _row(name: str, make: Callable[[], ModelPair], seed: int) -> dict[str, Any]:
    """The row of a pair, or the reason why the optimiser made none."""
    return once([__name__, name, seed], functools.partial(_measured, name, make, seed))


def _measured(name: str, make: Callable[[], ModelPair], seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"part": "pairs", "name": name}
    try:
        first, second = make()
    except Exception as error:  # of whatever the optimiser raises: there is no pair then
        return row | {"refused": str(error)[:200]}
    row["nodes"] = [len(m.graph.node) for m in (first, second)]
    row["changed"] = [n.op_type for n in first.graph.node] != [n.op_type for n in second.graph.node]
    begin = processor_s()
    try:
        verdict = compare_models(first, second, seed=seed).to_json()
        return row | verdict | {"processor_s": round(processor_s() - begin, 2)}
    except InputError as error:  # an operator that the frontend does not know, or a part for the host
        return row | {"cause": str(error), "outputs": [{"status": UNKNOWN} for _ in first.graph.output]}


def _fault(name: str, models: ModelPair, seed: int) -> dict[str, Any]:
    begin = processor_s()
    status = compare_models(*models, seed=seed).status
    return {"part": "pairs", "name": name, "status": status, "processor_s": round(processor_s() - begin, 2)}


__all__ = ["FAULTS", "MODELS", "compared", "corpus", "faults", "faulty", "others", "pair"]
