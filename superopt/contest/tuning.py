"""Options of the compiler for one program, chosen by timing the program itself.

Every choice (`superopt.backends.options`) is tried alone; those that pay are tried together.  Where building the
program is slow, its most expensive kernels are timed under each choice first, and only what they promise is built.
The best of several timings is too good, so what is found here is a proposal: the judgement times it again on fresh
rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewrites.build.expander import Expand, expand_graph
from superopt.backends.options import OptionChoice, Value, choices_for, options_of
from superopt.contest.comparing import Comparing
from superopt.explore.kernel_timer import is_open
from superopt.ir.graph import Graph, every_node
from superopt.ir.program import Program
from superopt.measure import KernelTiming, Timing, Tuned, Worker, time_kernels
from superopt.measure.kernels import KernelSettings

WORTH = 1.03  # what options must bring, in the trial and again on fresh rounds
_ROUNDS = 9
_BUILD_AND_TIME = 1.3  # what a candidate takes, in terms of the time that the program took to build
_PER_CANDIDATE_S = 0.4
_VOTE_SHARE = 0.4
_VOTING_KERNELS = 10
_WORTH_ASKING = 0.02  # share of the predicted time below which a kernel is not asked
_VOTE = KernelSettings(rounds=3, sample_s=0.003, max_calls=30)


@dataclass(frozen=True, slots=True)
class OptionTrial:
    """Choices that were tried on a program: by its kernels or on the whole of it, and the ratio over the default."""

    choices: tuple[str, ...]
    by: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The options that did best.

    Attributes:
        choices: by name; none when the default did best.
        options: of the compiler.
        ratio: time with the default options over time with these.
        trials: everything tried.
        out: choices that could not be tried, with the reason.
    """

    choices: tuple[str, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])
    ratio: float = 1.0
    trials: tuple[OptionTrial, ...] = ()
    out: Mapping[str, str] = field(default_factory=dict[str, str])


def tune(
    rounds: Comparing,
    program: Program,
    kernels: Sequence[tuple[Graph, float]],
    expand: Expand,
    *,
    build_s: float,
    budget_s: float,
) -> Tuning:
    """Try the choices that may matter for a program, within a time that includes the builds.

    Args:
        kernels: of the program with their predicted seconds.
        expand: expands the macros of kernels.
        build_s: what building the program took.
    """
    choices, out = choices_for({node.op for node in every_node([program.hot])})
    each_s = _BUILD_AND_TIME * build_s + _PER_CANDIDATE_S
    affordable = int(budget_s / each_s) - 1  # the program itself is built again
    trials: list[OptionTrial] = []
    if affordable <= len(choices):
        votes = _votes(kernels, expand, choices, _VOTE_SHARE * budget_s, rounds.worker)
        trials += [OptionTrial((c.name,), "kernels", ratio) for c, ratio in votes]
        promising = [c for c, ratio in sorted(votes, key=lambda v: -v[1]) if ratio > WORTH]
        affordable = int((1.0 - _VOTE_SHARE) * budget_s / each_s) - 1
        sets = [tuple(promising)] + [(c,) for c in promising if len(promising) > 1]
        sets = [s for s in sets if s][: max(0, affordable)]
    else:
        sets = [(c,) for c in choices]
        affordable -= len(sets)
    found = _tried(rounds, program, sets, budget_s, 0)
    trials += [OptionTrial(tuple(c.name for c in s), "program", ratio) for s, ratio in found]
    good = [c for s, ratio in found for c in s if len(s) == 1 and ratio > WORTH]
    together = tuple(good)
    if len(good) > 1 and affordable > 2 and together not in sets:
        best = max(found, key=lambda f: f[1])[0]
        found = _tried(rounds, program, [together, best], budget_s, 1)
        trials += [OptionTrial(tuple(c.name for c in s), "program", ratio) for s, ratio in found[:1]]
    chosen, ratio = max(found, key=lambda f: f[1], default=((), 1.0))
    if ratio <= WORTH:
        return Tuning((), {}, 1.0, tuple(trials), out)
    return Tuning(tuple(c.name for c in chosen), options_of(chosen), ratio, tuple(trials), out)


def _tried(
    rounds: Comparing, program: Program, sets: Sequence[tuple[OptionChoice, ...]], budget_s: float, number: int
) -> list[tuple[tuple[OptionChoice, ...], float]]:
    """Each set of choices with its ratio; sets that fail, change the results or are not surely faster count as 1."""
    if not sets:
        return []
    candidates = [Tuned(program, options_of(s)) for s in sets]
    settings = {"rounds": _ROUNDS, "seed": rounds.request.seed + number, "budget_s": budget_s}
    result = rounds.compare(program, candidates, budget_s, **settings)
    found: list[tuple[tuple[OptionChoice, ...], float]] = []
    for s, outcome in zip(sets, result.candidates, strict=True):
        if not isinstance(outcome, Timing):
            found.append((s, 0.0))
        else:
            sure = outcome.ratio.low > 1.0 or outcome.ratio.ratio < 1.0
            found.append((s, outcome.ratio.ratio if sure else 1.0))
    return found


def _votes(
    kernels: Sequence[tuple[Graph, float]],
    expand: Expand,
    choices: Sequence[OptionChoice],
    budget_s: float,
    worker: Worker,
) -> list[tuple[OptionChoice, float]]:
    """What the most expensive kernels, timed under each choice, promise for the whole program."""
    total = sum(seconds for _, seconds in kernels)
    weight: dict[Any, float] = {}
    graphs: dict[Any, Graph] = {}
    for graph, seconds in kernels:
        output = graph.outputs[0]
        weight[output] = weight.get(output, 0.0) + seconds / max(total, 1e-12)
        graphs[output] = graph
    asked = [n for n in sorted(weight, key=lambda n: -weight[n]) if weight[n] > _WORTH_ASKING][:_VOTING_KERNELS]
    asked = [n for n in asked if not is_open(graphs[n])]
    variants = [{}, *(options_of([c]) for c in choices)]
    plain = [expand_graph(graphs[n], expand) for n in asked]
    settings = KernelSettings(len(variants), _VOTE.rounds, _VOTE.sample_s, _VOTE.max_calls)
    timings = time_kernels(
        [graph for graph in plain for _ in variants],
        settings=settings,
        budget_s=budget_s,
        worker=worker,
        options=[options for _ in plain for options in variants],
    )
    saved = [0.0] * len(choices)
    for k, n in enumerate(asked):
        base, *others = timings[k * len(variants) : (k + 1) * len(variants)]
        for i, timing in enumerate(others):
            if isinstance(base, KernelTiming) and isinstance(timing, KernelTiming):
                saved[i] += weight[n] * (1.0 - timing.seconds / base.seconds)
    return [(c, 1.0 / (1.0 - s)) for c, s in zip(choices, saved, strict=True)]
