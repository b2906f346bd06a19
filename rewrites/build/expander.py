"""What macro nodes stand for, by the rules of a library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from rewrites.build.terms import expand_macro
from rewrites.language.term import Rule
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.program import hot_part, map_nodes

Expand = Callable[[Node], Node]


def library_expander(rules: Iterable[Rule]) -> Expand:
    """An expander over the macro rules among `rules`; what it made of a node is remembered, as kernels share many."""
    by_name = {rule.name: rule for rule in rules if rule.mode == "macro"}

    @cache
    def expanded(node: Node) -> Node:
        return expand_macro(by_name[node["rule"]], plain_op(node))

    return expanded


def plain_op(node: Node) -> Node:
    """The op that a macro stands for: the left side of its rule, here."""
    return mk(node["op"], *node.inputs, **dict(node["attrs"]))


def expand_macros(roots: Iterable[Node], expand: Expand) -> tuple[Node, ...]:
    """The roots with every macro node replaced by what `expand` makes of it (over expanded operands)."""
    roots = tuple(roots)
    done = map_nodes(roots, lambda _, fresh: expand(fresh) if fresh.op == "macro" else fresh)
    return tuple(done[root] for root in roots)


def expand_graph(graph: Graph, expand: Expand) -> Graph:
    """The graph with its macros expanded, and what they compute of frozen inputs alone done ahead of time."""
    if all(node.op != "macro" for node in graph.nodes()):
        return graph
    return hot_part(Graph(graph.inputs, expand_macros(graph.outputs, expand), graph.constants))
