"""Removes control flow where possible: branches become choices, loops of few known steps are unrolled."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.graph import Graph, Node, literal, mk
from superopt.ir.index import Poly
from superopt.ir.program import map_nodes, replace

STEPS = 16
"""Most steps of a loop that is unrolled."""


def inline(graph: Graph) -> Graph:
    """Return the graph without `cond`, and without `scan` of at most `STEPS` steps; bodies included."""
    results: dict[Node, tuple[Node, ...]] = {}

    def change(node: Node, fresh: Node) -> Node:
        if node.op == "result":
            parts = results.get(node.inputs[0])
            return fresh if parts is None else parts[int(node["index"])]
        made = _inlined(fresh)
        if made is None:
            return fresh
        results[node] = made
        return made[0] if len(node.types) == 1 else fresh

    done = map_nodes(graph.outputs, change)
    return Graph(graph.inputs, tuple([done[x] for x in graph.outputs]), graph.constants)


def _inlined(node: Node) -> tuple[Node, ...] | None:
    if node.op == "cond":
        return _choice(node, node.inputs)
    if node.op == "scan" and isinstance(node["length"], int) and node["length"] <= STEPS and not _rows(node):
        return steps(node, node.inputs)
    return None


def _rows(node: Node) -> bool:
    """Whether the loop takes or returns a symbolic number of rows."""
    return any(t.shape and isinstance(t.shape[0], Poly) for t in node.types[node["num_carry"] :])


def _called(body: Graph, xs: Sequence[Node]) -> tuple[Node, ...]:
    body = inline(body)
    return replace(body.outputs, dict(zip(body.inputs, xs, strict=True)))


def _choice(node: Node, xs: Sequence[Node]) -> tuple[Node, ...]:
    index, *operands = xs
    sides = [_called(branch, operands) for branch in node["branches"]]
    if index.dtype != "bool":
        low, high = (literal(n, index.dtype) for n in (0, len(sides) - 1))
        index = mk("clamp", low, index, high)
        if len(sides) == 2:
            index = mk("gt", index, literal(0, index.dtype))
    if len(sides) == 1:
        return sides[0]
    return tuple([mk("select_n", index, *cases) for cases in zip(*sides, strict=True)])


def steps(node: Node, xs: Sequence[Node]) -> tuple[Node, ...]:
    """Return the results of a `scan` on these operands as its steps, one after the other."""
    consts, carries, length = node["num_consts"], node["num_carry"], node["length"]
    fixed, carry, rows = list(xs[:consts]), list(xs[consts : consts + carries]), xs[consts + carries :]
    parts: list[list[Node]] = [[] for _ in node.types[carries:]]
    for t in reversed(range(length)) if node["reverse"] else range(length):
        results = _called(node["body"], [*fixed, *carry, *(_row(x, t) for x in rows)])
        carry = list(results[:carries])
        for part, value in zip(parts, results[carries:], strict=True):
            part.append(mk("reshape", value, new_sizes=(1, *value.shape)))
    stacked: list[Node] = []
    for part, kind in zip(parts, node.types[carries:], strict=True):
        ordered = part[::-1] if node["reverse"] else part
        if not ordered:
            empty = literal(0, kind.dtype)
            stacked.append(mk("broadcast_in_dim", empty, shape=kind.shape, broadcast_dimensions=()))
        else:
            stacked.append(ordered[0] if len(ordered) == 1 else mk("concatenate", *ordered, dimension=0))
    return (*carry, *stacked)


def _row(x: Node, t: int) -> Node:
    """Return row t of a tensor."""
    start, limit = [t] + [0] * (x.type.rank - 1), [t + 1, *x.shape[1:]]
    row = mk("slice", x, start_indices=start, limit_indices=limit)
    return mk("reshape", row, new_sizes=x.shape[1:])
