"""Evidence for the report on a program that the search found: the reasons for its form, and the alternatives.

Everything here is read off the last search: the selection of the returned program, the options that the e-graph offered
beside it, and the prices of both.  A rule that was not used is judged by using it at one place after another, the joint
flips of one application together, and taking the place where the program would lose least.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.model.measured import kind
from costmodel.model.objective import outside_of
from rewrites.egraph import perm
from rewrites.egraph.enode import Origin
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.machine.deadline import Deadline
from superopt.report.data import OUTSIDE, KernelUse, NativeKernel, NotChosen
from superopt.search.finalists import repair_layouts
from superopt.search.pricing import UNIT_S, kernel_graph
from superopt.search.search import Finalist
from superopt.search.snapshot import SHIFT, Snapshot
from superopt.search.state import State

Group = tuple[tuple[int, int], ...]  # (class, option) pairs that flip together
_SITES = 12  # places tried per rule
_FLIPS = 600  # flips tried in all


def state_of(found: Exploration, finalist: Finalist) -> State:
    """Return the search state of a finalist."""
    return found.result.state(finalist)


def describe(snapshot: Snapshot, c: int, option: int = 0) -> str:
    """Describe an operation in words: its op, operands and result."""
    chosen = snapshot.options[c][option]
    form = chosen.form
    op = form.op if form.rule is None else f"{form.op} by {form.rule}"
    reads = ", ".join("x".join(map(str, s)) or "scalar" for s in form.shapes[:3])
    gives = "x".join(map(str, form.shape)) or "scalar"
    return f"{op} {reads} -> {gives}" if form.shapes else f"{op} {gives}"


def sites(found: Exploration, finalist: Finalist) -> dict[str, dict[str, int]]:
    """Return, for each rule, the program's own operations that it was applied to, with their number."""
    snapshot = found.result.problem.snapshot
    number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
    state = state_of(found, finalist)
    origins = {state.chosen(c).origin for c in state.active()} - {None}
    out: dict[str, Counter[str]] = defaultdict(Counter)
    for origin in sorted(origins, key=lambda o: (o.rule, o.step, o.roots)):
        for root in origin.roots:
            c = number.get(snapshot.eg.find(root) >> SHIFT)
            if c is not None:
                out[origin.rule][describe(snapshot, c)] += 1
    return {rule: dict(table.most_common()) for rule, table in out.items()}


def not_chosen(found: Exploration, finalist: Finalist, deadline: Deadline) -> tuple[tuple[NotChosen, ...], int]:
    """Return rules that apply to a program and were not used there, with the model's loss estimate for each.

    Rules of the most expensive places come first.  The second result is the number of those that were not priced, for
    the deadline or for the limit on flips.
    """
    state = state_of(found, finalist)
    base = state.cost
    places = _places(state, set(finalist.rules))
    flips = left_out = 0
    out: list[NotChosen] = []
    for rule, groups in places.items():
        best: tuple[int, Group] | None = None
        for group in groups[:_SITES]:
            if flips == _FLIPS or deadline.is_over:
                left_out += best is None
                break
            flips += 1
            change = state.flip(group)
            if change is None:
                continue
            state.settle()
            if best is None or state.cost < best[0]:
                best = state.cost, group
            state.undo(change)
            state.settle()
        if best is not None:
            loss = min(best[0], _mended(found, finalist, best[1])) - base
            site = describe(state.snapshot, best[1][0][0])
            out.append(NotChosen(rule, len(groups), 1e3 * loss * UNIT_S, loss / base if base else 0.0, site))
    return tuple(sorted(out, key=lambda x: (x.loss_ms, x.rule))), left_out


def _mended(found: Exploration, finalist: Finalist, group: Group) -> int:
    """Return the cost of a program with a group flipped and the layouts around it chosen again."""
    state = state_of(found, finalist)
    before = set(state.active())
    if state.flip(group) is None:
        return state.cost
    state.settle()
    repair_layouts(state, [c for c in state.active() if c not in before or c in dict(group)])
    state.settle()
    return state.cost


def _places(state: State, used: set[str]) -> dict[str, list[Group]]:
    """Return, for each rule, the joint flips of single applications on classes in use, the most expensive first."""
    groups: dict[Origin, dict[int, int]] = defaultdict(dict)
    for c in state.active():
        for i, option in enumerate(state.options[c]):
            if option.origin is not None and option.origin.rule not in used and i != state.selection[c]:
                groups[option.origin].setdefault(c, i)
    out: dict[str, list[Group]] = defaultdict(list)
    weight = {id(g): sum(state.kernel_cost[c] for c in g) for g in groups.values()}
    for origin, group in sorted(groups.items(), key=lambda item: (-weight[id(item[1])], item[0].step, item[0].roots)):
        out[origin.rule].append(tuple(sorted(group.items())))
    return out


def by_xla(found: Exploration, finalist: Finalist) -> State:
    """Return the state of a program of which XLA computes everything."""
    return found.result.by_xla(finalist, found.model.xla)


def priced(found: Exploration, state: State) -> dict[int, tuple[Graph, float]]:
    """Return XLA's kernels of a state by the class that each computes, with seconds, as timed where they were."""
    roots = [(c, kernel_graph(node)) for c, node in state.kernels()]
    prices = found.model.xla.price([graph for _, graph in roots]).tolist() if roots else []
    return {c: (graph, seconds) for (c, graph), seconds in zip(roots, prices, strict=True)}


def kernels(found: Exploration, finalist: Finalist) -> tuple[KernelUse, ...]:
    """Return the kernels of a program that XLA computes, equal ones together, the most expensive first."""
    some = list(priced(found, by_xla(found, finalist)).values())
    count = Counter(graph.outputs[0] for graph, _ in some)
    price = {graph.outputs[0]: (graph, seconds) for graph, seconds in some}
    order = sorted(count, key=lambda n: (-count[n] * price[n][1], str(n.type)))
    graphs = [price[n][0] for n in order]
    outside = outside_of(found.model.xla, graphs)
    return tuple(
        KernelUse(
            f"{kind(graph)} -> {n.type}",
            count[n],
            1e3 * count[n] * price[n][1],
            graph in found.model.xla,
            None if outside is None else bool(outside[i]),
        )
        for i, (n, graph) in enumerate(zip(order, graphs, strict=True))
    )


def regions(rows: Sequence[NativeKernel], apart: int = 0, apart_ms: float = 0.0) -> tuple[KernelUse, ...]:
    """Return the regions of a program with kernels of our own, each on its backend, the most expensive first.

    Args:
        apart: number of operations that belong to no region; XLA takes `apart_ms` for them.
    """
    uses = [KernelUse(OUTSIDE, apart, apart_ms, False)] if apart else []
    for row in rows:
        if row.takes_ms is not None:
            outside = row.outside if row.used else None
            uses.append(KernelUse(row.name, row.count, row.count * row.takes_ms, row.is_timed, outside))
    return tuple(sorted(uses, key=lambda use: (-use.ms, use.name)))


def model_figures(found: Exploration, uses: Sequence[KernelUse]) -> dict[str, Any]:
    """Return the model's errors on timed kernels, and the share of the program outside its training domain."""
    errors = found.model.errors()
    total = sum(k.ms for k in uses) or 1.0
    timed = sum(k.ms for k in uses if k.timed) / total
    figures: dict[str, Any] = {"kernels_timed": len(errors), "timed_share": timed, "outside_share": None}
    if errors:
        figures["median_error"] = errors[len(errors) // 2] - 1.0
        figures["largest_error"] = errors[-1] - 1.0
    if any(k.outside is not None for k in uses):
        figures["outside_share"] = sum(k.ms for k in uses if k.outside) / total
        figures["outside_untimed_share"] = sum(k.ms for k in uses if k.outside and not k.timed) / total
    return figures


def measured_by_finalists(rows: Mapping[str, float], best: str, rules: Sequence[str]) -> dict[str, float]:
    """Return, for each rule, the milliseconds that finalist `best` gains by it, if a finalist without it was timed."""
    if best not in rows:
        return {}
    return {rule: rows[f"without {rule}"] - rows[best] for rule in rules if f"without {rule}" in rows}


def layout_of(state: State, c: int) -> str:
    """Return the physical order of the axes of a value where it is not the natural one."""
    shape = state.snapshot.shapes[c]
    order = perm.perm_of(state.layouts[c], len(shape)) if state.layouts[c] else ()
    live = [axis for axis in order if shape[axis] != 1]
    return "" if live == sorted(live) else "axes " + ",".join(map(str, order))


def type_of(state: State, c: int) -> str:
    """Return the type of a value."""
    snapshot = state.snapshot
    return str(TensorType(snapshot.shapes[c], snapshot.dtypes[c])) if snapshot.dtypes[c] != "tuple" else "tuple"
