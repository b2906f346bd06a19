"""Search over whole programs, without an e-graph, as rewriting systems do, on the same rules and objective.

Programs live in one hash-consed arena (an e-graph in which nothing is ever united, so each class holds one op).  A
rewrite builds the right side and copies the spine up to the outputs.  The new program is then priced as a whole, in the
layouts it is written in and with channels last throughout, and keeps the cheaper.  So these methods get layouts for
free, since they do not search them.

    greedy        Apply the first rewrite that lowers the cost, until none does.
    backtracking  Search best-first over programs within 1.05 of the best (TASO).
    annealing     Apply a random rewrite at a random op, accepted by Metropolis' rule.

Conditions of rules that count the readers of a tensor see the readers in all programs of the arena.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from costmodel.model.objective import Objective
from rewrites.build.arrange import BuildError
from rewrites.build.terms import build
from rewrites.egraph import perm
from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph, ENode, LimitReachedError, Ref
from rewrites.grow.growth import grow, is_law
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.matching import matches
from superopt.errors import ShapeError
from superopt.ir.graph import Graph
from superopt.ir.ops.table import CONTROL, CONVOLUTIONS, ELEMENTWISE, PRODUCTS, WINDOWS
from superopt.machine.deadline import Deadline
from superopt.search.pricing import UNIT_S, Pricer
from superopt.search.snapshot import Forms, Snapshot
from superopt.search.starts import LocalCosts
from superopt.search.starts import greedy as extraction
from superopt.search.state import Problem, State

ALPHA = 1.05
_HOT, _COLD = 0.5, 0.002  # temperatures in units of the mean kernel cost
_FOLLOW = ELEMENTWISE | WINDOWS | {"slice", "pad", "concatenate", "rev"}
GraphRefs = tuple[Ref, ...]
Replacements = dict[int, Ref]  # class -> its replacement


@dataclass(slots=True)
class BestFound:
    """The best program of a method, with figures of its search."""

    state: State
    programs: int = 0
    finished: bool = False
    seconds: float = 0.0

    @property
    def predicted_s(self) -> float:
        """Time of the program by the objective."""
        return self.state.seconds


@dataclass(slots=True)
class Arena:
    """All programs seen, their states by outputs, and the rewrites of each."""

    graph: Graph
    rules: Sequence[Rule]
    objective: Objective
    seconds: float
    eg: EGraph = field(init=False)
    began: float = field(init=False)
    pricer: Pricer = field(init=False)
    forms: Forms = field(default_factory=Forms)
    costs: dict[GraphRefs, int] = field(default_factory=dict[GraphRefs, int])
    changes: dict[int, list[Replacements]] = field(default_factory=dict[int, list[Replacements]])
    shared: Problem | None = None

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.eg = import_graph(self.graph)
        self.eg.deadline = Deadline.within(self.seconds)
        self.pricer = Pricer(self.objective)
        self.rules = [rule for rule in self.rules if not is_law(rule)]

    @property
    def original(self) -> GraphRefs:
        """The program itself."""
        return tuple(self.eg.roots)

    def over(self) -> bool:
        """Whether the time is used up."""
        return time.perf_counter() - self.began >= self.seconds

    def cost(self, program: GraphRefs) -> int:
        """Price of a program in units of the search."""
        cost = self.costs.get(program)
        if cost is None:
            cost = self.costs[program] = self.state(program).cost
        return cost

    def state(self, program: GraphRefs) -> State:
        """The program as a state of a search that has no choice, in the cheaper of the two global layouts."""
        self.eg.roots = list(program)
        state = better_layout(Snapshot(self.eg, self.forms), self.pricer, like=self.shared)
        self.shared = state.problem
        return state

    def result(self, best: GraphRefs, *, finished: bool) -> BestFound:
        """The result of a method."""
        seconds = time.perf_counter() - self.began
        return BestFound(self.state(best), len(self.costs), finished, seconds)

    # ---- rewrites

    def live(self, program: GraphRefs) -> list[int]:
        """Ops of the program that are not computed ahead of time."""
        self.eg.roots = list(program)
        return sites.live_classes(self.eg)

    def rewrites(self, program: GraphRefs, classes: Sequence[int]) -> Iterator[GraphRefs]:
        """Every program one rewrite away, at some of the program's ops."""
        live = set(self.live(program))
        for cls in classes:
            changes = self.changes.get(cls)
            if changes is None:
                (node,) = self.eg.enodes(cls)
                rules = [r for r in self.rules if self.eg.op_of(node) in r.heads]
                changes = self.changes[cls] = [change for rule in rules for change in self._changes(rule, cls, node)]
            for change in changes:
                if live.issuperset(change):
                    rewritten = self.substitute(program, change)
                    if rewritten is not None and rewritten != program:
                        yield rewritten

    def _changes(self, rule: Rule, cls: int, node: ENode) -> Iterator[Replacements]:
        """Changes that a rule makes at a class; cached, since classes of the arena never change."""
        eg = self.eg
        here = cls << perm.PERM_BITS
        if rule.mode == "macro":
            if any(True for _ in matches(rule, eg, here)):
                attrs = (("attrs", eg.attrs_of(node)), ("op", eg.op_of(node)), ("rule", rule.name))
                yield {cls: _turned(eg.insert("macro", attrs, node[1:]), eg.ref_of(node))}
            return
        for match in list(matches(rule, eg, here)):
            roots = [root for root, _ in match.roots]
            try:
                values = build(match, eg)
            except (BuildError, ShapeError):
                continue
            change = {eg.find_class(r): _turned(v, eg.find(r)) for r, v in zip(roots, values, strict=True)}
            if len(change) == len(roots):
                yield change

    def substitute(self, program: GraphRefs, change: Replacements) -> GraphRefs | None:
        """The program with classes replaced; None where a right side reads the class that it replaces."""
        eg = self.eg
        new: dict[int, Ref] = dict(change)
        stack = [root >> perm.PERM_BITS for root in program]
        done: set[int] = set(change)
        while stack:
            cls = stack[-1]
            if cls in done:
                stack.pop()
                continue
            if eg.frozen(cls << perm.PERM_BITS):
                done.add(cls)
                continue
            (node,) = eg.enodes(cls)
            kids = [eg.find(x) for x in node[1:]]
            missing = [x >> perm.PERM_BITS for x in kids if x >> perm.PERM_BITS not in done]
            if missing:
                stack.extend(missing)
                continue
            done.add(cls)
            if any(x >> perm.PERM_BITS in new for x in kids):
                moved = [_at(new, x) for x in kids]
                op, attrs = eg.op_of(node), eg.attrs_of(node)
                try:
                    ref = eg.insert(op, attrs, moved) if op == "macro" else eg.add_node(op, moved, attrs)
                except ShapeError:
                    return None
                new[cls] = _turned(ref, eg.ref_of(node))
        return tuple(eg.find(_at(new, root)) for root in program)


def _at(new: Mapping[int, Ref], ref: Ref) -> Ref:
    """A reference after replacement: the replacement of its class, transposed alike."""
    target = new.get(ref >> perm.PERM_BITS)
    if target is None:
        return ref
    turn = ref & perm.PERM_MASK
    return target & ~perm.PERM_MASK | perm.compose(target & perm.PERM_MASK, turn)


def _turned(value: Ref, known: Ref) -> Ref:
    """The class of `known` in its natural order, where `value` equals `known`."""
    return value & ~perm.PERM_MASK | perm.compose(value & perm.PERM_MASK, perm.inverse(known & perm.PERM_MASK))


def better_layout(
    snapshot: Snapshot, pricer: Pricer, selection: Sequence[int] | None = None, like: Problem | None = None
) -> State:
    """A selection in the layouts that it is written in, or with channels last throughout, whichever is cheaper.

    `like` is a problem over the same forms whose prices are shared.
    """
    selection = selection or [0] * snapshot.size
    last = channels_last(snapshot, selection)
    candidates = [[home, *{lies} - {home}] for home, lies in zip(snapshot.home, last, strict=True)]
    problem = Problem(snapshot, pricer, candidates)
    if like is not None:
        problem.memo = like.memo
    return min((State(problem, selection), State(problem, selection, last)), key=lambda state: state.cost)


def channels_last(snapshot: Snapshot, selection: Sequence[int]) -> list[int]:
    """The layouts of a selection with image channels as the last axis, through all ops that carry an order over."""
    channel: dict[int, int] = {}
    layouts = list(snapshot.home)
    for c in sorted(range(snapshot.size), key=lambda c: (snapshot.component[c], c)):
        option = snapshot.options[c][selection[c]]
        form = option.form
        if len(form.shape) != 4 or form.op == "input" or form.op in CONTROL:
            continue
        axis: int | None = None
        if form.op in CONVOLUTIONS:
            axis = form.attrs["dimension_numbers"][2][1]
        elif form.op in PRODUCTS:
            axis = 3
        elif form.op in _FOLLOW:
            for position, k, p in option.live:
                if k in channel and len(form.shapes[position]) == 4:
                    axis = perm.perm_of(perm.inverse(p), 4)[channel[k]]
                    break
        if axis is not None:
            channel[c] = perm.perm_of(option.out, 4)[axis]
            layouts[c] = perm.intern((*(a for a in range(4) if a != channel[c]), channel[c]))
    return layouts


# ---- methods


def greedy(arena: Arena, seed: int) -> BestFound:
    """First improvement over whole programs, op after op, until a pass over all ops improves nothing."""
    best, finished = arena.original, False
    try:
        while not finished:
            before = best
            live = set(arena.live(best))
            for cls in sorted(live):
                for candidate in arena.rewrites(best, [cls] if cls in live else ()):
                    if arena.over():
                        return _unlimited(arena).result(best, finished=False)
                    if arena.cost(candidate) < arena.cost(best):
                        best, live = candidate, set(arena.live(candidate))
                        break
            finished = best == before
    except LimitReachedError:
        finished = False
    return _unlimited(arena).result(best, finished=finished)


def backtracking(arena: Arena, seed: int) -> BestFound:
    """Best-first over programs that cost at most `ALPHA` times the best."""
    best = arena.original
    seen, count = {best}, 0
    queue = [(arena.cost(best), 0, best)]
    try:
        while queue and not arena.over():
            _, _, program = heapq.heappop(queue)
            for candidate in arena.rewrites(program, arena.live(program)):
                if arena.over():
                    break
                if candidate in seen:
                    continue
                seen.add(candidate)
                count += 1
                if arena.cost(candidate) < arena.cost(best):
                    best = candidate
                if arena.cost(candidate) < ALPHA * arena.cost(best):
                    heapq.heappush(queue, (arena.cost(candidate), count, candidate))
    except LimitReachedError:
        return _unlimited(arena).result(best, finished=False)
    return _unlimited(arena).result(best, finished=not queue)


def annealing(arena: Arena, seed: int) -> BestFound:
    """Simulated annealing over whole programs, with Metropolis' rule."""
    rng = random.Random(seed)
    program = best = arena.original
    unit = arena.cost(best) / max(1, sum(1 for cost in arena.state(best).kernel_cost if cost))
    try:
        live = arena.live(program)
        while not arena.over():
            spent = (time.perf_counter() - arena.began) / arena.seconds
            choices = list(arena.rewrites(program, [rng.choice(live)]))
            if not choices:
                continue
            candidate = rng.choice(choices)
            rise = arena.cost(candidate) - arena.cost(program)
            if rise <= 0 or rng.random() < math.exp(-rise / (unit * _HOT * (_COLD / _HOT) ** spent)):
                program, live = candidate, arena.live(candidate)
                best = min(best, program, key=arena.cost)
    except LimitReachedError:
        pass
    return _unlimited(arena).result(best, finished=False)


def additive(graph: Graph, rules: Sequence[Rule], objective: Objective, seconds: float) -> BestFound:
    """Greedy extraction from the saturated e-graph: each class takes the option of least additive cost."""
    began = time.perf_counter()
    eg, pricer = import_graph(graph), Pricer(objective)
    report = grow(eg, [r for r in rules if r.mode != "near"], deadline=Deadline.within(seconds))
    snapshot = Snapshot(eg)
    local = LocalCosts(Problem(snapshot, pricer, [[home] for home in snapshot.home]))
    local.price_everything()
    state = better_layout(snapshot, pricer, extraction(local))
    return BestFound(state, 1, report.stop == "saturated", time.perf_counter() - began)


def _unlimited(arena: Arena) -> Arena:
    arena.eg.deadline = None
    return arena


METHODS = {"greedy": greedy, "backtracking": backtracking, "annealing": annealing}

__all__ = ["METHODS", "UNIT_S", "Arena", "BestFound", "additive", "better_layout", "channels_last"]
