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
from dataclasses import dataclass

from costmodel.operands import Counts, conv_counts, dot_counts
from costmodel.steps import CHEAP, CONTROL, PREFIX, REDUCE, VIEW, WINDOW, Step, elements, folded, is_heavy, steps
from superopt import machine
from superopt.ir.graph import Graph, Node
from superopt.ir.program import type_bytes

FEATURES_VERSION = 3
SHARE_BYTES = 256 << 10  # XLA:CPU gives each thread of a loop at least this much traffic
VECTORS = (16, 64)  # elements that a vectorised loop takes per turn, without and with unrolling
FRESH_BYTES = 32 << 20  # glibc gives larger buffers back to the system
WHILE_TRIPS = 16  # trips of a loop of unknown length; equal in every form of a program, so only its scale matters

_FUNCTIONS = (
    "div", "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "sqrt",
    "rsqrt", "cbrt", "pow", "rem", "atan", "sinh", "acosh", "asin", "lgamma", "atan2",
)  # fmt: skip
_SAME_COST = {
    "acos": "asin", "cosh": "sinh", "asinh": "acosh", "atanh": "acosh", "digamma": "lgamma", "nextafter": "rem",
    "erf_inv": "acosh", "population_count": "cheap", "clz": "cheap",
}  # fmt: skip
_CALLED = frozenset((*_FUNCTIONS, *_SAME_COST)) - {"population_count", "clz", "div", "sqrt"}
_REDUCE_CLASS = {"reduce_sum": "sum", "reduce_prod": "sum", "argmax": "arg", "argmin": "arg"}

COMPUTE = (
    "cheap", *(f"fn_{f}" for f in _FUNCTIONS),
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
class StepFeatures:
    """Counts of one step; names are those of `COMPUTE`, `MEMORY` and `FIXED`.

    Attributes:
        counts: feature -> count; absent ones are zero.
        spread: how many ways the loop can be shared out among cores, at most their number; 1 for heavy ops, whose
            routines share out work by themselves.
        repeat: how often the step runs in one call of the kernel (bodies of loops).
    """

    counts: dict[str, float]
    spread: float = 1.0
    repeat: float = 1.0


def kernel_features(graph: Graph, *, repeat: float = 1.0) -> list[StepFeatures]:
    """Features of every step of a kernel without macros."""
    found: list[StepFeatures] = []
    for step in steps(graph):
        if step.root.op in CONTROL:
            found.extend(_control(step.root, repeat))
        elif is_heavy(step.root):
            found.extend(_heavy(step, repeat))
        else:
            found.append(_loop(step, repeat))
    return found


# ---- loops


def _loop(step: Step, repeat: float) -> StepFeatures:
    counts = Counts(float)
    root = step.root
    for node, count in step.evaluations.items():
        _count_node(counts, node, count)
    for leaf, loads in step.loads.items():
        if leaf.op == "input" or leaf in step.touched:
            strided = min(step.strided.get(leaf, 0.0), loads)
            counts["load"] += loads - strided
            counts["load_strided"] += strided
    counts["output"] += elements(root)
    traffic = _traffic(counts, step)
    inner = root.inputs[0] if root.op in REDUCE else root  # what the innermost loop runs along
    minor = float(inner.shape[-1]) if inner.shape else 1.0  # pyright: ignore[reportArgumentType] (concrete sizes)
    counts["rows"] += elements(inner) / max(minor, 1.0)
    functions = sum(count for node, count in step.evaluations.items() if node.op in _CALLED)
    for size in VECTORS:  # what is left over from whole turns goes element by element
        rest = (minor % size) / max(minor, 1.0)
        counts[f"evaluation_rest{size}"] += counts["evaluation"] * rest
        counts[f"fn_rest{size}"] += functions * rest
        if root.op in REDUCE:
            counts[f"reduce_rest{size}"] += elements(inner) * rest
    counts["reduce" if root.op in REDUCE else "loop"] += 1
    spread = min(float(machine.describe().cores), float(elements(root)), traffic / SHARE_BYTES)
    return StepFeatures(dict(counts), spread=max(1.0, spread), repeat=repeat)


def _count_node(counts: Counts, node: Node, count: float) -> None:
    op = _SAME_COST.get(node.op, node.op)
    if op in REDUCE:
        name = _reduce_feature(node)
        counts[name] += elements(node.inputs[0])
        counts["reduce_result_major" if name.endswith("major") else "reduce_result_minor"] += elements(node)
        return
    counts["evaluation"] += count if op not in VIEW else 0.0
    if op == "integer_pow":
        counts["cheap"] += count * max(1, abs(int(node["y"])).bit_length())
    elif op == "select_n":
        counts["select_eval"] += count
    elif op in CHEAP or op in ("cheap", "dot_general"):  # a product over one element
        counts["cheap"] += count
    elif op in _FUNCTIONS:
        counts[f"fn_{op}"] += count
    elif op == "pad":
        counts["pad_eval_minor" if any(node["padding_config"][-1]) else "pad_eval"] += count
    elif op == "concatenate":
        counts["concat_eval_minor" if node["dimension"] == node.type.rank - 1 else "concat_eval"] += count
    elif op == "iota":
        counts["iota_eval"] += count
    elif op == "gather":
        counts["gather_eval"] += count
        counts["gather_row"] += elements(node.inputs[1])
    elif op not in VIEW:
        counts["opaque_elem"] += count


def _reduce_feature(node: Node) -> str:
    kind = _REDUCE_CLASS.get(node.op, "max")
    shape = node.inputs[0].shape
    axes = {a for a in node["axes"] if shape[a] != 1}
    live = [a for a, n in enumerate(shape) if n != 1]
    where = "all" if len(axes) == len(live) else "minor" if live and live[-1] in axes else "major"
    return f"reduce_{kind}_{where}"


# ---- heavy ops


def _heavy(step: Step, repeat: float) -> list[StepFeatures]:
    root = step.root
    counts = Counts(float)
    if root.op == "dot_general":
        counts = dot_counts(root, [_source(root, x) for x in root.inputs])
    elif root.op == "conv_general_dilated":
        counts = conv_counts(root, [_source(root, x) for x in root.inputs])
    elif root.op in WINDOW:
        dims = root["window_dimensions"]
        line, minor = sum(n > 1 for n in dims) == 1, dims[-1] > 1
        name = "window_line" if line else "window_eval_minor" if minor else "window_eval"
        counts[name] += elements(root) * math.prod(dims)
        counts["window_out_minor" if minor else "window_out"] += elements(root)
        counts["window"] += 1
    elif root.op in PREFIX:
        length = max(2, int(root.shape[root["axis"]]))  # pyright: ignore[reportArgumentType] (kernel shapes are concrete)
        counts["prefix_elem"] += elements(root)
        counts["prefix_elem_log"] += elements(root) * math.log2(length)
        counts["prefix"] += math.ceil(math.log2(length))
    else:
        counts["output"] += elements(root.inputs[1])
        counts["update"] += 1
    _traffic(counts, step)
    return [StepFeatures(dict(counts), repeat=repeat)]


def _source(node: Node, x: Node) -> tuple[Node, tuple[int, ...]]:
    """What a heavy op reads, and the permutation that leads from it to the operand."""
    order = tuple(range(x.type.rank))
    while folded(node, x) is not x:
        order = tuple(int(x["permutation"][axis]) for axis in order)
        x = x.inputs[0]
    return x, order


def _control(root: Node, repeat: float) -> list[StepFeatures]:
    size = sum(type_bytes(t) for t in root.types) + sum(type_bytes(t) for x in root.inputs for t in x.types)
    found = [StepFeatures({"opaque": 1.0, "opaque_elem": size / 4.0}, repeat=repeat)]
    trips = {"scan": float(dict(root.attrs).get("length") or 1), "while": float(WHILE_TRIPS)}.get(root.op, 1.0)
    for _, value in root.attrs:
        for body in value if isinstance(value, tuple) else (value,):
            if isinstance(body, Graph):
                found.extend(kernel_features(body, repeat=repeat * trips))
    return found


# ---- memory


def _traffic(counts: Counts, step: Step) -> float:
    """Count the traffic of a step by cache level; returns its bytes."""
    root = step.root
    written = float(type_bytes(root.types[0]))
    read = sum(
        touched * (type_bytes(leaf.types[0]) / max(1, elements(leaf)))
        for leaf, touched in step.touched.items()
        if leaf.op != "literal"
    )
    if root.op == "dynamic_update_slice":
        read = written = float(type_bytes(root.inputs[1].types[0]))
    near, far = _levels(read + written)
    for name, size in (("read", read), ("write", written)):
        counts[f"{name}_l2"] += size * near
        counts[f"{name}_l3"] += size * (1.0 - near) * (1.0 - far)
        counts[f"{name}_dram"] += size * (1.0 - near) * far
    if written > FRESH_BYTES:
        counts["fresh"] += written
    return read + written


def _levels(working_set: float) -> tuple[float, float]:
    """Share of the traffic that the second-level caches serve, and share of the rest that goes to memory."""
    facts = machine.describe()
    caches = dict(facts.caches_bytes)
    l2 = caches.get("L2", 1 << 20) * facts.cores
    l3 = caches.get("L3", 8 * l2)
    size = max(working_set, 1.0)
    return 1.0 / (1.0 + (size / l2) ** 2), 1.0 / (1.0 + (l3 / size) ** 2)
