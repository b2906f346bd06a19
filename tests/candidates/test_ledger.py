"""The ledger: events in order, reasons in words."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.candidates.candidate import Candidate, Provenance, original_candidate
from superopt.candidates.evidence import NumericCheck
from superopt.candidates.ledger import ChoiceReason, Chosen, Compared, Made, Rejected, RunLedger, Why
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import frozen_cut, split
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import KernelSpec, specs_of
from superopt.report.verdicts import refusal, verdict

GRAPH = import_function(jnp.tanh, (np.ones((4, 4), np.float32),)).graph
ORIGINAL = original_candidate(GRAPH)
OURS = Candidate(name="form", program=ORIGINAL.program, kernels=(KernelSpec(1, (0,)),))


@pytest.mark.parametrize("reason", list(ChoiceReason), ids=lambda reason: reason.name)
def test_every_reason_is_told_with_its_facts(reason: ChoiceReason) -> None:
    why = Why(reason, "a cause", stage="a stage", after_ms=2.5, before_ms=1.25, count=3)
    told = verdict(OURS, why)
    assert told == verdict(replace(OURS), why)
    assert "{" not in told
    others = {verdict(OURS, replace(why, reason=other)) for other in ChoiceReason if other is not reason}
    assert told not in others, "one sentence for one reason"


def test_sentences_count_the_kernels_of_the_candidate() -> None:
    assert verdict(OURS, Why(ChoiceReason.FASTER)) == "faster program returned, 1 of its kernels are our own"
    assert verdict(replace(OURS, kernels=()), Why(ChoiceReason.FASTER)) == "faster program returned"
    slower = verdict(ORIGINAL, Why(ChoiceReason.PLAIN_SLOWER, after_ms=2.0, before_ms=1.0))
    assert slower == "the original was returned: the plain program takes 2 ms where it takes 1"
    tuned = OURS.with_options(("wide",), {"xla": True})
    refused = refusal(Rejected(tuned, Why(ChoiceReason.WRONG_RESULTS, "an output differs")))
    assert refused == "form: the original was returned: the program was refused: an output differs"


def test_events_of_a_candidate_are_those_of_the_object_not_of_an_equal_one() -> None:
    ledger, same = RunLedger(), replace(OURS)
    first, second = Compared(OURS, NumericCheck(0.5), "an output differs"), Compared(same, NumericCheck(0.25))
    for event in (Made(OURS), Made(same), first, second, Chosen(same, why=Why(ChoiceReason.FASTER))):
        ledger.add(event)
    assert [type(event) for event in ledger] == [Made, Made, Compared, Compared, Chosen]
    assert ledger.about(OURS, Compared) == [first]
    assert ledger.numerics(OURS) is None, "it was refused"
    assert ledger.numerics(same) == NumericCheck(0.25)
    assert ledger.chosen.candidate is same


def test_operations_that_xla_computes_are_those_of_no_kernel() -> None:
    graph = import_function(lambda x: jnp.sort(jnp.tanh(x)), (np.ones((4, 4), np.float32),)).graph
    whole = original_candidate(graph)
    assert "tanh" in whole.by_xla
    assert whole.changes_nothing
    assert whole.is_original
    tuned = replace(whole, closed=True).with_options(("a", "b"), {"x": True})
    assert (tuned.name, tuned.form, tuned.closed) == ("original with a + b", "original", False)


def test_operations_of_our_kernels_are_not_those_of_xla() -> None:
    graph = import_function(lambda x: jnp.exp(jnp.sort(jnp.tanh(x))), (np.ones((4, 4), np.float32),)).graph
    whole, (first, second) = original_candidate(graph), partition(graph)
    for chosen, by_xla in (((first,), {"exp"}), ((second,), {"tanh"}), ((first, second), set[str]())):
        kernels = specs_of(graph, [(region, None) for region in chosen])
        ours = replace(whole, regions=(first, second), kernels=kernels)
        assert ours.chosen == {region.graph for region in chosen}
        assert ours.by_xla == whole.by_xla - {"tanh", "exp", "input"} | by_xla


def test_only_the_original_without_kernels_and_work_ahead_changes_nothing() -> None:
    w, x = np.ones((4, 4), np.float32), np.ones((2, 4), np.float32)
    graph = import_function(lambda w, x: x @ (w * 2), (w, x), frozen=0).graph
    original = original_candidate(graph)
    ahead = split(graph, frozen_cut(graph))
    assert ahead.computes_ahead
    assert original.changes_nothing
    assert replace(original, origin=Provenance.OWN_FORM).changes_nothing
    for change in ({"kernels": OURS.kernels}, {"origin": Provenance.SEARCH}, {"program": ahead}):
        assert not replace(original, **change).changes_nothing
