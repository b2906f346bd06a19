"""Originals that are compared with a result or its file: each way in which one is another program is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.certify.kernels import ValidatedCode
from superopt.errors import FileLimitError, InputError, UsageError
from superopt.kernels.choose.specs import KernelSpec
from superopt.returned import remember, revalidate
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


def test_a_file_that_asks_for_much_more_work_than_its_size_is_not_validated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revalidate, "_LEAST_ELEMENTS", 0)
    assert validate_file(path).valid
    monkeypatch.setattr(revalidate, "_ELEMENTS_OF_BYTE", 1e-3)
    with pytest.raises(FileLimitError, match="cannot be validated: a round of the validation looks at"):
        validate_file(path)
    assert validate_file(path, limited=False).valid


KERNEL = (KernelSpec(1, (0,)),)


@pytest.mark.parametrize(
    ("cause", "code", "valid"),
    [
        ("", ValidatedCode(1), True),
        ("", ValidatedCode(0, {"too long": 2}), True),
        ("", ValidatedCode(0, {}, {0: "its code is wrong"}), False),  # type: ignore[dict-item]
        ("its schedule is wrong", ValidatedCode(1), False),
    ],
)
def test_a_program_is_valid_where_its_kernels_are(
    cause: str, code: ValidatedCode, valid: bool, result: Optimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revalidate, "prove_kernels", lambda *_: (1, cause))
    monkeypatch.setattr(revalidate, "validate_code", lambda *_, **__: code)
    found = replace(validate_optimized(result), exactness="exact")
    told = revalidate._with_kernels(found, result.program.hot, KERNEL, None, math.inf)
    assert (found.valid, told.valid, bool(told.cause)) == (True, valid, not valid)
    assert told.exactness == "real", "kernels sum in another order"
    assert told.code == (0 if cause else code.proved)
    assert told.notes == (("machine code of 2 kernels is not validated: too long",) if code.unknown else ())
    refused = replace(found, valid=False)
    assert revalidate._with_kernels(refused, result.program.hot, KERNEL, None, math.inf) is refused
    assert revalidate._with_kernels(found, result.program.hot, (), None, math.inf) is found


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
