"""Sorts in statements: what is known of an entry in order, and of its place.

A sort has no value at one index in the op table, so an equation `sort` or `top_k` is an opaque node.  The prover knows
those by one key: an entry of `sort` is one of the operand in ascending order, with NaN last and zeros of both signs
equal.  An operand that is carried along is read at the place where the key of that entry stands.  `top_k` has the
greatest entries first; it tells the signs of zeros and of NaN apart, so only those of numbers are in a sort's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.ir import opaque
from superopt.ir.algebra import Index, Reader
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.ops.record import Site
from superopt.ir.ops.table import lookup
from superopt.ir.program import map_nodes
from superopt.ir.types import FLOATS, INTEGERS, TensorType
from verifier.equal import conditions as c
from verifier.equal.conditions import unwrap
from verifier.equal.terms import ScalarTerm

PRIMITIVES = ("sort", "top_k")


@dataclass(frozen=True, slots=True)
class Sort:
    """One result of a sort by one key.

    Attributes:
        operands: the key, then what is carried along.
        result: the number of the result: 0 for the key in order.
        axis: the sorted axis.
        greatest: whether the greatest entries come first (`top_k`, whose second result is their places).
    """

    operands: tuple[Node, ...]
    result: int
    axis: int
    greatest: bool


def stated(graph: Graph) -> Graph:
    """The graph with the parameters of its sorts in place of their keys, which other processes do not know."""

    def change(_: Node, fresh: Node) -> Node:
        if fresh.op != "opaque" or fresh["primitive"] not in PRIMITIVES:
            return fresh
        params = opaque.params_of(fresh["params_key"])
        return (
            mk("opaque", *fresh.inputs, **{**dict(fresh.attrs), "params_key": json.dumps(params)}) if params else fresh
        )

    done = map_nodes(graph.outputs, change)
    return Graph(graph.inputs, tuple([done[x] for x in graph.outputs]), graph.constants)


def is_sort(node: Node) -> bool:
    """Whether an opaque node is a sort whose results the prover knows."""
    if node.op != "opaque" or node["primitive"] not in PRIMITIVES or not node["params_key"].startswith("{"):
        return False
    params = json.loads(node["params_key"])
    several = len(node.types) > 1 and node["primitive"] == "sort"  # of which the places have to be known
    return node.inputs[0].dtype in (*FLOATS, *INTEGERS) and (
        not several or (params["num_keys"] == 1 and params["is_stable"])
    )


def sort_of(node: Node) -> Sort | None:
    """The sort of which a node is a result; None for other nodes."""
    whole, number = (node.inputs[0], int(node["index"])) if node.op == "result" else (node, 0)
    if len(node.types) != 1 or not is_sort(whole):
        return None
    params, greatest = json.loads(whole["params_key"]), whole["primitive"] == "top_k"
    return Sort(whole.inputs, number, params["axis" if greatest else "dimension"], greatest)


def value_at(terms: Any, sort: Sort, index: Index, readers: Sequence[Reader], types: Sequence[TensorType]) -> Any:
    """The value of a result of a sort at an index.

    Args:
        terms: the algebra.
        sort: the result.
        index: the index.
        readers: values of the operands at an index.
        types: types of the operands, over symbols.
    """
    axis, kind = sort.axis, types[0]
    before, position, behind = index[:axis], index[axis], index[axis + 1 :]

    def entry(k: Any) -> ScalarTerm:
        return readers[0](*before, k, *behind)

    if sort.result == 0:
        return terms.in_order(kind.shape[axis], position, entry, kind.dtype, greatest=sort.greatest)
    place = _place(terms, sort, index, entry, kind)
    if sort.greatest or _counts(sort.operands[sort.result], axis):
        return place
    return readers[sort.result](*before, terms.to_index(place), *behind)


def _place(terms: Any, sort: Sort, index: Index, entry: Callable[..., ScalarTerm], kind: TensorType) -> ScalarTerm:
    """The place at which the key of an entry stands, as a number; of the first entry that of an extreme."""
    position, size = index[sort.axis], kind.shape[sort.axis]
    first = terms.known(c.eq(unwrap(position), 0))
    if first and (kind.dtype in INTEGERS or (not sort.greatest and terms.numbers(entry(position)))):
        rest = (*index[: sort.axis], *index[sort.axis + 1 :])
        op = lookup("argmax" if sort.greatest else "argmin")
        out = TensorType((*kind.shape[: sort.axis], *kind.shape[sort.axis + 1 :]), "int32")
        site = Site((kind,), out, {"axes": (sort.axis,), "index_dtype": "int32"})
        assert op.at is not None
        return op.at(terms, rest, [lambda *i: entry(i[sort.axis])], site)
    return terms.from_index(terms.place_in_order(size, position, entry, greatest=sort.greatest), "int32")


def _counts(node: Node, axis: int) -> bool:
    """Whether an operand holds the position along an axis."""
    return node.op == "iota" and node["dimension"] == axis and node.dtype == "int32"
