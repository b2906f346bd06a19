"""Random weights of the right scale, for models whose weights are missing or all equal.

The scale of a weight follows from the op that reads it, found by looking through ops that only move values.  Kernels
and matrices keep the variance of their input (He: twice as large behind a rectifier), scales are near 1, shifts near 0,
variances around 1.  The scale of a branch that is added to another is halved, as in trained residual networks.  A
kernel behind a max pooling is smaller (the largest of several values is large), so that depth does not blow values up.
Nothing depends on the name of a model or weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from superopt.errors import ArgumentError
from superopt.frontends.onnx.data import is_float
from superopt.frontends.onnx.model import OnnxModel

_MOVES = ("Identity", "Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Flatten", "CastLike")
_RECTIFIERS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Elu", "HardSwish", "Gelu", "Swish", "Mish")
_TRANSPARENT = (*_MOVES, "Concat", "Dropout", "LRN", "AveragePool", "GlobalAveragePool")
_NORMS = ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization")
_RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class Role:
    """The use of a weight: the op that reads it, at which position, and the ops that follow."""

    op: str
    position: int
    followed_by: tuple[str, ...]
    transposed: bool = False
    gain: float = 1.0


def roles(model: OnnxModel) -> dict[str, Role]:
    """The role of each parameter that some op reads."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name:
                readers.setdefault(name, []).append((node, i))
    producers = {name: node for node in model.graph.node for name in node.output}
    known: dict[str, Role] = {}
    for name in model.params:
        at, seen = name, 0
        while len(readers.get(at, ())) and seen < 16:
            node, position = readers[at][0]
            if node.op_type in _MOVES and position == 0:
                at, seen = node.output[0], seen + 1
                continue
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            followers = _followers(node.output[0], readers)
            known[name] = Role(node.op_type, position, followers, transposed, _input_gain(node, producers))
            break
    return known


def _followers(name: str, readers: dict[str, list[tuple[onnx.NodeProto, int]]]) -> tuple[str, ...]:
    """Names of the ops that read a value, looking through pooling and ops that move values."""
    names: list[str] = []
    work, steps = [name], 0
    while work and steps < 16:
        steps += 1
        for node, _ in readers.get(work.pop(), ()):
            names.append(node.op_type)
            if node.op_type in (*_MOVES, "Relu", "GlobalAveragePool", "AveragePool", "Dropout"):
                work.append(node.output[0])
    return tuple(names)


def _input_gain(node: onnx.NodeProto, producers: dict[str, onnx.NodeProto]) -> float:
    """The factor by which weights must multiply the variance, from the op that produces the data.

    A rectifier halves the second moment of its input; the largest of several values has about twice it.
    """
    at = node.input[0]
    while at in producers and producers[at].input:
        op = producers[at].op_type
        if op == "MaxPool":
            return 0.5
        if op in _RECTIFIERS:
            return 2.0
        if op not in _TRANSPARENT:
            return 1.0
        at = producers[at].input[0]
    return 1.0


def _fan_in(shape: tuple[int, ...], role: Role) -> int:
    if role.op == "ConvTranspose":
        return shape[0]
    if role.op.startswith(("Conv", "QLinearConv")):
        return math.prod(shape[1:])
    if role.op == "Gemm":
        return shape[1] if role.transposed else shape[0]
    if role.op in _RECURRENT:
        return shape[-1]
    return math.prod(shape[-2:-1])


def _draw(shape: tuple[int, ...], role: Role | None, rng: np.random.Generator) -> np.ndarray:
    """Return random values of a weight, with the spread that its role needs."""
    if role is None:
        return rng.standard_normal(shape, np.float32) * np.float32(0.02)
    near_one = 1 + 0.1 * rng.standard_normal(shape, np.float32)
    small = 0.05 * rng.standard_normal(shape, np.float32)
    op, position = role.op, role.position
    if op in _NORMS:
        if position == 4:
            return rng.uniform(0.7, 1.3, shape).astype(np.float32)
        added = role.followed_by[:1] in (("Add",), ("Sum",))
        return near_one * (0.5 if added else 1.0) if position == 1 else small
    if op in ("Mul", "Div", "PRelu"):
        return near_one if op != "PRelu" else np.abs(near_one) * 0.25
    is_matrix = len(shape) > 1 and (position == 1 or (op == "MatMul" and position == 0) or op in _RECURRENT)
    if op in ("Conv", "ConvTranspose", "Gemm", "MatMul", *_RECURRENT) and is_matrix and position < 3:
        gain = 1.0 if op in _RECURRENT else role.gain
        gain = gain / 8 if "Softmax" in role.followed_by else gain  # or a deep network is certain of one class
        return rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(gain / max(_fan_in(shape, role), 1)))
    if op == "Gather" and position == 0:
        return rng.standard_normal(shape, np.float32) * np.float32(0.5)
    return small


def randomize_weights(model: OnnxModel, seed: int = 0) -> OnnxModel:
    """The model with random floating-point weights whose scale follows from their use.

    Each weight is drawn from its own stream, so that it does not depend on the others.
    """
    known = roles(model)
    params: dict[str, np.ndarray] = {}
    for i, (name, old) in enumerate(model.params.items()):
        if is_float(old.dtype):
            rng = np.random.default_rng([seed, i])
            params[name] = np.asarray(_draw(old.shape, known.get(name), rng), np.float32).astype(old.dtype)
        else:
            params[name] = old
    return model.with_params(params)


def light_model_path(name: str) -> Path:
    """Path of a network that ships inside the `onnx` package (`squeezenet`, `resnet50`, ...).

    Raises:
        ArgumentError: there is none of that name.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    names = sorted(p.stem.removeprefix("light_") for p in folder.glob("light_*.onnx"))
    if name not in names:
        raise ArgumentError(f"no light network {name!r}", hint=f"there are: {', '.join(names)}")
    return folder / f"light_{name}.onnx"
