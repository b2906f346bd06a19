"""The Python API end to end on small programs: same values, same pytrees, transformations, errors, store, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import ArgumentError, InputError, UsageError, VerificationError
from superopt.machine.budget import Budget, parse_budget
from superopt.machine.deadline import Deadline
from superopt.make.plain import KernelMaker
from superopt.make.schedules import ScheduleStage
from superopt.pipeline import exploring, optimizer
from superopt.workshop import cluster as clusters
from superopt.workshop.scheduler import LocalExecutor, Seat

RNG = np.random.default_rng(0)


def chain(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    """(A B) x, which wants to be A (B x), and a bias."""
    return {"y": (params["a"] @ params["b"]) @ x + params["c"][:, None]}


def arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    params = {
        "a": RNG.standard_normal((192, 192)).astype(np.float32),
        "b": RNG.standard_normal((192, 192)).astype(np.float32),
        "c": RNG.standard_normal(192).astype(np.float32),
    }
    return params, RNG.standard_normal((192, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def fast() -> superopt.Optimized:
    params, x = arguments()
    return superopt.optimize(chain, params, x, budget="500steps", deterministic=True, store=False)


def test_the_result_is_the_same_function(fast: superopt.Optimized) -> None:
    params, x = arguments()
    np.testing.assert_allclose(fast(params, x)["y"], chain(params, x)["y"], rtol=2e-3, atol=2e-2)
    assert fast.report.rewrites, fast.report
    assert any(used.rule.startswith("dot-assoc") for used in fast.report.rewrites)


def test_it_says_what_it_is(fast: superopt.Optimized) -> None:
    assert repr(fast) == f"<superopt program chain: {fast.report.verdict}, {fast.speedup}>"


def test_it_works_under_jit_vmap_and_grad(fast: superopt.Optimized) -> None:
    params, x = arguments()
    expected = chain(params, x)["y"]
    np.testing.assert_allclose(jax.jit(fast)(params, x)["y"], expected, rtol=2e-3, atol=2e-2)
    many = jax.vmap(fast, in_axes=(None, 0))(params, jnp.stack([x, 2 * x]))["y"]
    np.testing.assert_allclose(many[0], expected, rtol=2e-3, atol=2e-2)
    got = jax.grad(lambda x: fast(params, x)["y"].sum())(x)
    want = jax.grad(lambda x: chain(params, x)["y"].sum())(x)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


def test_a_budget_of_steps_gives_the_same_program_again(fast: superopt.Optimized) -> None:
    params, x = arguments()
    again = superopt.optimize(chain, params, x, budget="500steps", deterministic=True, store=False)
    assert again.report.after_text == fast.report.after_text


def test_saved_programs_run_without_the_function(fast: superopt.Optimized, tmp_path) -> None:
    params, x = arguments()
    loaded = superopt.load(fast.save(tmp_path / "chain.superopt"))
    np.testing.assert_allclose(loaded(params, x)["y"], fast(params, x)["y"], rtol=1e-5, atol=1e-4)
    with pytest.raises(ArgumentError, match="argument x is missing; the program takes params, x"):
        loaded(params)
    (tmp_path / "not").write_bytes(b"something else")
    with pytest.raises(InputError, match="not a saved program"):
        superopt.load(tmp_path / "not")


def test_the_same_call_is_answered_from_the_store(tmp_path) -> None:
    params, x = arguments()
    options = {"budget": "300steps", "deterministic": True, "store": tmp_path / "store.sqlite"}
    first = superopt.optimize(chain, params, x, **options)
    second = superopt.optimize(chain, params, x, **options)
    assert any("answered from the store" in note for note in second.report.notes)
    assert not any("answered from the store" in note for note in first.report.notes)
    np.testing.assert_array_equal(second(params, x)["y"], first(params, x)["y"])
    # other weights give another result: frozen values are not baked into what is stored
    params["a"] = params["a"] + 1
    np.testing.assert_allclose(second(params, x)["y"], chain(params, x)["y"], rtol=2e-3, atol=3e-2)


def test_measured_and_returned_only_when_faster() -> None:
    params, x = arguments()
    result = superopt.optimize(chain, params, x, budget="3s", store=False)
    report = result.report
    assert report.finalists
    if report.rewrites:
        assert report.speedup.low > 1.0
        assert report.numerics is not None
        assert report.numerics.max_rel_error < 1e-4
        assert report.numerics.optimised_vs_f64 is not None
    else:
        assert result.program.hot.outputs == result.imported.graph.outputs
    np.testing.assert_allclose(result(params, x)["y"], chain(params, x)["y"], rtol=2e-3, atol=2e-2)


def test_control_flow_bodies_are_optimised_too() -> None:
    def steps(a, b, xs):
        def body(h, x):
            return (a @ b) @ h + x, h.sum()

        return jax.lax.scan(body, xs[0], xs)

    a, b = (RNG.standard_normal((96, 96)).astype(np.float32) / 10 for _ in range(2))
    xs = RNG.standard_normal((3, 96, 1)).astype(np.float32)
    result = superopt.optimize(steps, a, b, xs, budget="300steps", deterministic=True, store=False)
    assert any("bodies of control flow" in note for note in result.report.notes)
    for got, want in zip(result(a, b, xs), steps(a, b, xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_opaque_operations_are_kept_and_counted() -> None:
    def top(x):
        return jnp.sort(x * 2.0)[..., -3:] + 0.0

    x = RNG.standard_normal((4, 16)).astype(np.float32)
    result = superopt.optimize(top, x, budget="100steps", deterministic=True, store=False)
    assert result.report.opaque_ops == {"sort": 1}
    np.testing.assert_allclose(result(x), top(x))


def test_jit_decorator_optimises_per_shape() -> None:
    @superopt.jit(budget="100steps", deterministic=True, store=False)
    def f(x):
        return jnp.tanh(x) + 1.0

    np.testing.assert_allclose(f(np.ones(3, np.float32)), np.tanh(np.ones(3)) + 1, rtol=1e-6)
    np.testing.assert_allclose(f(np.ones(5, np.float32)), np.tanh(np.ones(5)) + 1, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(np.ones(7, np.float32)), np.tanh(np.ones(7)) + 1, rtol=1e-6)


@pytest.mark.parametrize("budget", [0, "0s", -1, "soon", "5parsecs", None, True, "1e-400s"])
def test_bad_budgets(budget) -> None:
    with pytest.raises(UsageError) as caught:
        superopt.optimize(chain, *arguments(), budget=budget, store=False)
    assert caught.value.hint


def test_good_budgets() -> None:
    assert parse_budget("2min") == Budget(120.0, None)
    assert parse_budget(1.5) == Budget(1.5, None)
    assert parse_budget("5000steps") == Budget(None, 5000)


def test_bad_arguments() -> None:
    params, x = arguments()
    with pytest.raises(ArgumentError, match="not an array"):
        superopt.optimize(chain, params, "x", store=False)
    with pytest.raises(ArgumentError, match="fails on these arguments: TypeError in test_api"):
        superopt.optimize(chain, params, x[:5], store=False)
    with pytest.raises(ArgumentError, match="neither a function nor a path"):
        superopt.optimize(np.ones(3), x, store=False)
    with pytest.raises(UsageError, match="dims"):
        superopt.optimize(chain, params, x, dims={"n": 3}, store=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 1.5), ("seed", True), ("objective", 3), ("store", 3), ("kwargs", 3), ("progress", 3),
     ("max_prepared_bytes", "x"), ("max_prepared_bytes", -1), ("workers", 4)],
)  # fmt: skip
def test_options_of_other_types_are_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}") as caught:
        superopt.optimize(chain, *arguments(), **{"store": False, name: value})
    assert caught.value.hint.startswith("it has to be ")


def test_all_jobs_are_done_by_the_workers_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster(LocalExecutor):
        """Workers of an address, which are of this machine."""

        def __init__(self, address: str) -> None:
            self.address, self.ended = address, False
            self.asked: list[str] = []

        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None:
            self.ended = True

        def seats(self, count: int, limits: Any, *, inline: bool = False, loads: str = "") -> list[Seat]:
            self.asked.append(loads)
            return super().seats(count, limits, inline=inline, loads=loads)

    makers: list[KernelMaker] = []
    monkeypatch.setattr(clusters, "RayExecutor", Cluster)
    monkeypatch.setattr(optimizer, "KernelMaker", lambda *given: makers.append(KernelMaker(*given)) or makers[0])
    superopt.optimize(jnp.tanh, np.ones(4, np.float32), search=False, deterministic=True, store=False, workers="a:1")
    cluster = makers[0]._executor
    assert isinstance(cluster, Cluster)
    assert (cluster.address, cluster.ended) == ("a:1", True)
    assert cluster.asked == ["", "", "", "superopt.make.making:load"], "programs, again, kernels; their makers"
    stage = ScheduleStage(makers[0]._pool, None, executor=cluster)  # type: ignore[arg-type]
    assert stage.searched([], {}, {}, Deadline.within(60.0)) == {}
    assert len(cluster.asked) == 5


def test_what_was_returned_for_want_of_time_is_no_answer_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploring, "explore", lambda *_: None)
    store = tmp_path / "store.db"
    hurried = superopt.optimize(chain, *arguments(), budget=3, kernels=False, store=store)
    assert hurried.report.verdict == "the original was returned: the time does not suffice for a search"
    monkeypatch.undo()
    searched = superopt.optimize(chain, *arguments(), budget=3, kernels=False, store=store)
    assert searched.report.search


def test_arguments_that_fit_into_no_memory() -> None:
    large = jax.ShapeDtypeStruct((10**15,), "float32")
    with pytest.raises(ArgumentError, match="do not fit into memory"):
        superopt.optimize(lambda x: x * 2, large, store=False)


def test_user_rules_must_be_proved() -> None:
    good = superopt.rule("twice: A[*a]\n  A + A  ==  A * 2")
    x = RNG.standard_normal((8, 8)).astype(np.float32)
    result = superopt.optimize(
        lambda x: jnp.exp(x + x), x, budget="50steps", deterministic=True, store=False, rules=[good]
    )
    assert result.report.rules_proved == 1
    with pytest.raises(VerificationError, match="REFUTED"):
        superopt.rule("wrong: A[*a]\n  A + A  ==  A")


def test_verify_gives_verdicts() -> None:
    assert superopt.verify("t: A[*a]\n  exp(A) + A  ==  A + exp(A)").status == "PROVED"
    refuted = superopt.verify("t: A[*a n]\n  rev(A, n)  ==  A")
    assert refuted.status == "REFUTED"
    assert refuted.counterexample is not None
    with pytest.raises(UsageError):
        superopt.verify(3)  # type: ignore[arg-type]


def test_rules_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="'dot-assoc', which is no rule"):
        superopt.optimize(jnp.tanh, jnp.ones(4), budget="1steps", store=False, rules=["dot-assoc"])  # type: ignore[list-item]
