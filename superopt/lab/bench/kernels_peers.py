"""The operators of the kernel benchmark in PyTorch (MKL, oneDNN) and ONNX Runtime, where these are installed.

Each builder takes the arrays of a case and returns functions without arguments that compute the result into memory of
their own.  PyTorch forms that exist in several layouts become several functions, of which the fastest counts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.lab.bench.programs.kernels_cases import OperatorCase
from superopt.measure.loop import Thunk


def peers(case: OperatorCase, arrays: Sequence[np.ndarray], threads: int) -> dict[str, Thunk]:
    """Callables by name for each peer that is installed and has the operator."""
    calls: dict[str, Thunk] = {}
    if importlib.util.find_spec("torch") is not None:
        calls |= _torch(case, arrays, threads)
    if importlib.util.find_spec("onnxruntime") is not None:
        call = _onnxruntime(case, arrays, threads)
        if call is not None:
            calls["onnxruntime"] = call
    return calls


def versions() -> dict[str, str]:
    """Versions of the peers that are installed."""
    return {
        name: importlib.metadata.version(name)
        for name in ("torch", "onnxruntime")
        if importlib.util.find_spec(name) is not None
    }


def _torch(case: OperatorCase, arrays: Sequence[np.ndarray], threads: int) -> dict[str, Thunk]:
    import torch  # late: an optional peer  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    f = torch.nn.functional
    xs = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    kind, *rest = case.form
    match kind:
        case "product":
            linear = torch.nn.Linear(xs[1].shape[0], xs[1].shape[1], bias=False)
            linear.weight.copy_(xs[1].T)
            calls: dict[str, Thunk] = {
                "torch": lambda: torch.mm(xs[0], xs[1]),
                "torch linear": lambda: f.linear(xs[0], linear.weight),
            }
            if torch.backends.mkldnn.is_available():
                from torch.utils.mkldnn import to_mkldnn  # pyright: ignore[reportMissingImports]

                packed = to_mkldnn(linear.eval())
                x = xs[0].to_mkldnn()
                calls["torch oneDNN packed"] = lambda: packed(x)
            return calls
        case "convolution":
            stride, pad, groups = rest
            calls = {}
            for name, layout in (("torch", torch.contiguous_format), ("torch channels-last", torch.channels_last)):
                x = xs[0].permute(0, 3, 1, 2).contiguous(memory_format=layout)
                w = xs[1].permute(3, 2, 0, 1).contiguous(memory_format=layout)
                calls[name] = lambda x=x, w=w: f.conv2d(x, w, xs[2], stride, pad, 1, groups).relu_()
            return calls
        case "pooling":
            window, stride, pad, average = rest
            calls = {}
            for name, layout in (("torch", torch.contiguous_format), ("torch channels-last", torch.channels_last)):
                x = xs[0].permute(0, 3, 1, 2).contiguous(memory_format=layout)
                if average:
                    calls[name] = lambda x=x: f.avg_pool2d(x, window, stride, pad)
                else:
                    calls[name] = lambda x=x: f.max_pool2d(x, window, stride, pad)
            return calls
        case "softmax":
            return {"torch": lambda: f.softmax(xs[0], -1)}
        case "layer_norm":
            return {"torch": lambda: f.layer_norm(xs[0] + xs[1], xs[0].shape[1:], xs[2], xs[3], 1e-5)}
        case "gelu":
            return {"torch": lambda: f.gelu(xs[0] + xs[1])}
        case "attention":
            q, k, v = [x[None] for x in xs]
            return {"torch": lambda: f.scaled_dot_product_attention(q, k, v, is_causal=rest[1])}
        case _:
            return {}


def _onnxruntime(case: OperatorCase, arrays: Sequence[np.ndarray], threads: int) -> Thunk | None:
    import onnx  # late: optional
    import onnxruntime  # late: an optional peer  # pyright: ignore[reportMissingImports]
    from onnx import TensorProto, helper, numpy_helper

    kind, *rest = case.form
    image = kind in ("convolution", "pooling")
    values = [np.ascontiguousarray(a.transpose(0, 3, 1, 2)) if image and a.ndim == 4 and i == 0 else a
              for i, a in enumerate(arrays)]  # fmt: skip
    if kind == "convolution":
        values[1] = np.ascontiguousarray(arrays[1].transpose(3, 2, 0, 1))
    names = [f"x{i}" for i in range(len(values))]
    nodes = _nodes(kind, rest, names, helper)
    if not nodes:
        return None
    live = [i for i in range(len(values)) if i not in case.frozen]
    element = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
    result = TensorProto.INT32 if kind == "int8" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(names[i], element[str(values[i].dtype)], values[i].shape) for i in live],
        [helper.make_tensor_value_info("y", result, [None] * arrays[0].ndim)],
        [numpy_helper.from_array(values[i], names[i]) for i in case.frozen],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for i in live:
        binding.bind_cpu_input(names[i], values[i])
    binding.bind_output("y", "cpu")
    return lambda: session.run_with_iobinding(binding)


def _nodes(kind: str, rest: Sequence[Any], names: Sequence[str], helper: Any) -> list[Any]:
    node = helper.make_node
    match kind:
        case "product":
            return [node("MatMul", names, ["y"])]
        case "int8":
            return [node("MatMulInteger", names, ["y"])]
        case "convolution":
            stride, pad, groups = rest
            conv = node("Conv", names, ["c"], strides=[stride] * 2, pads=[pad] * 4, group=groups)
            return [conv, node("Relu", ["c"], ["y"])]
        case "pooling":
            window, stride, pad, average = rest
            op = "AveragePool" if average else "MaxPool"
            return [node(op, names, ["y"], kernel_shape=[window] * 2, strides=[stride] * 2, pads=[pad] * 4)]
        case "softmax":
            return [node("Softmax", names, ["y"], axis=-1)]
        case "layer_norm":
            return [
                node("Add", names[:2], ["s"]),
                node("LayerNormalization", ["s", *names[2:]], ["y"], axis=-1, epsilon=1e-5),
            ]
        case "gelu":
            return [node("Add", names, ["s"]), node("Gelu", ["s"], ["y"])]
        case _:
            return []
