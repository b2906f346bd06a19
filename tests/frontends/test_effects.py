"""Effects of a function are those of the optimised one: `jax.debug` after the results, in order; others untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import InputError
from superopt.returned.optimized import Optimized

X = np.asarray([1.0, 2.0, 3.0], np.float32)
Seen = list[tuple[Any, ...]]


def optimised(fn: Callable[..., Any], *args: Any, **options: Any) -> Optimized:
    settings = {"budget": "20steps", "deterministic": True, "store": False, "rules": []}
    return superopt.optimize(fn, *args, **(settings | options))


@pytest.fixture
def seen() -> Seen:
    return []


def noted(seen: Seen, name: str) -> Callable[..., None]:
    return lambda *values: seen.append((name, *(np.asarray(v).tolist() for v in values)))


def same_effects(seen: Seen, fn: Callable[..., Any], fast: Callable[..., Any], *args: Any) -> Seen:
    """Call both; results and effects agree, in order.  The effects of one call."""
    assert seen == [], "optimising has no effect"
    want = jax.jit(fn)(*args)
    jax.effects_barrier()
    expected, got = list(seen), fast(*args)
    jax.effects_barrier()
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), want, got)
    assert seen == expected * 2
    return expected


def test_debugging_effects_are_kept_in_order(seen: Seen) -> None:
    def f(w: Any, x: Any) -> Any:
        y = w @ x
        jax.debug.callback(noted(seen, "first"), y.sum(), ordered=True)
        z = jnp.tanh(y) * 1.0
        jax.debug.callback(noted(seen, "second"), z, w[0], ordered=True)
        jax.debug.callback(noted(seen, "again"), y.sum(), ordered=True)
        jax.debug.callback(noted(seen, "again"), y.sum(), ordered=True)
        jax.debug.callback(noted(seen, "nothing"), ordered=True)
        return {"z": z, "twice": (z * 2, 3)}

    w = np.eye(3, dtype=np.float32) * 2
    fast = optimised(f, w, X, frozen=0)
    names = [name for name, *_ in same_effects(seen, f, fast, jnp.asarray(w), jnp.asarray(X))]
    assert names == ["first", "second", "again", "again", "nothing"]
    assert any("debug_callback x5" in note for note in fast.report.notes)
    assert not fast.report.opaque_ops
    seen.clear()
    same_effects(seen, f, fast, w, X)  # arrays that are on no device take another way
    with pytest.raises(InputError, match="effects"):
        fast.save("nowhere.superopt")


def test_prints_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        jax.debug.print("sum {s} of {n}", s=x.sum(), n=3)
        return x * 2

    fast = optimised(f, X)
    assert capfd.readouterr().out == ""
    for _ in range(3):
        fast(jnp.asarray(X))
    jax.effects_barrier()
    assert capfd.readouterr().out == "sum 6.0 of 3\n" * 3


def test_a_branch_that_only_tells_is_kept(seen: Seen) -> None:
    def f(x: Any) -> Any:
        jax.lax.cond(x[0] > 0, lambda: jax.debug.callback(noted(seen, "positive"), x), lambda: None)
        return x + 1

    fast = optimised(f, X)
    assert len(same_effects(seen, f, fast, X)) == 1
    seen.clear()
    assert not same_effects(seen, f, fast, -X)


@pytest.mark.parametrize("ordered", [True, False])
def test_effects_besides_debugging_keep_the_function_as_it_is(seen: Seen, ordered: bool) -> None:
    def f(x: Any) -> Any:
        jax.experimental.io_callback(noted(seen, "wrote"), None, x.sum(), ordered=ordered)
        return x * 2

    fast = optimised(f, X, deterministic=False)
    assert len(same_effects(seen, f, fast, X)) == 1
    assert "kept whole" in fast.report.verdict
    assert fast.report.original_returned


def test_effects_inside_of_a_loop_keep_the_function_as_it_is(seen: Seen) -> None:
    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            jax.debug.callback(noted(seen, "step"), row, ordered=True)
            return carry + row, carry

        return jax.lax.scan(step, jnp.float32(0), x)

    fast = optimised(f, X, deterministic=False)
    assert [value for _, value in same_effects(seen, f, fast, X)] == [1.0, 2.0, 3.0]
    assert "scan computes something and has effects besides" in fast.report.verdict


def test_effects_under_transformations(seen: Seen) -> None:
    def f(x: Any) -> Any:
        jax.debug.callback(noted(seen, "in"), x.sum())
        return (x**2).sum()

    fast = optimised(f, X)
    for change in (jax.jit, jax.grad, jax.vmap):
        rows = np.stack([X, X + 1]) if change is jax.vmap else X
        seen.clear()
        same_effects(seen, change(f), change(fast), rows)
