"""Expansion of macro nodes: each is replaced by the right side of its macro rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from rewrites.build.terms import expand_macro
from rewrites.language.term import Rule
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.program import hot_part, map_nodes

Expand = Callable[[Node], Node]


def library_expander(rules: Iterable[Rule]) -> Expand:
    """Return a function that expands macro nodes by the macro rules among `rules`.

    Expansions are cached per node, since kernels share many nodes.
    """
    by_name = {rule.name: rule for rule in rules if rule.mode == "macro"}

    @cache
    def expanded(node: Node) -> Node:
        return expand_macro(by_name[node["rule"]], plain_op(node))

    return expanded


def plain_op(node: Node) -> Node:
    """The op that a macro node stands for: the left side of its rule, at this node's operands and attributes."""
    return mk(node["op"], *node.inputs, **dict(node["attrs"]))


def expand_macros(roots: Iterable[Node], expand: Expand) -> tuple[Node, ...]:
    """The roots with every macro node replaced by its expansion, operands first."""
    roots = tuple(roots)
    done = map_nodes(roots, lambda _, fresh: expand(fresh) if fresh.op == "macro" else fresh)
    return tuple(done[root] for root in roots)


def expand_graph(graph: Graph, expand: Expand) -> Graph:
    """The graph with its macros expanded and the parts that depend on frozen inputs alone computed ahead of time."""
    if all(node.op != "macro" for node in graph.nodes()):
        return graph
    return hot_part(Graph(graph.inputs, expand_macros(graph.outputs, expand), graph.constants))
