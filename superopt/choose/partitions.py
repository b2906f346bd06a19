"""Measured search of the partition: regions cut in two, or computed inside of their readers, where that is faster.

    cut     (x @ w) -> relu      the product by itself, its epilogue a kernel of its own
    join    exp -> its readers   the value is computed by every region that reads it, and lies nowhere in memory

The partition that a program starts with follows from estimates (`superopt.kernels.choose.partition`).  Every region is
the cone of a value, so every change of it is legal; what it costs is measured: the regions that a change makes are
tried like all others, and the change is made where they take less time together than those that they replace, and do
so once more in rounds with them.  Equal places are changed together.  Regions are timed alone here; whether the
program gains is for the comparison of whole programs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.choose.forms import ProgramForm
from superopt.choose.trials import Trial, TrialPool, estimate, try_regions
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import lookup
from superopt.ir.program import type_bytes
from superopt.kernels.choose.compared import compared
from superopt.kernels.choose.partition import VIEWS, can_be_one, cost_of, work
from superopt.kernels.choose.regions import Region, cut, is_contraction

_BETTER = 0.97  # time of the new regions over that of the old ones
_LEAST_SHARE = 0.03  # of the time of all regions: changes of less are not tried
_MOST_CHANGES, _MOST_CUTS = 16, 3  # changes tried in a pass; cuts of one region
_MOST_WORK = 4.0  # of a joint region over that of its parts
_PASSES = 2


@dataclass(frozen=True, slots=True)
class Change:
    """Regions to be replaced by others, at one place and at all that are equal to it.

    Attributes:
        name: for whoever watches.
        places: for each place the old regions and the new ones.
    """

    name: str
    places: tuple[tuple[tuple[Region, ...], tuple[Region, ...]], ...]

    @property
    def old(self) -> tuple[Region, ...]:
        """The regions that go, at all places."""
        return tuple(r for old, _ in self.places for r in old)

    @property
    def new(self) -> tuple[Region, ...]:
        """The regions that come, at all places."""
        return tuple(r for _, new in self.places for r in new)


def search_partition(
    form: ProgramForm,
    tried: dict[Graph, Trial],
    pool: TrialPool,
    *,
    budget_s: float,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[ProgramForm, dict[Graph, Trial]]:
    """The form with the partition that measures best, the form itself where none is better, and all trials."""
    deadline = time.monotonic() + budget_s
    best = form
    for _ in range(_PASSES):
        left_s = deadline - time.monotonic()
        changes = changes_of(best, tried) if left_s > 0.0 else []
        fresh = [r for change in changes for r in change.new]
        if not changes:
            break
        tried = try_regions(fresh, pool, budget_s=left_s, known=tried, progress=progress)
        promising = [change for change, _ in _gains(changes, tried, progress)]
        left_s = deadline - time.monotonic()
        if not promising or left_s <= 0.0:
            break
        again = try_regions([r for c in promising for r in (*c.old, *c.new)], pool, budget_s=left_s)
        tried = {**tried, **{g: _fresher(tried.get(g), trial) for g, trial in again.items()}}
        gains = _gains([c for c in promising if all(r.graph in again for r in c.new)], tried, progress)
        if not gains:
            break
        best = _applied(best, gains, tried)
    return (best if best is form else replace(best, name=f"{form.name}, other regions")), tried


def changes_of(form: ProgramForm, tried: Mapping[Graph, Trial]) -> list[Change]:
    """Cuts and joins of the regions in which time is spent, those first where most is."""
    place = {node: i for i, node in enumerate(form.program.hot.nodes())}
    every = (*form.regions, *form.rest)
    roots = {r.root for r in every}
    seconds = {r.root: _seconds(r, tried) or 0.0 for r in every}
    total = sum(seconds.values())
    once = compared(form.program.hot)
    alike: dict[object, list[tuple[tuple[Region, ...], tuple[Region, ...]]]] = {}
    names: dict[object, str] = {}
    for region in every:
        pairs: list[tuple[object, str, tuple[Region, ...], tuple[Region, ...]]] = []
        for i in _inner(region):
            node = region.nodes[i]
            parts = (cut(node, roots, place), cut(region.root, roots | {node}, place))
            pairs.append((("cut", region.graph, i), f"cut after {node.op}", (region,), parts))
        readers = tuple(r for r in every if region.root in r.reads)
        if readers and region.root not in form.program.hot.outputs and not region.is_free:
            whole = tuple(cut(r.root, roots - {region.root}, place) for r in readers)
            apart = len(readers) > 1 and not once.isdisjoint(region.nodes)
            if not apart and all(map(can_be_one, whole)) and _work(whole) <= _MOST_WORK * _work((region, *readers)):
                key = ("join", region.graph, tuple(r.graph for r in readers))
                pairs.append((key, f"join to {len(readers)} readers", (region, *readers), whole))
        for key, name, old, new in pairs:
            alike.setdefault(key, []).append((old, new))
            names[key] = f"{name}: {region}"
    found = [Change(names[key], tuple(places)) for key, places in alike.items()]
    weight = {id(c): sum(seconds[root] for root in {r.root for r in c.old}) for c in found}
    found = [c for c in found if weight[id(c)] > _LEAST_SHARE * total]
    fresh = [c for c in found if any(r.graph not in tried for r in c.new)] or found
    return sorted(fresh, key=lambda c: -weight[id(c)])[:_MOST_CHANGES]


def _inner(region: Region) -> list[int]:
    """Where a region may be cut: after its product, after what several of its operations read and is large."""
    users = Counter(x for n in region.nodes for x in set(n.inputs))
    large = 0.5 * type_bytes(region.root.type)
    found: list[int] = []
    for i, node in enumerate(region.nodes[:-1]):
        shared = users[node] > 1 and lookup(node.op).family == "elementwise" and type_bytes(node.type) >= large
        if node.inputs and node.op not in VIEWS and (is_contraction(node) or shared) and not _scalar(node):
            found.append(i)
    return found[-_MOST_CUTS:]


def _scalar(node: Node) -> bool:
    return all(n == 1 for n in node.shape)


def _work(regions: Sequence[Region]) -> float:
    return sum(work(cost_of(r)) for r in regions) + 1.0


def _seconds(region: Region, tried: Mapping[Graph, Trial]) -> float | None:
    """Of a region as it would run: measured, or by the estimate where it is too small to be tried; None: unknown."""
    trial = tried.get(region.graph)
    return trial.seconds if trial is not None else None


def _fresher(before: Trial | None, now: Trial) -> Trial:
    """The second trial of a region; the first where its schedule was searched, or the second came to nothing."""
    return before if before is not None and (before.searched or now.failure) else now


def _gains(
    changes: Sequence[Change], tried: Mapping[Graph, Trial], progress: Callable[[str], None]
) -> list[tuple[Change, float]]:
    """The changes that pay with what they save, in seconds; those first that save most."""
    found: list[tuple[Change, float]] = []
    for change in changes:
        before = [s if (s := _seconds(r, tried)) is not None else estimate(r) for r in change.old]
        after = [_seconds(r, tried) for r in change.new]
        if any(s is None for s in after):
            continue
        new_s, old_s = sum(s for s in after if s is not None), sum(before)
        progress(f"{change.name}: {1e6 * old_s:.4g} -> {1e6 * new_s:.4g} us")
        if new_s < _BETTER * old_s:
            found.append((change, old_s - new_s))
    return sorted(found, key=lambda pair: -pair[1])


def _applied(form: ProgramForm, gains: Sequence[tuple[Change, float]], tried: Mapping[Graph, Trial]) -> ProgramForm:
    """The form with these changes, the first ones first; one at a place."""
    regions = {r.root: r for r in (*form.regions, *form.rest)}
    touched: set[Node] = set()
    for change, _ in gains:
        for old, new in change.places:
            roots = {r.root for r in old}
            if roots & touched:
                continue
            touched |= roots | {r.root for r in new}
            for root in roots:
                del regions[root]
            regions |= {r.root: r for r in new}
    place = {node: i for i, node in enumerate(form.program.hot.nodes())}
    order = sorted(regions.values(), key=lambda r: place[r.root])
    return replace(form, regions=tuple(r for r in order if r.graph in tried), rest=tuple(
        r for r in order if r.graph not in tried
    ))  # fmt: skip
