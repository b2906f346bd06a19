"""Growth adds only what is equal: every e-node evaluated; and budgets on whole networks."""

from __future__ import annotations

import pytest

from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import GrowthLimits, GrowthReport, grow
from rewrites.library import load
from superopt.machine.deadline import Deadline
from tests.support.egraph_checks import check_invariants, check_values
from tests.support.egraph_programs import PROGRAMS, program
from tests.support.egraph_random import FINITE, RICH, Builder
from tests.support.sampling import one_in, sampled


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_enode_of_a_grown_graph_has_the_value_of_its_class(name: str) -> None:
    graph = program(name)
    eg = import_graph(graph)
    report = grow(eg, load())
    assert report.stop == "saturated"
    assert not _errors(report)
    check_invariants(eg)
    assert check_values(eg, graph, 0) >= 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_dangerous_rules_are_sound_too(name: str) -> None:
    graph = program(name)
    eg = import_graph(graph)
    report = grow(eg, load(), GrowthLimits(enodes=1_500, iterations=3), eg.classes(), Deadline.within(3.0))
    assert not _errors(report)
    check_invariants(eg)
    check_values(eg, graph, 1)


@pytest.mark.parametrize("seed", sampled(range(40), one_in(3)))
def test_growth_of_random_programs_is_sound(seed: int) -> None:
    graph = Builder(seed + 500, RICH, FINITE).graph(14)
    eg = import_graph(graph)
    report = grow(eg, load(), GrowthLimits(enodes=1_000), eg.classes() if seed % 2 else None, Deadline.within(3.0))
    assert not _errors(report)
    check_invariants(eg)
    check_values(eg, graph, seed)


def _errors(report: GrowthReport) -> dict[str, str]:
    return {name: next(iter(counts.errors)) for name, counts in report.rules.items() if counts.errors}


# ---- budgets


BUDGETS = {
    "resnet50": 4_000,
    "mobilenet_v2": 4_000,
    "bert": 4_000,
    "inception": 2_500,
    "lstm": 800,
    "linear_attention": 100,
}


WHOLE = ("resnet50", "mobilenet_v2", "inception")  # those of `test_growth_budgets.py` are like them


@pytest.mark.parametrize("name", sampled(BUDGETS, lambda _, name: name not in WHOLE))
def test_networks_saturate_within_their_budgets(name: str) -> None:
    from superopt.frontends.jax.jaxpr import import_function
    from superopt.lab.bench.programs import nets

    net = {
        "resnet50": nets.resnet50,
        "mobilenet_v2": nets.mobilenet_v2,
        "bert": lambda: nets.bert(layers=12, size=96, heads=12, length=32),
        "inception": nets.inception,
        "lstm": lambda: nets.lstm(steps=4, size=64),
        "linear_attention": nets.linear_attention,
    }[name]()
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=(0,)).graph
    eg = import_graph(graph)
    report = grow(eg, load(), deadline=Deadline.within(60.0))
    assert report.stop == "saturated"
    assert report.enodes[-1] <= BUDGETS[name]
    assert report.components == 0, "every selection is acyclic"
    assert not _errors(report)
