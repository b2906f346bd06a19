"""Values that need no memory of their own: elements of another value that lie one after the other, or one number."""

from __future__ import annotations

import math

from superopt.ir.graph import Node


def begins_at(node: Node) -> int | None:
    """Return the element of its operand at which a node begins whose elements lie there in order; None elsewhere."""
    if node.op in ("reshape", "barrier"):
        return 0
    if node.op == "transpose":
        moved = [axis for axis in node["permutation"] if node.inputs[0].shape[axis] != 1]
        return 0 if moved == sorted(moved) else None
    if node.op == "broadcast_in_dim":
        return 0 if math.prod(node.shape) == math.prod(node.inputs[0].shape) else None
    return _sliced_at(node) if node.op == "slice" else None


def _sliced_at(node: Node) -> int | None:
    """Return where a slice begins that takes whole rows, or parts of one, without gaps."""
    sizes: tuple[int, ...] = node.inputs[0].shape  # pyright: ignore[reportAssignmentType] (sizes are concrete here)
    taken = [axis for axis, size in enumerate(node.shape) if size != 1]
    split = taken[0] if taken else len(sizes)
    if any(node.shape[axis] != sizes[axis] for axis in range(split + 1, len(sizes))):
        return None
    if split < len(sizes) and node["strides"][split] != 1:
        return None
    return sum([int(start) * math.prod(sizes[axis + 1 :]) for axis, start in enumerate(node["start_indices"])])


def repeated(node: Node) -> bool | int | float | None:
    """Return the number that every element of a node is, 0 where there are none; None where they may differ."""
    if len(node.types) == 1 and 0 in node.shape:
        return 0
    while node.op in ("broadcast_in_dim", "reshape", "transpose", "slice"):
        (node,) = node.inputs
    return node["value"] if node.op == "literal" else None


def needs_memory(node: Node) -> bool:
    """Whether a node is neither of the two."""
    return begins_at(node) is None and repeated(node) is None
