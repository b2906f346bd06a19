"""Forms that single rules make of training programs, and the order in which their regions are timed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rewrites import library
from superopt.candidates.candidate import Candidate
from superopt.lab.training import evaluate, families, regions
from superopt.lab.training.corpus import OWN_FORM, KernelLabel, Split
from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, TrainingProgram, describe, spec
from superopt.lab.training.regions import in_turns
from superopt.lab.training.rewritten import OWN, forms
from superopt.lab.training.tasks import canonical, make_form, read_lines
from tests.support.search_cases import run_graph, run_program


def _convolutions(rng: random.Random) -> Described:
    """A convolution with what follows it, another that reads its result, and a pool."""

    def fn(w: Any, x: Any) -> Any:
        y = L.relu(L.conv(w, x, 16, 3, bias=True))
        return L.max_pool(L.relu(y + L.conv(w, y, 16, 3)), 2, 2)

    return Described(fn, (spec(1, 16, 8, 8),))


def _siblings(rng: random.Random) -> Described:
    """Two products of one matrix."""

    def fn(w: Any, x: Any) -> Any:
        return L.relu(L.dense(w, x, 24)), L.dense(w, x, 32)

    return Described(fn, (spec(20, 48),))


def _forms(program: TrainingProgram) -> dict[str, Candidate]:
    return dict(forms(program.graph(), library.load()))


@pytest.mark.parametrize("maker", [_convolutions, _siblings])
def test_every_form_computes_what_the_program_does(maker: Any) -> None:
    program = describe(maker.__name__, 0, maker)
    graph = program.graph()
    rng = np.random.default_rng(0)
    values = {node["name"]: rng.uniform(-1.0, 1.0, node.shape).astype(np.float32) for node in graph.inputs}
    values |= {name: np.asarray(value) for name, value in graph.constants.items()}
    wanted = run_graph(graph, values)
    found = _forms(program)
    assert len(found) > 1
    for form in found.values():
        for have, want in zip(run_program(form.program, values), wanted, strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-4)


def test_a_rule_is_applied_wherever_it_fits_and_alone() -> None:
    found = _forms(describe("convolutions", 0, _convolutions))
    assert {OWN, "conv-winograd", "conv-winograd-four", "conv-winograd-square", "conv-im2col", "conv-shifted-dots"} <= (
        found.keys()
    )
    ops = {name: Counter(n.op for n in form.program.hot.nodes()) for name, form in found.items()}
    assert ops[OWN]["conv_general_dilated"] == 2
    assert ops["conv-winograd-four"]["conv_general_dilated"] == 12
    assert ops["conv-winograd-square"]["conv_general_dilated"] == 0
    assert ops["conv-winograd-square"]["dot_general"] == 2
    assert len(found["conv-winograd-square"].regions) == len(found[OWN].regions)  # images lie channels last: one kernel


def test_products_of_one_operand_are_merged() -> None:
    found = _forms(describe("siblings", 0, _siblings))
    products = {name: sum(n.op == "dot_general" for n in form.program.hot.nodes()) for name, form in found.items()}
    assert products[OWN] == 2
    assert products["dot-merge"] == 1


def test_forms_are_the_same_each_time() -> None:
    def texts() -> list[str]:
        found = _forms(families.program("squeeze-excite", 0))
        return [make_form(name, canonical(r.graph)).text for name, form in found.items() for r in form.regions]

    assert texts() == texts()


def test_rules_take_turns_in_the_order_of_timing() -> None:
    rows = [{"key": f"{rule}{i}", "rule": rule} for rule, n in (("", 50), ("a", 3), ("b", 9)) for i in range(n)]
    order = in_turns(rows)
    assert sorted(row["key"] for row in order) == sorted(row["key"] for row in rows)
    assert Counter(row["rule"] for row in order[:9]) == {"": 3, "a": 3, "b": 3}
    assert order == in_turns(rows[::-1])


def test_errors_are_told_of_regions_that_rules_made() -> None:
    graph = describe("siblings", 0, _siblings).graph()
    given = (("", 1e-4), ("dot-merge", 1e-4), ("dot-merge", 2e-4), ("dot-merge", 1e-6))
    labels = [
        KernelLabel("f", "p", str(i), rule or OWN_FORM, str(i), graph, seconds, 0.01, None)
        for i, (rule, seconds) in enumerate(given)
    ]
    split = Split("s", np.arange(0), np.arange(4), 0)
    said = {"prior": [1e-4, 2e-4, 2e-4, 1e-3], "seed 0": [9e-4, 1e-4, 1e-4, 1e-3], "seed 1": [9e-4, 1e-4, 2e-4, 1e-3]}
    result = evaluate.SplitResult("s", 0, 4, 0, {}, (), 0.0, 0.0, predicted=said)
    found = evaluate.rewritten(labels, [split], [result])
    assert found == {"mape_rewritten": 0.125, "prior_mape_rewritten": 0.5}
    assert evaluate.rewritten(labels[:1], [], []) == {}


def test_shipped_regions_of_forms_by_rules_say_the_rule() -> None:
    rules = Counter(row["rule"] for row in read_lines(regions.SHIPPED)[1:] if row.get("rule"))
    assert {"conv-winograd-four", "conv-winograd-square", "conv-im2col", "dot-merge"} <= rules.keys()
    gone = {"dot-assoc-batch", "dot-assoc-shared", "sum-of-dot", "mul-sum-to-dot"}  # other rules contain these today
    assert rules.keys() - {OWN} <= {rule.name for rule in library.load()} | gone
