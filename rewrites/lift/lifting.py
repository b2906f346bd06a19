"""From two graphs over symbolic sizes to a rule over named axes.

Both graphs are walked from shared labels on the axes of their results with the matcher's own `flow`: labels that meet
at an input are one axis.  What remains distinct becomes a role, and the walk prints the terms.  `flow` works on
numbers, so every size name stands for a prime of its own; attributes are printed from the symbolic graph.

The text speaks of single axes.  `widen` makes roles stand for groups of axes, wherever the text still parses and a
given judge (the prover) accepts it.  Where axes do not nest, where one tensor would hold a label twice (its diagonal),
or where an op has no place in the language, there is no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.lift.show import Lifted, Printer
from rewrites.lift.walk import GraphWalk, Unliftable
from superopt.errors import RuleError
from superopt.ir.graph import Graph
from superopt.ir.index import Poly

__all__ = ["Lifted", "Unliftable", "lift", "widen"]


def widen(lifted: Lifted, accepts: Callable[[Rule], bool], where: str = "<lifted>") -> Rule | None:
    """The most general rule that is accepted, or None where the text as lifted is not."""

    def tried(many: Sequence[str]) -> Rule | None:
        try:
            made = parse(lifted.text(many), where)
        except RuleError:
            return None
        return made if accepts(made) else None

    best = tried(lifted.roles)
    if best is not None:
        return best
    best, many = tried(()), list[str]()
    if best is None:
        return None
    for role in lifted.roles:
        wider = tried([*many, role])
        if wider is not None:
            best, many = wider, [*many, role]
    return best


def lift(name: str, left: Graph, right: Graph, sizes: Sequence[str], premises: Sequence[Poly] = ()) -> Lifted:
    """The statement `left == right` as a rule over single axes.

    Args:
        name: of the rule.
        left, right: graphs with the same inputs over the same size symbols.
        sizes: names of the symbols.
        premises: polynomials of sizes that are at least 0.

    Raises:
        Unliftable: it is none.
    """
    if left.constants or right.constants:
        raise Unliftable("an array that a function closes over")
    walk = GraphWalk(sizes)
    sides: list[list[Any]] = []
    roots = [walk.fresh(node) for node in left.outputs]
    for graph in (left, right):
        small = walk.concrete(graph)
        sides.append([walk.term(a, b, lay) for a, b, lay in zip(graph.outputs, small.outputs, roots, strict=True)])
    if not walk.labels.distinct():
        raise Unliftable("the sides agree only if two axes of one tensor are the same axis")
    made = Printer(walk, name, [x["name"] for x in left.inputs]).lifted(sides, premises)
    kinds = {x.dtype for graph in (left, right) for x in graph.nodes()} - {"bool"}
    return replace(made, integers=bool(kinds) and all(k.startswith(("int", "uint")) for k in kinds))
