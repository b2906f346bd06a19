"""Input features of a node for the network: an opcode and a row of numbers of fixed length.

The row holds logarithms of sizes, the shape, the element type, roles (given, frozen, literal), and attributes in slots
of their own for products, convolutions, windows, reductions and moves of data.  Everything is a function of the node
and of the types of its operands, so rows are made once per node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from costmodel.arrays import NodeRow
from costmodel.features.steps import elements
from superopt.ir.graph import Node
from superopt.ir.ops.table import CONVOLUTIONS, PREFIXES, PRODUCTS, REDUCTIONS, TABLE, WINDOWS
from superopt.ir.program import type_bytes

ENCODING_VERSION = 1
OPCODES = ("other", *TABLE)  # weights on disk have the list of their card (`costmodel.model.learned_file`)
OPCODE = {op: i for i, op in enumerate(OPCODES)}
_REGISTER = 16  # float32 values of 64 bytes
_COMMON, _DOT, _CONV, _WINDOW, _REDUCE, _MOVE = 0, 20, 34, 52, 57, 62
WIDTH = 72
OUTPUT = WIDTH - 1  # set where the node is a result of the kernel


def opcode(node: Node) -> int:
    """Return the number of the op."""
    return OPCODE[node.op]


def row(node: Node) -> NodeRow:
    """Return the numbers of one node."""
    out = [0.0] * WIDTH
    _common(out, node)
    fill = _FILL.get(node.op)
    if fill is not None:
        fill(out, node)
    return np.array(out, np.float32)


def _log(x: float) -> float:
    """Return log2, scaled to about one for the sizes in use."""
    return math.log2(max(x, 1.0)) / 8.0


def _common(out: list[float], node: Node) -> None:
    """Fill in the columns that all ops have: sizes, type, alignment, operands."""
    kind = node.types[0]
    shape = [int(n) for n in kind.shape]  # pyright: ignore[reportArgumentType] (kernel shapes are concrete)
    size = math.prod(shape)
    item = type_bytes(kind) / max(1, size)
    out[0] = _log(size)
    out[1] = len(shape) / 4.0
    out[2] = math.log2(max(item, 1.0)) / 2.0
    out[3] = float(kind.dtype.startswith(("float", "bfloat")))
    for k, n in enumerate(reversed(shape[-4:])):
        out[4 + k] = _log(n)
    for k, n in enumerate(sorted(shape, reverse=True)[:3]):
        out[8 + k] = _log(n)
    minor = shape[-1] if shape else 1
    out[11] = (minor % _REGISTER) / _REGISTER
    out[12] = float(minor % 8 == 0)
    out[13] = float(minor % _REGISTER == 0)
    if node.op == "input":
        out[14] = float(bool(node["frozen"]))
    given = [elements(x) for x in node.inputs if len(x.types) == 1]
    if given:
        out[15] = (_log(size) - _log(max(given))) * 2.0
        out[16] = _log(sum(given))
        out[17] = math.log2(1.0 + len(given)) / 2.0
        out[18] = sum(x.op == "literal" for x in node.inputs) / len(node.inputs)
        out[19] = float(len({id(x) for x in node.inputs}) < len(node.inputs))


def _ragged(n: int) -> float:
    return math.ceil(n / _REGISTER) * _REGISTER / max(n, 1) - 1.0


def _prod(sizes: Sequence[object]) -> int:
    return math.prod(int(n) for n in sizes)  # pyright: ignore[reportArgumentType]


def _dot(out: list[float], node: Node) -> None:
    (lc, rc), (lb, rb) = node["dimension_numbers"]
    left, right = node.inputs[0].shape, node.inputs[1].shape
    b, k = _prod([left[a] for a in lb]), _prod([left[a] for a in lc])
    m, n = _prod(left) // max(1, b * k), _prod(right) // max(1, b * k)
    s = _DOT
    out[s : s + 4] = _log(b), _log(m), _log(n), _log(k)
    out[s + 4] = _log(b * m * n * k) / 2.0
    out[s + 5] = float(bool(lc) and max(lc) == len(left) - 1)
    out[s + 6] = float(bool(rc) and max(rc) == len(right) - 1)
    out[s + 7] = float(bool(lb) and tuple(lb) != tuple(range(len(lb))))
    out[s + 8] = float(bool(rb) and tuple(rb) != tuple(range(len(rb))))
    out[s + 9 : s + 12] = _ragged(m), _ragged(n), _ragged(k)
    out[s + 12] = float(min(m, n) == 1)
    out[s + 13] = float(len(lc) > 1)


def _conv(out: list[float], node: Node) -> None:
    lhs, rhs, result = node["dimension_numbers"]
    w = [int(n) for n in node.inputs[1].shape]  # pyright: ignore[reportArgumentType]
    groups = int(node["feature_group_count"])
    taps, channels = math.prod(w[a] for a in rhs[2:]), w[rhs[1]]
    outputs = int(node.shape[result[1]])  # pyright: ignore[reportArgumentType]
    positions = elements(node) // max(1, outputs)
    s = _CONV
    out[s : s + 5] = _log(taps), _log(channels), _log(outputs), _log(groups), _log(positions)
    out[s + 5] = _log(elements(node) * channels * taps) / 2.0
    out[s + 6] = math.log2(max(1, math.prod(node["window_strides"]))) / 2.0
    out[s + 7] = float(lhs[1] == len(lhs) - 1)
    out[s + 8] = float(rhs[0] == len(rhs) - 1)
    out[s + 9] = float(result[1] == len(result) - 1)
    out[s + 10] = float(math.prod(node["lhs_dilation"]) > 1)
    out[s + 11] = float(math.prod(node["rhs_dilation"]) > 1)
    out[s + 12] = float(any(any(p) for p in node["padding"]))
    out[s + 13 : s + 15] = _ragged(channels), _ragged(outputs)
    out[s + 15] = float(channels % 8 != 0)
    out[s + 16] = float(groups > 1 and channels == 1)
    out[s + 17] = _log(outputs / max(1, groups))


def _window(out: list[float], node: Node) -> None:
    dims = node["window_dimensions"]
    s = _WINDOW
    out[s] = _log(math.prod(dims))
    out[s + 1] = math.log2(max(1, math.prod(node["window_strides"]))) / 2.0
    out[s + 2] = float(bool(dims) and dims[-1] > 1)
    out[s + 3] = sum(n > 1 for n in dims) / 2.0
    out[s + 4] = float(any(any(p) for p in node["padding"]))


def _reduce(out: list[float], node: Node) -> None:
    shape, axes = node.inputs[0].shape, node["axes"]
    live = [a for a, n in enumerate(shape) if n != 1]
    s = _REDUCE
    out[s] = _log(_prod([shape[a] for a in axes]))
    out[s + 1] = float(bool(live) and live[-1] in axes)
    out[s + 2] = float(all(a in axes for a in live))
    out[s + 3] = _log(_prod(shape[max(axes, default=-1) + 1 :]))


def _prefix(out: list[float], node: Node) -> None:
    axis = node["axis"]
    s = _REDUCE
    out[s] = _log(_prod(node.shape[axis : axis + 1]))
    out[s + 1] = float(axis == node.type.rank - 1)
    out[s + 3] = _log(_prod(node.shape[axis + 1 :]))
    out[s + 4] = 1.0


def _transpose(out: list[float], node: Node) -> None:
    shape = node.inputs[0].shape
    order = [a for a in node["permutation"] if shape[a] != 1]
    live = sorted(order)
    run = 1
    while order and order[-1] == live[-1]:  # the part that stays contiguous
        run *= int(shape[order.pop()])  # pyright: ignore[reportArgumentType]
        live.pop()
    s = _MOVE
    out[s] = _log(run)
    out[s + 1] = float(bool(order) and run == 1)
    out[s + 2] = _log(_prod([shape[order[-1]]])) if order else 0.0


def _slice(out: list[float], node: Node) -> None:
    shape, strides = node.inputs[0].shape, node["strides"] or (1,) * node.type.rank
    whole = [a for a, n in enumerate(shape) if node.shape[a] == n]
    run = 1
    for a in reversed(range(node.type.rank)):
        run *= int(node.shape[a])  # pyright: ignore[reportArgumentType]
        if a not in whole:
            break
    s = _MOVE
    out[s] = _log(run)
    out[s + 1] = float(bool(strides) and strides[-1] > 1)
    out[s + 3] = math.log2(max(1, math.prod(strides))) / 2.0
    starts = node["start_indices"]
    out[s + 4] = float(bool(starts) and starts[-1] % _REGISTER != 0)


def _pad(out: list[float], node: Node) -> None:
    config = node["padding_config"]
    s = _MOVE
    out[s + 5] = float(bool(config) and any(config[-1]))
    out[s + 6] = sum(any(c) for c in config) / 2.0
    out[s + 7] = float(any(c[2] for c in config))


def _concatenate(out: list[float], node: Node) -> None:
    axis = node["dimension"]
    s = _MOVE
    out[s] = _log(_prod(node.inputs[0].shape[axis:]))
    out[s + 5] = float(axis == node.type.rank - 1)


def _broadcast(out: list[float], node: Node) -> None:
    dims = node["broadcast_dimensions"]
    inner = max(dims, default=-1)
    s = _MOVE
    out[s + 5] = float(inner != node.type.rank - 1)
    out[s] = _log(_prod(node.shape[inner + 1 :]))


def _gather(out: list[float], node: Node) -> None:
    sizes = node["slice_sizes"]
    s = _MOVE
    out[s] = _log(math.prod(sizes))
    out[s + 8] = 1.0


def _segment_sum(out: list[float], node: Node) -> None:
    out[_MOVE] = _log(_prod(node.shape[1:]))
    out[_MOVE + 8] = _log(_prod(node.inputs[1].shape))


def _power(out: list[float], node: Node) -> None:
    out[_MOVE + 6] = abs(int(node["y"])) / 4.0


_FILL: dict[str, Callable[[list[float], Node], None]] = {
    "transpose": _transpose, "slice": _slice, "pad": _pad,
    "concatenate": _concatenate, "broadcast_in_dim": _broadcast, "gather": _gather, "dynamic_slice": _gather,
    "segment_sum": _segment_sum, "integer_pow": _power,
    **dict.fromkeys(PRODUCTS, _dot), **dict.fromkeys(CONVOLUTIONS, _conv),
    **dict.fromkeys(WINDOWS, _window), **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(PREFIXES, _prefix),
}  # fmt: skip
