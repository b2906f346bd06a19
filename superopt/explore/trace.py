"""The plan of a program that a search found: the rule instances on which its equality with the original rests.

The e-graph explains every e-node that the program uses (`rewrites.grow.proof`).  A macro counts as an instance of its
rule at the node that it stands for.
"""

from __future__ import annotations

from typing import Any

from rewrites.build.expander import plain_op
from rewrites.egraph.enode import Ref
from rewrites.grow.proof import ClassPair, ProvingEGraph
from rewrites.language.show import show
from rewrites.language.term import Rule
from rewrites.match.matching import Match, matches
from rewrites.match.space import IRSpace
from superopt.certify.plan import Plan, RuleInstance, empty_plan
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.program import Program, replace
from superopt.search.search import Finalist
from superopt.search.snapshot import SHIFT, frozen_leaf


def make_plan(found: Exploration, finalist: Finalist, numerics: str = "real") -> Plan:
    """The plan of a finalist."""
    eg = found.result.problem.snapshot.eg
    if not isinstance(eg, ProvingEGraph):
        return empty_plan(found.imported, numerics, "the e-graph kept no proofs")
    terms: dict[Node, int] = {}
    by_name = {rule.name: rule for rule in found.rules}
    instances: list[RuleInstance] = []
    for step in eg.explain(_pairs(eg, found, finalist)):
        instances.append(rule_instance(step.match, {v: eg.term(ref) for v, (ref, _) in step.match.vars.items()}, terms))
    for node in topological(whole(found.result.program(finalist, found.graph))):
        if node.op == "macro":
            match = _macro(by_name[node["rule"]], node)
            instances.append(rule_instance(match, {v: x for v, (x, _) in match.vars.items()}, terms))
    used = {i.rule: show(by_name[i.rule]) for i in instances}
    graph = Graph(found.graph.inputs, tuple(terms), found.graph.constants)
    return Plan(numerics, used, graph, tuple(instances), found.bodies, found.loops)


def whole(program: Program) -> tuple[Node, ...]:
    """The outputs of a program over its live and frozen inputs, with prepared tensors replaced by their definitions."""
    if program.prepare is None:
        return program.hot.outputs
    return replace(program.hot.outputs, dict(zip(program.prepared_inputs, program.prepare.outputs, strict=True)))


def _pairs(eg: ProvingEGraph, found: Exploration, finalist: Finalist) -> list[ClassPair]:
    """The equalities that the program relies on: each e-node that it uses paired with its class."""
    snapshot, lowering = found.result.problem.snapshot, found.result.lowering
    state = found.result.state(finalist)
    pairs: list[ClassPair] = [(ref >> SHIFT, eg.find(ref) >> SHIFT) for ref in (*eg.roots, *eg.inputs.values())]
    frozen: dict[int, None] = {}

    def leaf(ref: Ref) -> None:
        with eg.logged() as log:
            stored = frozen_leaf(eg, ref)
        pairs.extend(log)
        if stored.value is None:
            frozen[eg.find(stored.source) >> SHIFT] = None

    for c in state.active():
        enode = state.chosen(c).enode
        pairs += eg.selected(enode)
        pairs.append((snapshot.class_ids[c], eg.find(snapshot.class_ids[c] << SHIFT) >> SHIFT))
        for child, known in zip(enode[1:], state.chosen(c).frozen, strict=True):
            if known is not None:
                leaf(child)
    for ref, root in zip(eg.roots, snapshot.roots, strict=True):
        if root.leaf is not None:
            leaf(ref)
    todo, seen = list(frozen), set[int]()
    while todo:
        cls = todo.pop()
        if cls not in seen:
            seen.add(cls)
            enode = lowering.frozen.choice(cls)
            pairs += eg.selected(enode)
            todo += [eg.find(x) >> SHIFT for x in enode[1:]]
    return pairs


def _macro(rule: Rule, node: Node) -> Match:
    return next(matches(rule, IRSpace(verbatim=True), plain_op(node), prefer=False))


def rule_instance(match: Match, tensors: dict[str, Node], terms: dict[Node, int]) -> RuleInstance:
    """A match as plain data; adds new terms that its variables stand for to `terms` with their numbers."""
    env = match.env

    def entries(table: dict[tuple[str, Any], Any]) -> tuple[tuple[str, int, int], ...]:
        return tuple((name, int(label), int(n)) for (name, label), n in table.items())

    return RuleInstance(
        rule=match.rule.name,
        labels={role: tuple(int(x) for x in labels) for role, labels in env.labels.items()},
        sizes=entries(env.tok),
        attributes=entries(env.attr),
        parameters={k: int(v) for k, v in env.params.items()},
        tensors={v: (terms.setdefault(node, len(terms)), match.vars[v][1]) for v, node in tensors.items()},
        metas={k: (op, tuple(attrs)) for k, (op, attrs) in match.metas.items()},
        dtype=match.dtype,
        carried=match.carried,
        roots=tuple(lay for _, lay in match.roots),
    )
