"""What a match sees of a graph: the ops of a class, and which of them only lay out a tensor differently."""

from __future__ import annotations

from typing import Any

import pytest

from rewrites.egraph.convert import import_into
from rewrites.egraph.graph import EGraph
from rewrites.match.space import VIEW, IRSpace, Joined, space_of
from superopt.ir.graph import Graph, Node, make_input, mk

X = make_input("x", (3, 4))
Y = mk("exp", X)


def in_graph(node: Node) -> dict[str, list[Any]]:
    graph: Any = EGraph()
    import_into(graph, Graph((X,), (node,)))
    space: Any = space_of(graph)
    return space.alternatives(space.child(graph.roots[0])[0])


def of_nodes(node: Node) -> dict[str, list[Any]]:
    return IRSpace((node,)).alternatives(node)


@pytest.mark.parametrize("seen", [in_graph, of_nodes])
@pytest.mark.parametrize(
    ("op", "attrs", "view"),
    [
        ("broadcast_in_dim", {"broadcast_dimensions": (0, 2), "shape": (3, 1, 4)}, True),
        ("broadcast_in_dim", {"broadcast_dimensions": (0, 2), "shape": (3, 2, 4)}, False),
        ("reshape", {"new_sizes": (4, 3)}, True),
        ("exp", {}, False),
    ],
)
def test_views_are_what_holds_the_same_elements(seen: Any, op: str, attrs: dict[str, Any], view: bool) -> None:
    assert (VIEW in seen(mk(op, Y, **attrs))) == view


@pytest.mark.parametrize("seen", [in_graph, of_nodes])
@pytest.mark.parametrize("parts", [2, 3])
def test_long_concatenations_are_first_and_rest_too(seen: Any, parts: int) -> None:
    found = seen(mk("concatenate", *[Y, X, Y][:parts], dimension=0))["concatenate"]
    rests = [a.children[1][0] for a in found if isinstance(a.children[1][0], Joined)]
    assert len(found) == parts - 1
    assert [len(rest.children) for rest in rests] == [2] * (parts - 2)
