"""Starting points of a search: the program itself, the additive greedy choice, and a dynamic program over layouts.

The dynamic program finds, bottom-up, the cheapest option for every (class, layout) when each operand is read from
memory.  Its cost = the option's own kernel + transposes of operands that do not lie as wanted + cost of the operands.
An additive cost counts a shared operand once per reader, hence exponentially often along residual connections.  *Cuts*
avoid that: a class that no edge of the class graph jumps over is paid exactly once by every selection.  So its readers
add only its potential, the cost in this layout over that in its cheapest.

Additive choices are blind to sharing and may lose to the original: they are starts, never answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rewrites.egraph import perm
from superopt.ir.graph import Node
from superopt.machine.deadline import HALF
from superopt.search.emit import alone, transpose_node
from superopt.search.graphs import cheapest
from superopt.search.meter import Meter
from superopt.search.pricing import Pricer, fused_part
from superopt.search.snapshot import Option, Snapshot
from superopt.search.state import Problem, Record, State
from superopt.search.strategy import Ground

DYNAMIC = {"dynamic": False, "dynamic-cut": True}
"""Dynamic program -> whether shared operands are paid once at cuts."""
LEAST = 1e6  # one nanosecond: every choice costs something, so that additive choices stay acyclic


@dataclass(frozen=True, slots=True)
class Realization:
    """One way to realise an option in a layout: its kernel, and each operand's wanted order and layout."""

    node: Node | None
    kids: tuple[tuple[int, int, int | None], ...]  # (class, wanted order, layout it lies in or None for any)


class LocalCosts:
    """Prices of single options as kernels of their own."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.snapshot: Snapshot = problem.snapshot
        self.pricer: Pricer = problem.pricer
        self._rows: dict[tuple[int, int, int], list[Realization]] = {}
        self._moves: dict[tuple[Any, ...], Node | None] = {}

    def rows(self, c: int, i: int, layout: int) -> list[Realization]:
        """The ways to realise an option with its result in a layout."""
        key = (c, i, layout)
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = self._make_rows(self.snapshot.options[c][i], layout)
        return known

    def _make_rows(self, option: Option, layout: int) -> list[Realization]:
        wants = self.problem.wants
        d = perm.compose(option.out_inverse, layout)
        if not option.needs_current:
            number, orders = wants.fixed(option.fid, d)
            kids = tuple((k, perm.compose(p, orders[position]), None) for position, k, p in option.live)
            return [Realization(alone(self.snapshot.forms, number), kids)]
        classes = list(dict.fromkeys(option.kids))
        out: list[Realization] = []
        for lies in itertools.product(*(self.problem.candidates[k] for k in classes)):
            of = dict(zip(classes, lies, strict=True))
            number, orders = wants.following(option, d, of)
            kids = tuple((k, perm.compose(p, orders[position]), of[k]) for position, k, p in option.live)
            out.append(Realization(alone(self.snapshot.forms, number), kids))
        return out

    def move(self, c: int, lies: int, want: int) -> Node | None:
        """The kernel that transposes a class from one layout to an order."""
        if lies == want:
            return None
        key = (self.snapshot.shapes[c], self.snapshot.dtypes[c], lies, want)
        if key not in self._moves:
            self._moves[key] = transpose_node(self.snapshot, c, lies, want)
        return self._moves[key]

    def price_everything(self, meter: Meter | None = None) -> None:
        """Request the prices of all rows and all transposes, the program's own first, until the meter is half spent.

        A kernel without a price is one that no start chooses.
        """
        until = None if meter is None else meter.until(HALF)
        own = self.snapshot.original()
        rows = (self.rows(c, own[c], self.problem.home[c]) for c in range(self.snapshot.size))
        self.pricer.price(entry.node for row in rows for entry in row if entry.node is not None)
        wanted: dict[Node, None] = {}
        for c, row in enumerate(self.snapshot.options):
            for i in range(len(row)):
                for layout in self.problem.candidates[c]:
                    for entry in self.rows(c, i, layout):
                        if entry.node is not None:
                            wanted[entry.node] = None
                        for k, want, lies in entry.kids:
                            if self.snapshot.dtypes[k] == "tuple":
                                continue
                            for have in self.problem.candidates[k] if lies is None else (lies,):
                                node = self.move(k, have, want)
                                if node is not None:
                                    wanted[node] = None
        self.pricer.price(wanted, until)

    def price(self, node: Node | None) -> float:
        """Price of a kernel in units, infinite for one that there was no time to price."""
        return 0.0 if node is None else float(self.pricer.by_node.get(node, math.inf))

    def own(self, option: Option, node: Node | None) -> float:
        """Additive cost of an option: its kernel, discounted where it would be fused."""
        return self.price(node) * fused_part(option.form) + LEAST


def greedy(local: LocalCosts) -> list[int]:
    """Additive extraction in the layouts of the program."""
    rows = local.snapshot.options

    def cost(c: int, i: int) -> float:
        return local.own(rows[c][i], local.rows(c, i, local.problem.home[c])[0].node)

    chosen, _ = cheapest([[option.kids for option in row] for row in rows], cost)
    return [0 if choice is None else choice for choice in chosen]


def cuts(snapshot: Snapshot) -> list[bool]:
    """Classes that no edge of the class graph jumps over, in an order that puts children first."""
    order = sorted(range(snapshot.size), key=lambda c: (snapshot.component[c], c))
    place = {c: i for i, c in enumerate(order)}
    over = [0] * (snapshot.size + 1)
    for c, row in enumerate(snapshot.options):
        for k in {k for option in row for k in option.kids}:
            low, high = sorted((place[k], place[c]))
            if high - low > 1:
                over[low + 1] += 1
                over[high] -= 1
    out = [False] * snapshot.size
    for i, jumping in enumerate(itertools.accumulate(over[: snapshot.size])):
        c = order[i]
        out[c] = jumping == 0 and snapshot.component_size[snapshot.component[c]] == 1
    return out


def dynamic(local: LocalCosts, base: Sequence[int], *, cut: bool) -> tuple[list[int], list[int]]:
    """Selection and layouts of the dynamic program; classes it does not reach take the choice of `base`."""
    snapshot, candidates = local.snapshot, local.problem.candidates
    is_cut = cuts(snapshot) if cut else [False] * snapshot.size
    best: list[dict[int, float]] = [dict.fromkeys(candidates[c], math.inf) for c in range(snapshot.size)]
    pick: list[dict[int, tuple[int, tuple[tuple[int, int], ...]]]] = [{} for _ in range(snapshot.size)]
    order = sorted(range(snapshot.size), key=lambda c: (snapshot.component[c], c))

    def entry_cost(c: int, lies: int) -> float:
        value = best[c][lies]
        return value - min(best[c].values()) if is_cut[c] and value < math.inf else value

    def kid_cost(c: int, want: int, lies: int) -> float:
        move = 0.0 if snapshot.dtypes[c] == "tuple" else local.price(local.move(c, lies, want))
        return entry_cost(c, lies) + move

    def improve(c: int) -> bool:
        changed = False
        for i, option in enumerate(snapshot.options[c]):
            for layout in candidates[c]:
                for row in local.rows(c, i, layout):
                    total = local.own(option, row.node)
                    kids: list[tuple[int, int]] = []
                    for k, want, lies in row.kids:
                        if lies is None:
                            lies = min(candidates[k], key=lambda l: kid_cost(k, want, l))
                        total += kid_cost(k, want, lies)
                        kids.append((k, lies))
                        if total >= best[c][layout]:
                            break
                    if total < best[c][layout] * (1 - 1e-9):
                        best[c][layout], pick[c][layout] = total, (i, tuple(kids))
                        changed = True
        return changed

    for _, members in itertools.groupby(order, key=lambda c: snapshot.component[c]):
        group = list(members)
        rounds = 1 if len(group) == 1 else 2 * len(group)
        for _ in range(rounds):
            if not sum(improve(c) for c in group):
                break
    selection = list(base)
    layouts = [min(best[c], key=lambda l: (best[c][l], l != local.problem.home[c])) for c in range(snapshot.size)]
    seen: dict[int, None] = dict.fromkeys(sorted(snapshot.returned))
    queue = list(seen)
    for c in queue:
        if layouts[c] not in pick[c]:
            continue
        selection[c], kids = pick[c][layouts[c]]
        for k, lies in kids:
            if k not in seen:
                seen[k] = None
                layouts[k] = lies
                queue.append(k)
    return (selection if snapshot.is_acyclic(selection) else list(base)), layouts


class Starts:
    """The additive choices: greedy, and the dynamic programs without and with cuts; a step makes one of them."""

    def __init__(self, ground: Ground, meter: Meter) -> None:
        self.problem, self.meter, self.local = ground.problem, meter, LocalCosts(ground.problem)
        self.made: dict[str, Record] = {}

    def done(self) -> bool:
        """Whether all are made; they are even where the time is over."""
        return len(self.made) == 1 + len(DYNAMIC)

    def step(self) -> None:
        """Price the local costs and choose greedily, then run one dynamic program after the other."""
        if not self.made:
            self.local.price_everything(self.meter)
            self.made["greedy"] = State(self.problem, greedy(self.local)).record()
            return
        name = next(name for name in DYNAMIC if name not in self.made)
        selection, layouts = dynamic(self.local, self.made["greedy"][1], cut=DYNAMIC[name])
        self.made[name] = State(self.problem, selection, layouts).record()

    def records(self) -> dict[str, Record]:
        """The choices made so far."""
        return self.made
