"""False equalities behind guards, false pairs of loops, code that asks for the kind of a size, and what ends XLA."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import superopt
from superopt.frontends.symbolic.paths import Path, followed
from superopt.lab.bench.verifier import GUARDED, LOOPS
from superopt.lab.corpora.statements.guarded import guarded
from superopt.lab.corpora.statements.loops import loops
from tests.support.sampling import one_in, sampled
from verifier.rules.referee import UnansweredError, exported, referee
from verifier.statements import statement as statements
from verifier.statements.statement import check_statement, make_statement, seen_wrong
from verifier.verdict import PROVED, REFUTED, UNKNOWN, ValidityDomain

SAMPLE, LOOP_SAMPLE = 2, 6


# ---- guards


def believing(pair: Any, done: Any) -> tuple[ValidityDomain, tuple[Any, ...]]:
    """A prover that takes everything for true."""
    done.note("real", "belief")
    return ValidityDomain("real", (), (), ("inputs and intermediate values are finite",), ()), ()


GUARDS: dict[str, Callable[..., Any]] = {
    "positions": lambda x, i: jnp.arange(x.shape[0]) > 1_000_000,
    "positions in steps": lambda x, i: jnp.arange(x.shape[0]) // 64 >= 70_000,
    "a size": lambda x, i: jnp.int32(x.shape[0]) > 4_000_000,
    "a sum": lambda x, i: jnp.sum(x * x) > 1e9,
    "a value": lambda x, i: x > 65_000.5,
    "a hash": lambda x, i: (i * 7919 + 11) % 104_729 == 3,
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_wrong_proof_behind_a_guard_is_none(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = GUARDS[guard]
    monkeypatch.setattr(statements, "prove_elsewhere", believing)
    found = superopt.verify(
        lambda x, y, i: jnp.where(behind(x, i), jnp.maximum(x, y), 0),
        lambda x, y, i: jnp.where(behind(x, i), jnp.minimum(x, y), 0),
        "n", "n", "int32[n]",
    )  # fmt: skip
    assert found.status in (UNKNOWN, REFUTED)
    if guard == "a value":
        assert found.status == REFUTED  # a reachable input shows it
    else:
        assert found.status == REFUTED or "behind a condition" in found.cause


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "clip": lambda n: jnp.clip(jnp.arange(n) - 1_000_000, 0, 1),
    "maximum": lambda n: jnp.maximum(jnp.arange(n) - 5_000, 0),
    "minimum": lambda n: jnp.minimum(jnp.arange(n), 70_000) - jnp.arange(n),
    "absolute value": lambda n: jnp.abs(jnp.arange(n) - 300_000) + jnp.arange(n) - 300_000,
    "sign": lambda n: jnp.sign(jnp.arange(n) - 300_000) + 1,
    "quotient": lambda n: jnp.arange(n) // 1_000_000,
    "shift": lambda n: jnp.arange(n) >> 20,
    "narrow integers": lambda n: jnp.arange(n).astype("int8").astype(int) - jnp.arange(n),
    "floats": lambda n: jnp.clip(jnp.arange(n, dtype="float32") - 1e6, 0.0, 1.0),
    "a size": lambda n: jnp.maximum(jnp.int32(n) - 100_000, 0),
}


@pytest.mark.parametrize("kind", sampled(NUMBERS, one_in(2)))
def test_a_wrong_proof_behind_numbers_of_positions_is_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = NUMBERS[kind]
    monkeypatch.setattr(statements, "prove_elsewhere", believing)
    found = superopt.verify(
        lambda x, y: x + weight(x.shape[0]) * jnp.maximum(x, y),
        lambda x, y: x + weight(x.shape[0]) * jnp.minimum(x, y),
        "n", "n",
    )  # fmt: skip
    assert found.status == UNKNOWN
    assert "behind a condition" in found.cause


def test_a_wrong_proof_behind_a_row_that_is_chosen_by_positions_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(x: Any, y: Any) -> Any:
        return jnp.stack([x, y])[jnp.clip(jnp.arange(x.shape[0]) - 1_000_000, 0, 1), 0]

    monkeypatch.setattr(statements, "prove_elsewhere", believing)
    found = superopt.verify(chosen, lambda x, y: chosen(x, x), "n", "n", constraints=("n >= 1",))
    assert found.status == UNKNOWN
    assert "behind a condition" in found.cause


TRUE_OF_POSITIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a maximum is a choice": (
        lambda x: x * jnp.maximum(jnp.arange(x.shape[0]) - 10**6, 0),
        lambda x: jnp.where(jnp.arange(x.shape[0]) > 10**6, x * (jnp.arange(x.shape[0]) - 10**6), 0),
    ),
    "a clip of nothing": (
        lambda x: x * jnp.clip(jnp.arange(x.shape[0]), 0, x.shape[0] - 1), lambda x: x * jnp.arange(x.shape[0])
    ),
    "a clipped index": (
        lambda x: x[jnp.clip(jnp.arange(x.shape[0]) + 1, 0, x.shape[0] - 1)],
        lambda x: jnp.concatenate([x[1:], x[-1:]]),
    ),
    "halves of positions": (
        lambda x: x * (jnp.arange(x.shape[0]) // 2),
        lambda x: x * ((jnp.arange(x.shape[0]) - jnp.arange(x.shape[0]) % 2) / 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE_OF_POSITIONS)
def test_what_numbers_of_positions_select_and_is_true_stays_proved(name: str) -> None:
    assert superopt.verify(*TRUE_OF_POSITIONS[name], "n", constraints=("n >= 1",)).status == PROVED


def test_what_stands_behind_a_guard_and_is_true_stays_proved() -> None:
    far = GUARDS["positions"]
    found = superopt.verify(
        lambda x, y: jnp.where(far(x, None), x * y + x, 0), lambda x, y: jnp.where(~far(x, None), 0, x * (1 + y)),
        "n", "n",
    )  # fmt: skip
    assert found.status == PROVED


def test_a_comparison_that_always_has_one_answer_is_no_guard() -> None:
    found = superopt.verify(lambda x, y: jnp.where(jnp.abs(x) >= 0, x, y), lambda x, y: x, "n", "n")
    assert found.status == PROVED


def test_integers_that_rounding_decides_are_not_proved() -> None:
    found = superopt.verify(lambda x, y: jnp.where(x + y == x, 1, 2), lambda x, y: jnp.where(y == 0, 1, 2), "n", "n")
    assert found.status != PROVED


def test_a_guard_opens_beside_ordinary_values_of_other_inputs() -> None:
    """Where all inputs are as large as the threshold, both sides are 0; few entries meet one integer by chance."""
    large = (lambda x, y: jnp.where(x > 5e6, jnp.exp(-jnp.abs(y)) * x, 0.0), lambda x, y: 0.0 * x, ("n k", "n k"))
    equal = (lambda x, i: jnp.where(i == 70013, x, 0.0), lambda x, i: 0.0 * x, ("n", "int32[n]"))
    for left, right, specs in (large, equal):
        assert seen_wrong(make_statement("guarded", left, right, specs, {}))


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(GUARDED, marks=pytest.mark.slow)])
def test_planted_equalities_behind_guards_are_not_proved(count: int) -> None:
    for number, case in enumerate(guarded(3, count)):
        assert check_statement(case).status != PROVED, case.name
        if number % 3 == 0:
            assert seen_wrong(case), case.name


@pytest.mark.parametrize("count", [LOOP_SAMPLE, pytest.param(LOOPS, marks=pytest.mark.slow)])
def test_false_pairs_of_loops_are_refuted(count: int) -> None:
    verdicts = [check_statement(case) for case in loops(3, count)]
    assert PROVED not in {v.status for v in verdicts}
    assert sum(v.status == REFUTED for v in verdicts) >= 0.9 * count


# ---- the kind of a size


@functools.singledispatch
def dispatched(n: Any) -> bool:
    return False


@dispatched.register
def _(n: int) -> bool:
    return n > 500


def caught(n: Any) -> bool:
    try:
        return operator.index(n) > 500
    except Exception:
        return False


KINDS: dict[str, Callable[[Any], bool]] = {
    "isinstance": lambda n: isinstance(n, int) and n > 500,
    "type": lambda n: type(n) is int and n > 500,
    "class": lambda n: n.__class__ is int and n > 500,
    "is_symbolic_dim": lambda n: not export.is_symbolic_dim(n) and n > 500,
    "an attribute": lambda n: hasattr(n, "bit_length") and n > 500,
    "an attribute of sizes": lambda n: not hasattr(n, "scope") and n > 500,
    "dispatch": dispatched,
    "index": caught,
    "a table of types": lambda n: {int: lambda n: n > 500}.get(type(n), lambda n: False)(n),
    "a set": lambda n: n in {512, 1024},
}


@pytest.mark.parametrize("ask", KINDS)
def test_code_that_asks_for_the_kind_of_a_size_is_not_proved(ask: str) -> None:
    asked = KINDS[ask]
    found = superopt.verify(lambda x: x * 2 if asked(x.shape[0]) else x, lambda x: x, "n")
    assert found.status == UNKNOWN
    assert "depends on sizes" in found.cause
    assert __file__ in found.cause


def test_branches_on_other_things_are_none_on_sizes() -> None:
    def fn(x: jax.Array, fast: bool = True) -> jax.Array:
        if not isinstance(x, jax.Array) or x.ndim != 1:
            raise ValueError("no vector")
        try:
            return x + x if fast and hasattr(x, "shape") else x
        except KeyError:
            return x

    assert superopt.verify(fn, lambda x: 2 * x, "n").status == PROVED


def test_code_that_the_garbage_collector_runs_is_not_the_program() -> None:
    """Callbacks of the collector, and finalizers of cycles, run at any instruction: in one trace and not in another."""
    first, runs = True, list[str]()

    def told(phase: str, info: dict[str, int]) -> None:
        runs.append(phase.upper() if first else phase)

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            runs.append("FIRST" if first else "next")

    def way() -> Path:
        with followed() as path:
            for _ in range(50):
                Cycle()
        assert path is not None
        return path

    before = gc.get_threshold()
    gc.callbacks.append(told)
    gc.set_threshold(7)
    try:
        one = way()
        first = False
        two = way()
    finally:
        gc.callbacks.remove(told)
        gc.set_threshold(*before)
    assert gc.isenabled()
    assert not one.differs(two)
    assert not two.differs(one)


# ---- what ends XLA


def test_a_process_of_xla_that_ended_is_an_error_with_a_type_and_starts_again() -> None:
    one = np.zeros(2, np.float32)
    slow = exported(lambda a: [lax.while_loop(lambda c: c[0] < 1, lambda c: 0.5 * c, a)], [one], x64=False)
    with pytest.raises(UnansweredError, match="ended its process: timeout"):
        referee().run(slow, [one], seconds=0.5)
    added = exported(lambda a: [a + 1], [one], x64=False)
    assert referee().run(added, [one])[0].tolist() == [1.0, 1.0]


def test_empty_arrays_do_not_end_the_process() -> None:
    found = superopt.verify(lambda a, b: jnp.concatenate([a, b])[2:], lambda a, b: b, "m+2", "m", constraints="m == 0")
    assert found.status in (PROVED, UNKNOWN)


def test_statements_of_64_bits_need_no_flag() -> None:
    assert superopt.verify(lambda x: x * 2, lambda x: x + x, "int64[n]").status == PROVED
    assert superopt.verify(lambda x: x[::-1], lambda x: x, "int64[n]").status == REFUTED


def test_bits_of_other_floats_are_compared() -> None:
    f16 = jnp.float16
    found = superopt.verify(lambda x: lax.bitcast_convert_type(x, f16), lambda x: x.astype(f16), "bfloat16[n]")
    assert found.status == REFUTED


# ---- words


def test_what_is_open_is_said_in_the_names_of_the_program() -> None:
    found = superopt.verify(
        lambda x, w: jnp.exp(x / jnp.sqrt(jnp.sum(w * w))) * jnp.sqrt(jnp.sum(x * x) * 1.0000001) + x,
        lambda x, w: jnp.exp(x / jnp.sqrt(jnp.sum(w * w))) * jnp.sqrt(jnp.sum(x * x)) + x,
        "n", "n",
    )  # fmt: skip
    assert found.status == UNKNOWN
    assert "#" not in found.cause
    assert "weights of" not in found.cause
