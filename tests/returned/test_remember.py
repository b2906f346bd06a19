"""Results that are kept and recalled: none of another program, of refuted code or of an entry of another kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from rewrites.library import load
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import import_function
from superopt.machine.budget import Budget
from superopt.machine.deadline import Deadline
from superopt.returned import remember
from superopt.returned.optimized import Optimized
from superopt.store import Store

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def doubled(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2.0


@pytest.fixture(scope="module")
def result() -> Optimized:
    return superopt.optimize(doubled, X, budget="20steps", deterministic=True, store=False)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened


def test_results_come_back(result: Optimized, store: Store) -> None:
    assert remember.recall(store, "key", result.imported) is None
    remember.remember(store, "key", result)
    again = remember.recall(store, "key", result.imported)
    assert again is not None
    np.testing.assert_array_equal(again(X), result(X))
    remember.remember(None, "key", result)
    assert remember.recall(None, "key", result.imported) is None


def test_refuted_code_is_not_recalled(result: Optimized, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remember.remember(store, "key", result)
    monkeypatch.setattr(remember, "validate_code", lambda *args: SimpleNamespace(refuted=True, told=dict))
    assert remember.recall(store, "key", result.imported) is None


@pytest.mark.parametrize("change", [{"modules": []}, {"hot": "nonsense"}, {"kernels": 3}, {"report": {}}, {"plan": {}}])
def test_entries_of_another_kind_are_absent(result: Optimized, store: Store, change: dict[str, Any]) -> None:
    remember.remember(store, "key", result)
    kept = store.get("runs", "key")
    assert kept is not None
    store.put("runs", "key", kept | change)
    assert remember.recall(store, "key", result.imported) is None


def test_what_says_less_than_another_run_would_is_not_kept(
    result: Optimized, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = replace(result.report, search={**result.report.search, "interrupted": True})
    whole = replace(result.imported, whole="an effect")
    for imported, told in ((result.imported, cut), (whole, result.report)):
        remember.remember(store, "key", Optimized(imported, result.program, result.executable, told))
        assert store.get("runs", "key") is None
    monkeypatch.setattr(remember, "carried", lambda *args: None)  # an operation that no other process has
    remember.remember(store, "key", result)
    assert store.get("runs", "key") is None


@pytest.mark.parametrize(("before_ms", "finalists", "basis"), [
    (None, 1, "measured"), (1.0, 1, "measured"), (None, 0, "measured"), (None, 1, "predicted"),
])  # fmt: skip
def test_candidates_without_a_timed_original_are_another_run_s(before_ms: Any, finalists: int, basis: str) -> None:
    report: Any = SimpleNamespace(
        search={}, finalists=[{}] * finalists, measured=SimpleNamespace(before_ms=before_ms),
        speedup=SimpleNamespace(basis=basis),
    )  # fmt: skip
    assert remember._cut_short(report) == (before_ms is None and finalists > 0 and basis == "measured")


def test_a_result_is_kept_for_the_question_that_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of the question, changed alone, makes another key; values of arguments are no part of it."""
    table, wide = (np.linspace(-1, end, 64, dtype=np.float32).reshape(16, 4) for end in (1, 2))
    request, budget = Request(Deadline(steps=20), rules=()), Budget(None, 20)

    def asked(value: np.ndarray = table, x: np.ndarray = wide) -> Any:
        return import_function(lambda x: jnp.tanh(x) * jnp.asarray(value), (x,))

    def key(imported: Any = None, budget: Budget = budget, **changes: Any) -> str:
        return remember.run_key(imported or asked(), replace(request, **changes), budget)

    objective = request.objective
    keys = [
        key(),
        key(asked(table + 1)),
        key(import_function(lambda x: jnp.sin(x) * jnp.asarray(table), (wide,))),
        key(budget=Budget(None, 21)),
        key(budget=Budget(1.0, None)),
        key(seed=1),
        key(deterministic=True),
        key(max_prepared_bytes=1),
        key(numerics="exact"),
        key(kernels_by="native"),
        key(searches=False),
        key(keeps_plain=True),
        key(rules=load()[:1]),
        key(rules=None),
        key(objective=SimpleNamespace(name="other", version=objective.version)),
        key(objective=SimpleNamespace(name=objective.name, version="other")),
        key(own=SimpleNamespace(version="1")),
        key(own=SimpleNamespace(version="2")),
    ]
    for where, name, value in (
        (remember.digests, "state", lambda: "another prover"),
        (remember.machine, "environment_key", lambda: "another machine"),
        (remember, "_FORMAT", remember._FORMAT + 1),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, value)
            keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert key(asked(x=wide + 1)) == keys[0]


def test_a_result_in_doubt_is_marked(result: Optimized, store: Store) -> None:
    assert not remember.is_in_doubt(None, "key")
    assert not remember.is_in_doubt(store, "key")
    for in_doubt in (False, True):
        remember.remember(store, "key", result, in_doubt=in_doubt)
        assert remember.is_in_doubt(store, "key") == in_doubt
