"""Choices by prediction: where nothing is measured, only what is predicted to be faster is returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from superopt.candidates.ledger import ChoiceReason
from superopt.contest.choices import by_prediction
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import original_program

PROGRAM = original_program(import_function(jnp.tanh, (np.ones((4, 4), np.float32),)).graph)


def test_programs_that_are_not_predicted_to_be_faster_are_not_returned() -> None:
    seconds = {"slower": 1.5, "equal": 1.0, "fast": 0.5, "faster": 0.25}
    forms = {name: SimpleNamespace(name=name) for name in ("original", *seconds)}
    found: Any = SimpleNamespace(
        result=SimpleNamespace(original=forms["original"]),
        finalists=tuple(forms.values()),
        program=lambda _: PROGRAM,
        by_xla_s=lambda form: seconds.get(form.name, 1.0),
        loops=(),
    )
    choices = by_prediction(found, ())
    assert [choice.candidate.name for choice in choices] == ["faster", "fast", "original"]
    assert [choice.measured.speedup.ratio for choice in choices] == [4.0, 2.0, 1.0]
    assert {choice.measured.speedup.basis for choice in choices} == {"predicted"}
    assert {choice.why.reason for choice in choices} == {ChoiceReason.PREDICTED}
    assert [row.name for row in choices[0].finalists] == list(forms)
