"""Originals that are compared with a result or its file: each way in which one is another program is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import InputError, UsageError
from superopt.returned import remember
from superopt.returned.optimized import Optimized
from superopt.returned.revalidate import validate_file, validate_optimized
from superopt.store import Store
from tests.support.saved_files import edited

X, TABLE = np.ones((3, 4), np.float32), np.arange(16, dtype=np.float32).reshape(4, 4)


def closes_over(table: np.ndarray) -> Any:
    def f(x: jax.Array) -> jax.Array:
        return jnp.dot(x, jnp.asarray(table).T * 2) - x

    return f


ORIGINAL = closes_over(TABLE)


@pytest.fixture(scope="module")
def result() -> Optimized:
    return superopt.optimize(ORIGINAL, X, budget="20steps", deterministic=True, store=False)


@pytest.fixture(scope="module")
def path(result: Optimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("saved") / "f.superopt")


OTHERS = {
    "another program": lambda x: jnp.dot(x, jnp.asarray(TABLE) * 2) - x,
    "results of other types": lambda x: ORIGINAL(x).astype(jnp.float16),
    "other values in": closes_over(TABLE + 1),
}


def test_the_original_itself_is_valid(result: Optimized, path: Path) -> None:
    for told in (validate_optimized(result, ORIGINAL), validate_file(path, ORIGINAL)):
        assert told.valid, told.cause


@pytest.mark.parametrize("cause", OTHERS)
def test_other_originals_are_refused(cause: str, result: Optimized, path: Path) -> None:
    for told in (validate_optimized(result, OTHERS[cause]), validate_file(path, OTHERS[cause])):
        assert not told.valid
        assert cause in told.cause


def test_results_of_another_structure_are_refused(path: Path) -> None:
    told = validate_file(path, lambda x: [ORIGINAL(x)])
    assert not told.valid
    assert "another structure" in told.cause


def test_prepared_tensors_of_other_values_are_refused(path: Path, tmp_path: Path) -> None:
    other = edited(path, tmp_path / "e.superopt", prepared=lambda data: bytes(len(data)))
    told = validate_file(other, ORIGINAL)
    assert not told.valid
    assert "prepared tensors in the file" in told.cause


def test_a_result_without_a_plan_is_refused(result: Optimized) -> None:
    without = Optimized(result.imported, result.program, result.executable, result.report)
    told = validate_optimized(without)
    assert not told.valid
    assert told.cause == "it has no plan"


def test_what_is_no_original_is_refused(result: Optimized, path: Path) -> None:
    with pytest.raises(UsageError, match=r"an? int is neither a function nor a path"):
        validate_optimized(result, 3)
    with pytest.raises(InputError, match="there is no file"):
        validate_file(path.with_name("none.superopt"))


def test_results_with_effects_are_not_saved(result: Optimized, tmp_path: Path) -> None:
    imported: Any = replace(result.imported, effects=("a print",))
    with pytest.raises(InputError, match="has effects"):
        Optimized(imported, result.program, result.executable, result.report).save(tmp_path / "f.superopt")
    assert not (tmp_path / "f.superopt").exists()


def test_a_result_without_some_rules_stands_until_more_are_proved(
    result: Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        remember.remember(store, "key", result, unproved=3)
        monkeypatch.setattr(remember, "count_unproved", lambda _: 3)
        assert remember.recall(store, "key", result.imported) is not None
        monkeypatch.setattr(remember, "count_unproved", lambda _: 2)
        assert remember.recall(store, "key", result.imported) is None
