"""Features of a kernel: for each of its steps, counts of work, of memory traffic, and of fixed costs.

Every feature is a count of something (element evaluations of an op, multiply-adds, bytes from one cache level,
steps), so its coefficient is a time per unit and is positive.  Features of one step fall into three blocks, combined
by the roofline: *compute*, *memory*, and *fixed*.  Work that XLA:CPU does in different code has different features: a
product with a transposed operand, a convolution that copies to channels-last first, a depthwise convolution.

Sizes enter only through counts; the one threshold is that of the allocator, which returns large buffers to the
system, so that they are faulted in again on each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.features.operands import Counts, Source, conv_counts, dot_counts
from costmodel.features.steps import CHEAP, FUNCTIONS, SAME_COST, VIEW, elements
from superopt.ir.graph import Node
from superopt.ir.ops.table import CONVOLUTIONS, LINEAR, PREFIXES, PRODUCTS, REDUCTIONS, WINDOWS
from superopt.ir.program import type_bytes
from superopt.machine import facts as machine

FEATURES_VERSION = 3
SHARE_BYTES = 256 << 10  # XLA:CPU gives each thread of a loop at least this much traffic
VECTORS = (16, 64)  # elements that a vectorised loop takes per turn, without and with unrolling
FRESH_BYTES = 32 << 20  # glibc gives larger buffers back to the system
WHILE_TRIPS = 16  # trips of a loop of unknown length; equal in every form of a program, so only its scale matters

_CALLED = frozenset((*FUNCTIONS, *SAME_COST)) - {"population_count", "clz", "div", "sqrt"}
_REDUCE_CLASS = {"reduce_sum": "sum", "reduce_prod": "sum", "argmax": "arg", "argmin": "arg"}

COMPUTE = (
    "cheap", *(f"fn_{f}" for f in FUNCTIONS),
    "load", "load_strided", "pad_eval", "pad_eval_minor", "concat_eval", "concat_eval_minor", "select_eval",
    "gather_eval", "gather_row", "iota_eval", "evaluation", "evaluation_rest16", "evaluation_rest64", "fn_rest16",
    "fn_rest64", "rows", "output",
    *(f"reduce_{kind}_{where}" for kind in ("sum", "max", "arg") for where in ("minor", "major", "all")),
    "reduce_result_minor", "reduce_result_major", "reduce_rest16", "reduce_rest64",
    "dot_mnk", "dot_mn", "dot_mk", "dot_nk", "dot_km", "dot_km_large", "dot_rhs_turned",
    "dot_both_turned", "batch_mnk", "batch_mn", "batch_mk", "batch_nk", "batch_turned", "batch_count",
    "vector_kn", "vector_nk", "vector_out", "inner",
    "conv_macs", "conv_patch", "conv_patch_narrow", "conv_out", "conv_weight", "conv_dilated",
    "point_macs", "point_in", "point_out",
    "group_macs", "group_patch", "group_out", "depthwise_macs", "depthwise_out",
    "turn_small", "turn_large",
    "window_eval", "window_eval_minor", "window_line", "window_out", "window_out_minor",
    "prefix_elem", "prefix_elem_log", "opaque_elem",
)  # fmt: skip
MEMORY = ("read_l2", "read_l3", "read_dram", "write_l2", "write_l3", "write_dram", "fresh")
FIXED = (
    "loop",
    "reduce",
    "dot",
    "dot_fork",
    "batch",
    "vector",
    "vector_fork",
    "conv",
    "turn",
    "window",
    "prefix",
    "update",
    "opaque",
)
INDEX = {name: i for i, name in enumerate((*COMPUTE, *MEMORY, *FIXED))}


@dataclass(frozen=True, slots=True)
class Unit:
    """The units that one evaluated element of a node is counted as.

    Attributes:
        feature, times: the feature of its op, and how often it is counted; None for views that cost nothing.
        evaluated, called: whether it counts as an evaluation, and as a call of a function.
        rows: counted once as `gather_row` wherever the node is evaluated.
    """

    feature: str | None
    times: float = 1.0
    evaluated: bool = True
    called: bool = False
    rows: float = 0.0


def unit(node: Node) -> Unit:
    """Return the units of one evaluated element of a node; reductions are counted as roots of their loops."""
    op = SAME_COST.get(node.op, node.op)
    if op in REDUCTIONS:
        return Unit(None, evaluated=False)
    if op == "integer_pow":
        return Unit("cheap", float(max(1, abs(int(node["y"])).bit_length())))
    if op == "select_n":
        return Unit("select_eval")
    if op == "cheap" or op in CHEAP or op in PRODUCTS:  # a product over one element
        return Unit("cheap")
    if op in FUNCTIONS:
        return Unit(f"fn_{op}", called=node.op in _CALLED)
    if op == "pad":
        return Unit("pad_eval_minor" if any(node["padding_config"][-1]) else "pad_eval", evaluated=False)
    if op == "concatenate":
        minor = node["dimension"] == node.type.rank - 1
        return Unit("concat_eval_minor" if minor else "concat_eval", evaluated=False)
    if op == "iota":
        return Unit("iota_eval", evaluated=False)
    if op == "gather":
        return Unit("gather_eval", evaluated=False, rows=float(elements(node.inputs[1])))
    return Unit(None, evaluated=False) if op in VIEW else Unit("opaque_elem")


@dataclass(frozen=True, slots=True)
class LoopRoot:
    """A node as the root of a loop.

    Attributes:
        counts: features that do not depend on the other nodes in the loop.
        rests: for each size in `VECTORS`, the remainder share of the innermost loop, which goes element by element.
        written: bytes of the result.
        parts: most parts into which the loop can be shared out.
    """

    counts: Counts
    rests: tuple[float, ...]
    written: float
    parts: float


def root(node: Node) -> LoopRoot:
    """Return a node as the root of a loop."""
    counts = Counts(float)
    reduces = node.op in REDUCTIONS
    counts["output"] = elements(node)
    inner = node.inputs[0] if reduces else node  # the axis of the innermost loop
    shape = inner.types[0].shape
    minor = float(shape[-1]) if shape else 1.0  # pyright: ignore[reportArgumentType] (concrete sizes)
    counts["rows"] = elements(inner) / max(minor, 1.0)
    rests = tuple((minor % size) / max(minor, 1.0) for size in VECTORS)
    if reduces:
        name = _reduce_feature(node)
        counts[name] += elements(inner)
        counts["reduce_result_major" if name.endswith("major") else "reduce_result_minor"] += elements(node)
        for size, rest in zip(VECTORS, rests, strict=True):
            counts[f"reduce_rest{size}"] = elements(inner) * rest
    counts["reduce" if reduces else "loop"] = 1.0
    written = float(type_bytes(node.types[0]))
    if written > FRESH_BYTES:
        counts["fresh"] = written
    return LoopRoot(counts, rests, written, min(float(machine.describe().cores), float(elements(node))))


def _reduce_feature(node: Node) -> str:
    kind = _REDUCE_CLASS.get(node.op, "max")
    shape = node.inputs[0].shape
    axes = {a for a in node["axes"] if shape[a] != 1}
    live = [a for a, n in enumerate(shape) if n != 1]
    where = "all" if len(axes) == len(live) else "minor" if live and live[-1] in axes else "major"
    return f"reduce_{kind}_{where}"


def heavy(node: Node, sources: Sequence[Source], read: float) -> Counts:
    """Count the features of a routine.

    Args:
        node: a heavy op other than control flow.
        sources: the values it reads, each with the permutation that leads from there to the operand.
        read: bytes of these.
    """
    if node.op in PRODUCTS:
        counts = dot_counts(node, sources)
    elif node.op in CONVOLUTIONS:
        counts = conv_counts(node, sources)
    else:
        counts = _other(node)
    written = float(type_bytes(node.types[0]))
    if node.op == "dynamic_update_slice":
        read = written = float(type_bytes(node.inputs[1].types[0]))
    if written > FRESH_BYTES:
        counts["fresh"] += written
    for name, value in zip(MEMORY, traffic(np.array(read), np.array(written)), strict=False):
        counts[name] += float(value)
    return counts


def _other(node: Node) -> Counts:
    counts = Counts(float)
    if node.op in WINDOWS:
        dims = node["window_dimensions"]
        line, minor = sum(n > 1 for n in dims) == 1, bool(dims) and dims[-1] > 1
        name = "window_line" if line else "window_eval_minor" if minor else "window_eval"
        counts[name] += elements(node) * math.prod(dims)
        counts["window_out_minor" if minor else "window_out"] += elements(node)
        counts["window"] += 1
    elif node.op in PREFIXES:
        length = max(2, int(node.shape[node["axis"]]))  # pyright: ignore[reportArgumentType] (kernel shapes are concrete)
        counts["prefix_elem"] += elements(node)
        counts["prefix_elem_log"] += elements(node) * math.log2(length)
        counts["prefix"] += math.ceil(math.log2(length))
    elif node.op in LINEAR:
        size = elements(node.inputs[0])
        length = int(node.shape[-2])  # pyright: ignore[reportArgumentType] (see above)
        # EPYC (Zen 4), float32: 0.5 ms to factorise 256 x 256, 2.9 ms 512 x 512, 5 ns an element in small matrices, and
        # a right side takes half as long a multiply-add; a product takes a tenth (0.05 ms of 0.5)
        counts["opaque"] += 3
        counts["opaque_elem"] += 50.0 * size
        counts["dot_mnk"] += 10.0 * size * length / 3 + 5.0 * elements(node) * length
    elif node.op == "segment_sum":
        counts["opaque_elem"] += elements(node) + elements(node.inputs[0])
        counts["opaque"] += 1
    else:
        counts["output"] += elements(node.inputs[1])
        counts["update"] += 1
    return counts


def control(node: Node) -> tuple[Counts, float]:
    """Return the features of a control-flow op without its bodies, and how often these run."""
    size = sum(type_bytes(t) for t in node.types) + sum(type_bytes(t) for x in node.inputs for t in x.types)
    trips = {"scan": float(dict(node.attrs).get("length") or 1), "while": float(WHILE_TRIPS)}.get(node.op, 1.0)
    return Counts(float, {"opaque": 1.0, "opaque_elem": size / 4.0}), trips


def traffic(read: np.ndarray, written: np.ndarray) -> list[np.ndarray]:
    """Return the bytes of the traffic of steps by cache level, in the order of `MEMORY`: reads, then writes."""
    facts = machine.describe()
    caches = dict(facts.caches_bytes)
    l2 = caches.get("L2", 1 << 20) * facts.cores
    l3 = caches.get("L3", 8 * l2)
    size = np.maximum(read + written, 1.0)
    near = 1.0 / (1.0 + (size / l2) ** 2)
    far = 1.0 / (1.0 + (l3 / size) ** 2)
    shares = (near, (1.0 - near) * (1.0 - far), (1.0 - near) * far)
    return [amount * share for amount in (read, written) for share in shares]
