"""Options of the compiler: what is refused, that results stay what they are, that choices last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.backends import options
from superopt.backends.options import CHOICES, OptionChoice, accepted, choices_for, jit_with, options_of
from superopt.backends.xla import build
from superopt.candidates.candidate import Candidate
from superopt.contest.contest import OptionTrial, Outcome
from superopt.contest.rounds import Rounds, Series
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import original_program
from superopt.machine.speedup import UNTIMED
from superopt.measure import Comparison, KernelTiming, Timing, compare, time_kernels
from superopt.measure.kernels import KernelSettings
from superopt.measure.session import ComparisonSettings
from superopt.returned import remember
from superopt.returned.optimized import Optimized
from superopt.store import Store
from superopt.workshop.process import Worker
from tests.support.sampling import sampled

RNG = np.random.default_rng(0)
WIDE = {"xla_cpu_prefer_vector_width": "512"}
SETS = {"none": {}, **{c.name: options_of([c]) for c in CHOICES}, "all": options_of(CHOICES)}


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def poisoned(*shape: int) -> np.ndarray:
    """Random values with NaN, infinities, zeros of both signs and denormals among them."""
    x = rand(*shape)
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40]
    x.reshape(-1)[RNG.choice(x.size, 2 * len(odd), replace=False)] = odd * 2
    return x


def conv(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def small_net(x, k, w):
    x = jax.nn.relu(conv(x, k))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return jax.nn.softmax(x.mean((1, 2)) @ w)


def scaled(w, x):
    return jnp.tanh(x @ w) * 2


PROGRAMS = {
    "chain": (lambda x, y: jnp.tanh(x * y + 1) * jax.nn.sigmoid(y) / x, (65, 130), (65, 130)),
    "rows": (lambda x: (x.sum(1), x.max(1), x.min(1), x.max(), jnp.argmax(x, 1)), (64, 130)),
    "columns": (lambda x: (x.sum(0), x.max(0), x.mean(0)), (64, 130)),
    "softmax": (lambda x: jax.nn.softmax(x), (32, 96)),
    "clip": (lambda x, y: jnp.maximum(jnp.clip(x, -1, 1), jnp.where(y > 0, y, 1 / y)), (33, 70), (33, 70)),
    "mlp": (lambda x, a, b: jax.nn.relu(x @ a) @ b, (32, 64), (64, 96), (96, 16)),
    "one row": (lambda x, a: jax.nn.relu(x @ a + 1), (1, 64), (64, 96)),
    "net": (small_net, (1, 12, 12, 8), (3, 3, 8, 16), (16, 10)),
}


BOTH = [(name, values) for name in PROGRAMS for values in (rand, poisoned)]


@pytest.mark.parametrize(("name", "values"), sampled(BOTH, lambda n, _: n % 4 == 1))
def test_results_are_the_same_under_every_set(name: str, values) -> None:
    fn, *shapes = PROGRAMS[name]
    lowered = jax.jit(fn).lower(*[jax.ShapeDtypeStruct(s, np.float32) for s in shapes])
    compiled = {text: lowered.compile(compiler_options=accepted(o)[0] or None) for text, o in SETS.items()}
    for _ in range(2):
        args = [values(*shape) for shape in shapes]
        want = compiled["none"](*args)
        for text, run in compiled.items():
            for got, expected in zip(jax.tree.leaves(run(*args)), jax.tree.leaves(want), strict=True):
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5, err_msg=text)


def test_unknown_options_are_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {**WIDE, "xla_cpu_no_such_thing": True, "xla_cpu_use_fusion_emitters": "perhaps"}
    kept, refused = accepted(wanted)
    assert kept == WIDE
    assert set(refused) == {"xla_cpu_no_such_thing", "xla_cpu_use_fusion_emitters"}
    assert "No such compile option" in refused["xla_cpu_no_such_thing"]
    executable = build(original_program(import_function(scaled, (rand(4, 4), rand(4, 4))).graph), options=wanted)
    assert executable.options == WIDE
    assert executable.refused == refused
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=128 --other=1")
    assert accepted(WIDE) == ({}, {"xla_cpu_prefer_vector_width": "xla_cpu_prefer_vector_width is set by XLA_FLAGS"})


def test_choices_fit_the_program_and_the_machine() -> None:
    usual, out = choices_for({"add"})
    assert "own convolutions" not in {c.name for c in usual}
    assert not {c.name for c in usual} & set(out)
    known = {c.name for c in choices_for({"add", "dot_general", "conv_general_dilated"})[0]} | set(out)
    assert known == {c.name for c in CHOICES}
    odd = (
        OptionChoice("future", "", options=(("xla_cpu_no_such_thing", True),)),
        OptionChoice("elsewhere", "", features=frozenset({"no such extension"})),
    )
    usable, out = choices_for({"add"}, odd)
    assert usable == []
    assert "No such compile option" in out["future"]
    assert "no such extension" in out["elsewhere"]


def test_choices_join() -> None:
    together = options_of(CHOICES)
    assert all(together.items() >= options_of([c]).items() for c in CHOICES)
    kinds = [kind.removeprefix("LIBRARY_FUSION_TYPE_") for kind in str(together[options.LIBRARY]).split(",")]
    assert sorted(kinds) == ["INDIVIDUAL_DOT", "REDUCE"]
    assert options_of([]) == {}


@pytest.mark.parametrize("chosen", [WIDE, {}], ids=["options", "default"])
def test_jit_with_options_under_transformations(chosen: dict[str, str]) -> None:
    def fn(x, y):
        return jnp.tanh(x) * y

    fast, x, y = jit_with(fn, chosen), rand(5), rand(5)
    near = np.testing.assert_allclose
    near(fast(x, y), fn(x, y), rtol=1e-5, atol=1e-6)
    near(jax.jit(lambda a: fast(a, y) + 1)(x), fn(x, y) + 1, rtol=1e-5, atol=1e-6)
    near(jax.jit(lambda a: fast(x, y) + a)(x), fn(x, y) + x, rtol=1e-5, atol=1e-6)  # no argument is traced
    near(jax.vmap(fast)(x, y), fn(x, y), rtol=1e-5, atol=1e-6)
    near(jax.grad(lambda a: fast(a, y).sum())(x), (1 - np.tanh(x) ** 2) * y, rtol=1e-4, atol=1e-6)
    near(jax.lax.scan(lambda c, _: (fast(c, y), None), x, None, length=2)[0], fn(fn(x, y), y), rtol=1e-5, atol=1e-6)
    near(jax.jit(fast).lower(x, y).compile()(x, y), fn(x, y), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="broadcast"):
        jit_with(lambda a, b: jnp.broadcast_to(a, (7, 3)) + b, chosen)(x, y)


def test_the_compiler_gets_the_options() -> None:
    program = original_program(import_function(conv, (rand(1, 28, 28, 32), rand(3, 3, 32, 64))).graph)
    entry = {
        name: build(program, options=SETS[name]).lower().compile().as_text().split("ENTRY")[1]
        for name in ("none", "own convolutions")
    }
    assert "convolution(" in entry["own convolutions"]
    assert "convolution(" not in entry["none"]


def with_options(fn, args, chosen, *, frozen=()) -> Optimized:
    """What `optimize` returns when options win on the original program."""
    result = superopt.optimize(fn, *args, frozen=frozen, budget="30steps", deterministic=True, store=False)
    program = original_program(result.imported.graph)
    executable = build(program, result.imported.frozen_values, options=chosen)
    report = replace(result.report, compiler_options=dict(chosen), original_returned=True, rewrites=())
    return Optimized(result.imported, program, executable, report)


@pytest.mark.parametrize("frozen", [(), (0,)])
def test_saved_and_stored_results_keep_their_options(tmp_path, frozen) -> None:
    w, x = rand(8, 8), rand(4, 8)
    result = with_options(scaled, (w, x), WIDE, frozen=frozen)
    want = scaled(w, x)
    np.testing.assert_allclose(result(w, x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(result)(w, x), want, rtol=1e-5, atol=1e-6)
    assert jax.grad(lambda a: result(w, a).sum())(x).shape == x.shape
    loaded = superopt.load(result.save(tmp_path / "p.superopt"))
    assert loaded.compiler_options == WIDE
    np.testing.assert_allclose(loaded(w, x), want, rtol=1e-5, atol=1e-6)
    with Store(tmp_path / "store.sqlite") as store:
        remember.remember(store, "key", result)
        again = remember.recall(store, "key", result.imported)
        assert again is not None
        assert again.executable.options == again.report.compiler_options == WIDE
        odd = replace(result.report, compiler_options={**WIDE, "xla_cpu_no_such_thing": True})
        remember.remember(store, "odd", Optimized(result.imported, result.program, result.executable, odd))
        again = remember.recall(store, "odd", result.imported)
        assert again is not None
        assert again.report.compiler_options == WIDE
        assert any("no_such_thing: not a choice of this project" in note for note in again.report.notes)
    np.testing.assert_allclose(again(w, x), want, rtol=1e-5, atol=1e-6)


def test_a_result_without_rules_that_were_not_proved_is_kept_until_they_are(monkeypatch, tmp_path) -> None:
    w, x = rand(8, 8), rand(4, 8)
    result = with_options(scaled, (w, x), {})
    with Store(tmp_path / "store.sqlite") as store:
        monkeypatch.setattr(remember, "count_unproved", lambda store: 5)
        remember.remember(store, "key", result, unproved=5)
        assert remember.recall(store, "key", result.imported) is not None
        monkeypatch.setattr(remember, "count_unproved", lambda store: 3)
        assert remember.recall(store, "key", result.imported) is None
        remember.remember(store, "all proved", result)
        assert remember.recall(store, "all proved", result.imported) is not None


def test_a_recalled_original_is_not_compared_with_itself(monkeypatch, tmp_path) -> None:
    w, x = rand(8, 8), rand(4, 8)
    plain, wide = with_options(scaled, (w, x), {}), with_options(scaled, (w, x), WIDE)
    other = superopt.optimize(lambda w, x: scaled(w, x) + 1, w, x, budget="30steps", deterministic=True, store=False)
    compared: list[Any] = []
    monkeypatch.setattr(remember, "differs_from_original", lambda *args, **kwargs: compared.append(args) or "yes")
    with Store(tmp_path / "store.sqlite") as store:
        remember.remember(store, "key", plain)
        assert remember.recall(store, "key", plain.imported) is not None
        assert not compared
        remember.remember(store, "wide", wide)
        assert remember.recall(store, "wide", wide.imported) is None
        assert remember.recall(store, "key", other.imported) is None, "that of another function"
        assert len(compared) == 2


def test_run_key_depends_on_the_flags_of_xla(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    path = tmp_path / "store.sqlite"
    say: list[str] = []
    for flags in ("", "--xla_cpu_use_xnnpack=false", ""):
        monkeypatch.setenv("XLA_FLAGS", flags)
        args = {"budget": "30steps", "deterministic": True, "store": path, "progress": say.append, "rules": ()}
        superopt.optimize(scaled, rand(8, 8), rand(4, 8), **args)
    assert say.count("answered from the store") == 1


def test_programs_and_kernels_are_timed_with_options() -> None:
    imported = import_function(scaled, (rand(8, 8), rand(4, 8)))
    program = original_program(imported.graph)
    bad = {"xla_cpu_use_fusion_emitters": False}
    with Worker() as worker:
        result = compare(
            program, [Candidate(name="", program=program, options=o) for o in (WIDE, bad)], imported.live_values,
            settings=ComparisonSettings(2, 1e-4), worker=worker,
        )  # fmt: skip
        assert all(isinstance(c, Timing) for c in result.candidates)
        settings = KernelSettings(rounds=1, sample_s=1e-4, max_calls=2)
        found = time_kernels([imported.graph] * 2, settings=settings, options=[WIDE, {"no such": True}], worker=worker)
    assert isinstance(found[0], KernelTiming)
    assert "No such compile option" in found[1].detail


@pytest.mark.parametrize("holds", [True, False])
def test_a_function_is_compiled_with_the_options_that_won(monkeypatch: pytest.MonkeyPatch, holds: bool) -> None:
    """Those that paid are in the report and in what is returned."""

    def outcome(rounds: Rounds, entries: Sequence[Candidate], *_: object, **__: object) -> Outcome:
        tuned = rounds.subject.original.with_options(("wide vectors",), WIDE)
        every = [*entries, tuned]
        series = Series(every, 0)
        times = [Timing(tuple(1e-3 * s * (1.0 + 1e-3 * (i % 2)) for i in range(9)), UNTIMED) for s in (3.0, 2.0)]
        series.add(Comparison(times[0], (times[holds],), again_s=times[0].samples_s), [len(entries)], 0)
        tried = {"original": [OptionTrial(("wide vectors",), "program", 1.5)]}
        return Outcome(every, series, series, len(entries), tuple(series.order), tried, {"other": "absent"})

    def chain(x, y):
        return jnp.tanh(x * y + 1) * jax.nn.sigmoid(y) - x

    monkeypatch.setattr("superopt.pipeline.contesting.contest", outcome)
    args = (rand(128, 256), rand(128, 256))
    result = superopt.optimize(chain, *args, budget="50steps", store=False, rules=(), kernels=False)
    report = result.report
    assert (report.compiler_options == WIDE) == holds
    assert result.executable.options == report.compiler_options
    assert holds == bool(report.tuning["choices"]) == (report.tuning["gain"] is not None) == (report.speedup.low > 1.0)
    assert report.tuning["tried"]["original"][0]["ratio"] == 1.5
    assert report.tuning["not_tried"] == {"other": "absent"}
    assert ("wide vectors (xla_cpu_prefer_vector_width=512)" in str(report)) == holds
    np.testing.assert_allclose(result(*args), chain(*args), rtol=1e-5, atol=1e-5)
