"""Two programs as graphs over the same inputs: arguments are matched by position, stored tensors by value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from superopt.errors import InputError
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.program import map_nodes
from superopt.ir.text import show_type


@dataclass(frozen=True, slots=True)
class Shared:
    """Two programs over one set of inputs.

    Attributes:
        first, second: the programs; equal nodes are one.
        arrays: values of the stored tensors by their names here.
        names: name here -> its names in the two programs.
        given: inputs of each program -> the shared nodes that replace them.
    """

    first: Graph
    second: Graph
    arrays: Mapping[str, np.ndarray]
    names: Mapping[str, tuple[str, str]]
    given: tuple[Mapping[Node, Node], ...]


def arguments(graph: Graph) -> tuple[Node, ...]:
    """The inputs that the caller passes."""
    return tuple(n for n in graph.inputs if n["name"] not in graph.constants)


def differing_types(first: Graph, second: Graph) -> str:
    """The reason why types alone rule out that two programs are equal; empty where they do not."""
    for what, a, b in (("arguments", arguments(first), arguments(second)), ("results", first.outputs, second.outputs)):
        one, two = ([", ".join(map(show_type, n.types)) for n in nodes] for nodes in (a, b))
        if len(one) != len(two):
            return f"the first has {len(one)} {what}, the second {len(two)}"
        for i, (x, y) in enumerate(zip(one, two, strict=True)):
            if x != y:
                return f"{what} {i}: the first has {x}, the second {y}"
    return ""


def share(first: Graph, second: Graph) -> Shared:
    """Put both programs over the same inputs.

    Raises:
        InputError: their arguments differ, or a frozen input has no values.
    """
    why = differing_types(first, Graph(second.inputs, first.outputs, second.constants))
    if why:
        raise InputError(f"two programs of different arguments: {why}")
    live = [make_input(f"x{i}", n.shape, n.dtype) for i, n in enumerate(arguments(first))]
    arrays: dict[str, np.ndarray] = {}
    names: dict[str, list[str]] = {}
    graphs: list[Graph] = []
    images: list[Mapping[Node, Node]] = []
    for side, graph in enumerate((first, second)):
        given: dict[Node, Node] = dict(zip(arguments(graph), live, strict=True))
        stored: dict[Node, None] = {}
        for node in graph.inputs:
            if node not in given:
                array = np.asarray(graph.constants[node["name"]])
                given[node] = image = _stored(node, array)
                if image.op == "input":
                    stored[image] = None
                    arrays.setdefault(image["name"], array)
                    both = names.setdefault(image["name"], ["", ""])
                    both[side] = both[side] or node["name"]
        done = map_nodes(graph.outputs, given=given)
        images.append(given)
        graphs.append(Graph((*live, *stored), tuple(done[n] for n in graph.outputs)))
    return Shared(graphs[0], graphs[1], arrays, {k: (a, b) for k, (a, b) in names.items()}, tuple(images))


def _stored(node: Node, array: np.ndarray) -> Node:
    """A stored tensor named by a digest of its type and bytes; a constant tensor becomes its number."""
    bits = np.ascontiguousarray(array)
    if bits.size and bits.dtype.kind in "biuf":
        flat = bits.reshape(-1).view(f"V{bits.dtype.itemsize}")
        if (flat == flat[0]).all() and np.isfinite(bits.flat[0]):
            scalar = literal(bits.flat[0].item(), node.dtype)
            return mk("broadcast_in_dim", scalar, shape=node.shape, broadcast_dimensions=()) if node.shape else scalar
    digest = hashlib.sha256(f"{node.type}\0".encode())
    digest.update(bits.tobytes())
    return make_input(f"w{digest.hexdigest()[:32]}", node.shape, node.dtype, frozen=True)


__all__ = ["Shared", "arguments", "differing_types", "share"]
