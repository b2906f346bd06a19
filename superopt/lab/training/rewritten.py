"""Forms that a rule makes of a program: one rule wherever it applies, the rest unchanged, images channels last.

    grow    Grow an e-graph by the rules about products, convolutions and windows, without a clock.
    flip    Apply every instance of one of them on the program's own classes; macros are instances of one class.
    lay     Lay out operands and results of convolutions channels last, and propagate that.
    cut     Cut at values in memory, as a search cuts its forms.

A search prices regions of such forms.  It mixes rules and cuts elsewhere too, but its kernels are of these kinds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from costmodel.arrays import PerKernel
from rewrites.build.expander import library_expander
from rewrites.egraph import perm
from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.language.term import Rule, subterms
from superopt.candidates.candidate import Candidate
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.ops.table import CONVOLUTIONS
from superopt.machine.deadline import Deadline
from superopt.make.plain import cut
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.moves import Move, region
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.state import Problem, State

OWN = "own operations"  # in place of a rule: as they are, cut as a search cuts them
LIMITS = GrowthLimits(enodes=4_000, matches=2_000)
_HEAVY = frozenset({"dot", "conv", "win"})


class _Free:
    """An objective that prices nothing, since the cost of states does not matter here."""

    name = version = "free"

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Zero seconds for each kernel."""
        return np.zeros(len(kernels))


def of_products(rules: Sequence[Rule]) -> list[Rule]:
    """The rules that change or introduce products, convolutions or windows."""
    return [rule for rule in rules if any(term.op in _HEAVY for term in subterms((*rule.lhs, *rule.rhs)))]


def forms(graph: Graph, rules: Sequence[Rule]) -> Iterator[tuple[str, Candidate]]:
    """The program's own operations, and a form by each rule that applies anywhere, each with the name of the rule."""
    eg = import_graph(graph)
    own = {eg.find(ref) >> perm.PERM_BITS for ref in eg.imported}
    near = {cls for cls in own if not eg.frozen(cls << perm.PERM_BITS)}
    grow(eg, of_products(rules), LIMITS, near, Deadline())
    snapshot = Snapshot(eg)
    problem = Problem(snapshot, Pricer(_Free()), candidates(snapshot), in_kernels=True)
    lowering, expand = Lowering(problem.wants), library_expander(rules)
    instances = _instances(snapshot)
    for name in (OWN, *sorted(instances)):
        state = State(problem)
        done = [bool(move.options) and move.apply(state) is not None for move in _moves(state, instances.get(name, {}))]
        if name != OWN and not any(done):
            continue
        _lay(state)
        try:
            program, stored = lowering.lower_stored(state.choice(), graph, expand)
            yield name, cut(Candidate(name=name, program=program), program, stored)
        except SuperoptError:
            continue  # a macro that has no such layout: a search drops the form, too


def _instances(snapshot: Snapshot) -> dict[str, dict[object, dict[int, int]]]:
    """For each rule: instance -> class -> the option that it introduced there; macros go class by class."""
    instances: dict[str, dict[object, dict[int, int]]] = {}
    for c, row in enumerate(snapshot.options):
        for i, option in enumerate(row):
            if option.origin is not None:
                key = c if option.form.rule else ("step", option.origin.step)
                instances.setdefault(option.origin.rule, {}).setdefault(key, {}).setdefault(c, i)
    return instances


def _moves(state: State, instances: dict[object, dict[int, int]]) -> Iterator[Move]:
    """Instances with a class in use when their turn comes, each as one move of all its classes."""
    for members in instances.values():
        if any(state.readers[c] for c in members):
            yield Move(tuple(members.items()))


def _lay(state: State) -> None:
    """Lay out images channels last: at every convolution, spread through ops that carry an order over."""
    rng = random.Random(0)  # decides nothing where spreading never stops
    for c in state.active():
        option = state.chosen(c)
        if option.form.op in CONVOLUTIONS and state.readers[c]:
            batch, channels, *spatial = option.form.attrs["dimension_numbers"][2]
            layout = perm.compose(option.out, perm.intern((batch, *spatial, channels)))
            if layout in state.problem.candidates[c]:
                region(state, c, layout, rng, 0.0).apply(state)
