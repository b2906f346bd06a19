"""Random weights of the right scale, for models whose weights are missing or all equal.

The scale of a weight follows from the op that reads it, found by looking through ops that only move values:
kernels and matrices keep the variance of their input (He: twice that when a rectifier follows), scales are near 1,
shifts near 0, variances around 1.  The scale of a branch that is added to another is halved, as trained residual networks have
it, so that depth does not blow values up.  Nothing depends on the name of a model or weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from superopt.errors import ArgumentError
from superopt.frontends.onnx_data import is_float
from superopt.frontends.onnx_model import OnnxModel

_MOVES = ("Identity", "Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Flatten", "CastLike")
_RECTIFIERS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Elu", "HardSwish", "Gelu", "Swish", "Mish")
_NORMS = ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization")
_RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class Role:
    """How a weight is used: the op that reads it, at which position, and what follows that op."""

    op: str
    position: int
    followed_by: tuple[str, ...]
    transposed: bool


def roles(model: OnnxModel) -> dict[str, Role]:
    """The role of each parameter that some op reads."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name:
                readers.setdefault(name, []).append((node, i))
    found: dict[str, Role] = {}
    for name in model.params:
        at, seen = name, 0
        while len(readers.get(at, ())) and seen < 16:
            node, position = readers[at][0]
            if node.op_type in _MOVES and position == 0:
                at, seen = node.output[0], seen + 1
                continue
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            followers = tuple(n.op_type for n, _ in readers.get(node.output[0], ()))
            found[name] = Role(node.op_type, position, followers, transposed)
            break
    return found


def _fan_in(shape: tuple[int, ...], role: Role) -> int:
    if role.op == "ConvTranspose":
        return shape[0]
    if role.op.startswith(("Conv", "QLinearConv")):
        return math.prod(shape[1:])
    if role.op == "Gemm":
        return shape[1] if role.transposed else shape[0]
    if role.op in _RECURRENT:
        return shape[-1]
    return shape[-2] if len(shape) > 1 else shape[0]


def _draw(shape: tuple[int, ...], role: Role | None, rng: np.random.Generator) -> np.ndarray:
    if role is None:
        return rng.standard_normal(shape, np.float32) * np.float32(0.02)
    near_one = 1 + 0.1 * rng.standard_normal(shape, np.float32)
    small = 0.05 * rng.standard_normal(shape, np.float32)
    op, position = role.op, role.position
    if op in _NORMS:
        if position == 4:
            return rng.uniform(0.7, 1.3, shape).astype(np.float32)
        added = any(f in ("Add", "Sum") for f in role.followed_by)
        return near_one * (0.5 if added else 1.0) if position == 1 else small
    if op in ("Mul", "Div", "PRelu"):
        return near_one if op != "PRelu" else np.abs(near_one) * 0.25
    is_matrix = len(shape) > 1 and (position == 1 or (op == "MatMul" and position == 0) or op in _RECURRENT)
    if op in ("Conv", "ConvTranspose", "Gemm", "MatMul", *_RECURRENT) and is_matrix and position < 3:
        gain = 1.0 if op in _RECURRENT or not _rectified(role) else 2.0
        return rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(gain / max(_fan_in(shape, role), 1)))
    if op == "Gather" and position == 0:
        return rng.standard_normal(shape, np.float32) * np.float32(0.5)
    return small


def _rectified(role: Role) -> bool:
    """Whether a rectifier follows, directly or behind a normalisation or a sum."""
    return any(f in (*_RECTIFIERS, *_NORMS, "Add", "Sum", "Concat", "LRN") for f in role.followed_by)


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


def random_inputs(model: OnnxModel, seed: int = 0, *, high: Mapping[str, int] | None = None) -> tuple[np.ndarray, ...]:
    """Random arguments: normal floats, integers below `high[name]` (2 unless told), fair bools."""
    rng = np.random.default_rng([seed, 7])
    made: list[np.ndarray] = []
    for info in model.inputs:
        dtype = np.dtype(info.dtype)
        if is_float(dtype):
            made.append(rng.standard_normal(info.shape, np.float32).astype(dtype))
        else:
            top = (high or {}).get(info.name, 2)
            made.append(rng.integers(0, top, info.shape).astype(dtype))
    return tuple(made)


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
