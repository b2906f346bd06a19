"""`superopt.jit` where users wrote `jax.jit`: the same arguments, methods, results and types of results."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import ArgumentError
from superopt.machine.background import BackgroundCall
from superopt.pipeline import jitted, shares
from superopt.pipeline.optimizer import optimize
from superopt.pipeline.shares import Shares

pytestmark = pytest.mark.usefixtures("keeps_plain", "quickly")

FAST: dict[str, Any] = {"budget": "20steps", "deterministic": True, "store": False, "rules": (), "kernels": False}
W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)


def twice_mixed(x: Any) -> Any:
    """What is frozen here is a product of two closed-over arrays, so the program is not the original."""
    return x @ (jnp.asarray(W) @ jnp.asarray(W).T)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often something is optimised."""
    seen = [0]
    whole = jitted.optimize

    def counted(*args: Any, **options: Any) -> Any:
        seen[0] += 1
        return whole(*args, **options)

    monkeypatch.setattr(jitted, "optimize", counted)
    return seen


def same(got: Any, want: Any) -> None:
    """Equal in structure, type, weakness of the type and, within rounding, in value."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_static_arguments_by_position_and_name(count: list[int]) -> None:
    def f(x, n, *, mode="sum"):
        return jnp.stack([x] * n).sum(0) if mode == "sum" else x - n

    static: dict[str, Any] = {"static_argnums": 1, "static_argnames": ("n", "mode")}
    ours, theirs = superopt.jit(f, **static, **FAST), jax.jit(f, **static)
    for call in (lambda g: g(X, 3), lambda g: g(X, n=3), lambda g: g(X, 3, mode="less"), lambda g: g(X, 2)):
        same(call(ours), call(theirs))
    assert count == [3], "3 by position and by name is one program"
    for n in (1, 1.0, True):
        same(superopt.jit(lambda x, n: x * n, static_argnums=1, **FAST)(X, n), jnp.asarray(X * n))
    with pytest.raises((ArgumentError, ValueError), match=r"no hash|[Nn]on-hashable"):
        ours(X, [3])


def test_arguments_that_are_static_by_position_or_by_name_alone() -> None:
    def f(x, n, m="times"):
        return x * n if m == "times" else x - n

    static: dict[str, Any] = {"static_argnums": 1, "static_argnames": "m"}
    ours, theirs = superopt.jit(f, **static, **FAST), jax.jit(f, **static)
    for call in (lambda g: g(X, 2), lambda g: g(X, 2, m="less"), lambda g: g(X, n=3), lambda g: g(X, m="less", n=X)):
        same(call(ours), call(theirs))


def test_a_program_of_arguments_that_are_static_by_name_alone_is_saved(tmp_path: Path) -> None:
    def f(x, n, m="times"):
        return x * n if m == "times" else x - n

    jitted = jax.jit(f, static_argnums=1, static_argnames="m")
    fast = superopt.optimize(jitted, X, 2, kwargs={"m": "less"}, **FAST)
    for called in (fast, superopt.load(fast.save(tmp_path / "p.superopt"))):
        same(called(X, 2, m="less"), jitted(X, 2, m="less"))


def test_functions_without_a_signature() -> None:
    class Twice:
        __signature__ = "none that can be read"

        def __call__(self, x: Any) -> Any:
            return x * 2

    same(superopt.jit(Twice(), **FAST)(X), jax.jit(Twice())(X))


def test_arguments_that_are_given_away_by_position_alone() -> None:
    def f(x):
        return x + 1

    ours = superopt.jit(f, donate_argnums=0, donate_argnames=(), **FAST)
    x, y = jnp.asarray(np.concatenate([X, X])), jnp.asarray(np.concatenate([X, X]))
    ours(x)
    ours(x=y)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


def test_transfers_of_an_optimisation_are_none_of_the_users() -> None:
    x, seen = jnp.asarray(X), set[str | None]()
    fn = superopt.jit(twice_mixed, **FAST)
    fast = superopt.optimize(twice_mixed, X, **FAST)
    with jax.transfer_guard("disallow"):
        for called in (fn, fn, fast):
            assert called(x).shape == X.shape
        with pytest.raises(Exception, match="Disallowed host-to-device"):
            fast(X)
        superopt.optimize(twice_mixed, X, progress=lambda line: seen.update(guards()), **FAST)
    assert seen == {"allow"}, "the first use of kernels would be refused"


def guards() -> tuple[str | None, str | None]:
    """The guard of transfers, here and in a thread of an optimisation."""

    def found() -> str | None:
        return jax.config.jax_transfer_guard_host_to_device  # pyright: ignore[reportAttributeAccessIssue]

    return found(), BackgroundCall(found).result()


def test_rules_for_vmap_are_those_of_the_function() -> None:
    @jax.custom_batching.custom_vmap
    def twice(x: jax.Array) -> jax.Array:
        return x * 2

    @twice.def_vmap
    def _(size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return x * 20, True

    def f(x: jax.Array) -> jax.Array:
        return twice(twice_mixed(x[None])[0])

    fast = superopt.optimize(f, X[0], **FAST)
    assert "custom_vmap of twice" in fast.report.verdict
    called = superopt.jit(f, **FAST)
    for fn in (fast, called, called):
        same(fn(X[0]), jax.jit(f)(X[0]))
        same(jax.vmap(fn)(X), jax.vmap(jax.jit(f))(X))


def test_arguments_may_have_any_name(tmp_path: Path) -> None:
    def f(self, args, packed):
        return self * args - packed

    given = {"self": X, "args": X, "packed": X}
    fast = superopt.optimize(f, kwargs=given, **FAST)
    for called in (superopt.jit(f, **FAST), fast, superopt.load(fast.save(tmp_path / "p.superopt"))):
        same(called(**given), jax.jit(f)(**given))
    assert superopt.jit(f, **FAST).eval_shape(**given).shape == X.shape


def test_equal_static_values_of_other_types_are_other_programs() -> None:
    @functools.partial(superopt.jit, static_argnums=1, **FAST)
    def f(x, n):
        return x * n

    x = np.ones(3, np.int32)
    assert [f(x, n).dtype for n in (1, 1.0, 1)] == [jnp.int32, jnp.float32, jnp.int32]


@pytest.mark.parametrize("fn", [twice_mixed, lambda x: x + 1], ids=["program", "original"])
@pytest.mark.parametrize("given", [{"donate_argnums": 0}, {"donate_argnames": "x"}])
def test_arrays_given_away_are_gone(fn: Any, given: Any) -> None:
    def f(x):
        return fn(x)

    for ours in (superopt.jit(f, **given, **FAST), superopt.jit(jax.jit(f, **given), **FAST)):
        for i in range(3):  # what was built first is not what is called last
            x = jnp.asarray(np.concatenate([X, X]) + i)
            want = fn(x)
            same(ours(x), want)
            assert x.is_deleted()


def test_an_optimised_jitted_function_keeps_what_jit_was_told() -> None:
    def f(x, n):
        return (x @ (jnp.asarray(W) @ jnp.asarray(W).T)) * n

    fast = superopt.optimize(jax.jit(f, donate_argnums=0, static_argnums=1), X, 3, **FAST)
    assert not fast.report.original_returned
    x = jnp.asarray(np.concatenate([X, X]))[:4]
    same(fast(x, 3), f(X, 3))
    assert x.is_deleted()
    same(fast(X, n=3), f(X, 3))
    with pytest.raises(ArgumentError, match="argument n is 4, the program was made for 3"):
        fast(X, 4)


def test_methods_of_a_jitted_function() -> None:
    def f(x, n):
        """Multiply."""
        return x * n

    ours, theirs = superopt.jit(f, static_argnums=1, **FAST), jax.jit(f, static_argnums=1)
    assert (ours.__name__, ours.__doc__, ours.__wrapped__) == ("f", "Multiply.", f)
    assert ours.lower(X, 2).as_text() == theirs.lower(X, 2).as_text()
    assert ours.eval_shape(X, 2) == theirs.eval_shape(X, 2)
    assert str(ours.trace(X, 2).jaxpr) == str(theirs.trace(X, 2).jaxpr)
    np.testing.assert_allclose(ours.lower(X, 2).compile()(X), 2 * X)
    ours(X, 2)
    assert len(ours.programs) == 1
    ours.clear_cache()
    assert not ours.programs
    same(ours(X, 2), theirs(X, 2))


def test_methods_of_classes() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @functools.partial(superopt.jit, static_argnums=0, **FAST)
        def plain(self, x):
            return x * self.by

        @staticmethod
        @superopt.jit(**FAST)
        def static(x):
            return x + 1

    two, three = Scale(2.0), Scale(3.0)
    np.testing.assert_allclose(two.plain(X), 2 * X)
    np.testing.assert_allclose(three.plain(X), 3 * X)
    np.testing.assert_allclose(two.static(X), X + 1)
    assert isinstance(Scale.plain, jitted.Jitted)


def test_a_counter_that_begins_as_a_number(count: list[int]) -> None:
    """The type of a Python number is weak, that of the array which comes back in its place as well."""

    def step(state, g):
        return {"step": state["step"] + 1, "w": state["w"] @ (jnp.asarray(W) @ jnp.asarray(W).T) - g * state["step"]}

    ours, theirs = superopt.jit(step, **FAST), jax.jit(step)
    a, b = ({"step": 0, "w": jnp.asarray(X)} for _ in range(2))
    for _ in range(3):
        a, b = ours(a, X), theirs(b, X)
        same(a, b)
    a["step"] = b["step"] = jnp.asarray(np.int32(3))  # from a checkpoint: not weak
    for _ in range(2):
        a, b = ours(a, X), theirs(b, X)
        same(a, b)
    assert count == [1]


def test_weak_types_matter_where_they_make_another_program(count: list[int]) -> None:
    ours, theirs = superopt.jit(lambda x, s: x * s, **FAST), jax.jit(lambda x, s: x * s)
    x = jnp.asarray(X, jnp.bfloat16)
    for s in (2.0, np.float32(2.0), jnp.asarray(2.0), 3.0):
        same(ours(x, s), theirs(x, s))
    assert count == [2]


def test_weak_types_of_an_optimised_function() -> None:
    def f(n, x):
        return n + 1, x @ (jnp.asarray(W) @ jnp.asarray(W).T) * n

    fast = superopt.optimize(f, 0, X, **FAST)
    assert not fast.report.original_returned
    for n in (1, jnp.asarray(1), np.int32(1), jnp.asarray(np.int32(1))):
        same(fast(n, X), jax.jit(f)(n, X))
        same(jax.jit(fast)(n, X), jax.jit(f)(n, X))


def test_functions_among_the_leaves(count: list[int]) -> None:
    """Modules hold their activation as a leaf."""

    @superopt.jit(**FAST)
    def apply(layer, x):
        return layer["act"](x @ layer["w"])

    layer = {"w": jnp.asarray(W), "act": jax.nn.relu}
    for _ in range(2):
        np.testing.assert_allclose(apply(layer, X), jax.nn.relu(X @ W), atol=1e-5)
    np.testing.assert_allclose(apply({**layer, "act": jnp.sin}, X), np.sin(X @ W), atol=1e-5)
    assert count == [2]
    slope = jax.grad(lambda w: apply({**layer, "w": w}, X).sum())(layer["w"])
    np.testing.assert_allclose(slope, jax.grad(lambda w: jax.nn.relu(X @ w).sum())(layer["w"]), atol=1e-5)
    fast = superopt.optimize(lambda layer, x: layer["act"](x @ layer["w"]), layer, X, frozen=0, **FAST)
    np.testing.assert_allclose(fast(layer, X), jax.nn.relu(X @ W), atol=1e-5)


@pytest.mark.parametrize("fn", [twice_mixed, lambda x: jnp.sin(x)], ids=["program", "original"])
def test_inside_of_transformations(fn: Any, count: list[int]) -> None:
    ours = superopt.jit(fn, **FAST)
    xs = jnp.stack([jnp.asarray(X), 2 * jnp.asarray(X)])

    def check() -> None:
        np.testing.assert_allclose(jax.vmap(ours)(xs), jax.vmap(fn)(xs), atol=1e-5)
        got = jax.grad(lambda x: ours(x).sum())(jnp.asarray(X))
        np.testing.assert_allclose(got, jax.grad(lambda x: fn(x).sum())(jnp.asarray(X)), atol=1e-5)
        np.testing.assert_allclose(jax.jit(lambda x: ours(x) + ours(X))(X), 2 * fn(jnp.asarray(X)), atol=1e-5)
        scanned = jax.lax.scan(lambda c, x: (c, ours(x)), 0, xs)[1]
        np.testing.assert_allclose(scanned, jax.vmap(fn)(xs), atol=1e-5)

    check()
    assert count == [0], "there is nothing to measure under a trace"
    ours(X)
    check()
    with jax.disable_jit():
        np.testing.assert_allclose(ours(X), fn(jnp.asarray(X)), atol=1e-5)
    assert count == [1]


def test_other_types_and_settings_are_other_programs(count: list[int]) -> None:
    ours, theirs = superopt.jit(twice_mixed, **FAST), jax.jit(twice_mixed)
    for x in (X, X[:2], X, X[:2].astype(np.float16), X):
        same(ours(x), theirs(x))
    assert count == [3]
    add = superopt.jit(lambda x: x + jnp.arange(8), **FAST)
    same(add(np.ones(8, np.int32)), jnp.ones(8, jnp.int32) + jnp.arange(8))
    with jax.enable_x64(True):
        assert add(np.ones(8, np.int32)).dtype == jnp.int64
    assert add(np.ones(8, np.int32)).dtype == jnp.int32


def test_threads_share_one_program(count: list[int]) -> None:
    ours, found = superopt.jit(twice_mixed, **FAST), list[Any]()

    def work(rows: int) -> None:
        for _ in range(20):
            found.append((rows, ours(X[:rows])))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count, len(found)) == ([3], 120)
    for rows, got in found:
        np.testing.assert_allclose(got, twice_mixed(X[:rows]), atol=1e-5)


def test_what_a_program_was_made_with_is_not_kept_alive() -> None:
    ours = superopt.jit(twice_mixed, **FAST)
    x = jnp.asarray(X)
    ours(x)
    assert all(isinstance(e, jax.ShapeDtypeStruct) for p in ours.programs for e in p.imported.examples)
    same(ours(x), twice_mixed(x))


def test_what_is_placed_by_hand_is_left_to_jax() -> None:
    with pytest.warns(UserWarning, match="out_shardings"):
        ours = superopt.jit(lambda x: x + 1, out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0]), **FAST)
    np.testing.assert_allclose(ours(X), X + 1)
    assert not ours.programs


def test_the_original_is_called_itself() -> None:
    """Closed-over arrays stay constants of the compiled program, as under `jax.jit`."""
    table = jnp.asarray(W)

    def f(x):
        return x + table

    jit_of_f = jax.jit(f)
    assert superopt.optimize(jit_of_f, X.T[:8, :1] * 0 + W, **FAST)._call is jit_of_f
    ours = superopt.optimize(f, W, **FAST)
    assert ours.report.original_returned
    assert ours._call.lower(W).as_text() == jit_of_f.lower(W).as_text()  # pyright: ignore[reportFunctionMemberAccess]
    frozen = superopt.optimize(lambda w, x: x * w, W, W, frozen=0, **FAST)
    same(frozen(2 * jnp.asarray(W), W), jnp.asarray(2 * W * W))


def test_what_the_function_does_not_take_raises_what_jax_raises() -> None:
    """`except TypeError` around a function of `jax.jit` goes on to work."""

    def fn(a: jax.Array, i: int) -> jax.Array:
        return a[i] if i else a + i

    own, theirs = superopt.jit(fn, static_argnums=1, **FAST), jax.jit(fn, static_argnums=1)
    for args, kwargs in (((X, [1]), {}), ((X,), {}), ((X, 1, 2), {}), ((X, 1), {"b": 1}), (("text", 1), {})):
        raised: list[type[BaseException]] = []
        for called in (theirs, own):
            with pytest.raises(Exception) as error:  # compared below
                called(*args, **kwargs)
            raised.append(error.type)
        assert raised[0] is raised[1]


def test_what_a_function_refuses_is_traced_once_each_time() -> None:
    traced = [0]

    def f(x, *others):
        traced[0] += 1
        if x is None or others or x.ndim > 2:
            raise ValueError("of another kind")
        return x + 1

    ours = superopt.jit(f, **FAST)
    ours(X)
    for given in ((None,), (X, X), (X[None],)):
        for _ in range(2):
            traced[0] = 0
            with pytest.raises(ValueError, match="of another kind"):
                ours(*given)
            assert traced == [1]
    assert len(ours.programs) == 1


def test_what_is_no_array_is_not_optimised(count: list[int]) -> None:
    ours = superopt.jit(lambda x: x, **FAST)
    for given in ("text", object(), [object()]):
        with pytest.raises(TypeError, match=r"JAX type|abstract array"):
            ours(given)
    assert count == [0]


def test_frozen_arguments_are_positions_or_names() -> None:
    for frozen in (1.5, X, object()):
        with pytest.raises(ArgumentError, match="frozen"):
            superopt.optimize(lambda w, a: a @ w, X, X, frozen=frozen, **FAST)


def test_frozen_zeros_of_both_signs_are_two_values() -> None:
    fast = superopt.optimize(lambda w, x: x * (1.0 / w), 0.0, X + 1.0, frozen=0, **FAST)
    for w in (0.0, -0.0, 0.0):
        assert (np.asarray(fast(w, X + 1.0)) == np.copysign(np.inf, w)).all()


def test_settings_under_which_jax_refuses_are_heeded() -> None:
    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.tanh(a) * b

    called = superopt.jit(fn, **FAST)
    narrow = jnp.ones(X.shape, jnp.int8)
    called(X, narrow)
    called(X, narrow[0])
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        called(X, narrow)
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
        called(X, narrow[0])


@pytest.mark.parametrize(
    ("setting", "value", "fn"),
    [
        ("jax_random_seed_offset", 7, lambda x: twice_mixed(x) + jax.random.uniform(jax.random.key(0))),
        ("jax_explicit_x64_dtypes", "allow", lambda x: twice_mixed(x) + jnp.ones(8, "float64")),
    ],
)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_settings_that_change_results_are_heeded(setting: str, value: Any, fn: Any) -> None:
    ours, theirs, before = superopt.jit(fn, **FAST), jax.jit(fn), getattr(jax.config, setting)
    first = ours(X)
    same(first, theirs(X))
    try:
        jax.config.update(setting, value)
        changed = ours(X)
        same(changed, theirs(X))
    finally:
        jax.config.update(setting, before)
    assert changed.dtype != first.dtype or (changed != first).any()
    same(ours(X), first)


def test_contexts_of_users_are_heeded() -> None:
    scale = jax.make_user_context(default_value=1.0)
    called = superopt.jit(lambda x: twice_mixed(x) * scale.value, **FAST)
    for factor in (1.0, 3.0, 1.0):
        with scale(factor):
            np.testing.assert_allclose(called(X), factor * twice_mixed(X), rtol=1e-4, atol=1e-5)


def test_functions_without_search() -> None:
    called = superopt.jit(lambda x: jnp.tanh(x) @ W, search=False, store=False)
    np.testing.assert_allclose(called(X), jnp.tanh(X) @ W, rtol=1e-5)
    assert called.programs[0].report.search == {}


def test_copies_of_what_holds_a_program_hold_the_same(tmp_path: Path) -> None:
    step = superopt.jit(jnp.sin, **FAST)
    fast = superopt.optimize(lambda x: jnp.tanh(x) * 2.0, jnp.ones(4), **FAST)
    fast.save(tmp_path / "fast.superopt")
    held = {"step": step, "fast": fast, "loaded": superopt.load(tmp_path / "fast.superopt")}
    again = copy.deepcopy(held)
    assert all(again[name] is held[name] for name in held)
    assert copy.copy(step) is step


def test_numbers_of_python_where_jit_is_disabled() -> None:
    def fn(x: Any, n: Any) -> Any:
        return jnp.tanh(x) * n + x.sum()

    x = jnp.arange(4.0)
    made = superopt.optimize(fn, x, 2.0, search=False, store=False)
    with jax.disable_jit():
        np.testing.assert_allclose(made(x, 5.0), fn(x, 5.0), rtol=1e-5)


@pytest.mark.parametrize("fn", [twice_mixed, lambda x: jnp.sin(x)], ids=["program", "original"])
def test_every_type_is_called_through_one_jitted_function(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = superopt.jit(fn, **FAST)
    xs = [jnp.asarray(np.tile(X, (i + 1, 1))) for i in range(4)]
    for x in xs:
        same(ours(x), jax.jit(fn)(x))
    assert len(ours.programs) == 4
    monkeypatch.setattr(jax.tree_util, "tree_flatten", None)  # no call looks at its arguments
    with pytest.raises(TypeError, match="not callable"):
        ours(jnp.asarray(X[:1]))  # of another type
    for x in xs:
        same(ours(x), jax.jit(fn)(x))
        np.testing.assert_allclose(jax.vmap(ours)(x[None])[0], fn(x), atol=1e-5)


def test_types_of_a_function_with_frozen_arguments_are_found_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = superopt.jit(lambda w, x: x @ (w @ w), frozen=0, **FAST)
    w = jnp.asarray(W)
    xs = [jnp.asarray(X[:n]) for n in (1, 2, 3)]
    for _ in range(2):
        for x in xs:
            ours(w, x)
    with monkeypatch.context() as patch:
        patch.setattr(jax.tree_util, "tree_flatten", None)
        for x in xs:
            np.testing.assert_allclose(ours(w, x), x @ (w @ w), atol=1e-5)
        with pytest.raises(TypeError, match="not callable"):
            ours(w, jnp.asarray(X))  # of another type
    for x in xs:
        np.testing.assert_allclose(ours(2 * w, x), 4 * (x @ (w @ w)), atol=1e-5)


@pytest.mark.parametrize("frozen", [None, 0])
def test_a_function_is_traced_once_for_each_type(frozen: int | None) -> None:
    """`chex.assert_max_traces`."""
    traces = [0]

    def counted(x: Any, fn: Any) -> Any:
        traces[0] += 1
        return fn(x)

    for fn in (twice_mixed, jnp.sin, lambda x: jax.random.normal(jax.random.key(0), x.shape) + x):
        traces[0] = 0
        ours = superopt.jit(functools.partial(counted, fn=fn), frozen=frozen, **FAST)
        for n in (1, 2, 1, 2):
            ours(jnp.asarray(X[:n]))
        assert traces == [2]


def test_functions_of_python_are_called_as_often_as_by_jax() -> None:
    calls = list[float]()

    def host(x: np.ndarray) -> np.ndarray:
        calls.append(float(x))
        return x + 1

    def body(x: jax.Array, _: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x), None

    ours = superopt.jit(lambda x: jnp.tanh(jax.lax.scan(body, x, None, length=2)[0]), budget="1s", store=False)
    np.testing.assert_allclose(ours(jnp.float32(1)), np.tanh(3.0), rtol=1e-6)
    np.testing.assert_allclose(ours(jnp.float32(1)), np.tanh(3.0), rtol=1e-6)
    assert calls == [1, 2, 1, 2]


def test_one_budget_for_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    whole = jitted.optimize

    def recorded(*args: Any, **options: Any) -> Any:
        given.append(options["budget"])
        return whole(*args, **{**options, **FAST})

    monkeypatch.setattr(jitted, "optimize", recorded)
    ours = superopt.jit(twice_mixed, budget="18s", store=False)
    xs = [jnp.asarray(np.tile(X, (n, 1))) for n in range(1, 6)]
    for x in (*xs, *xs):
        same(ours(x), jax.jit(twice_mixed)(x))
    assert given == [9.0, 5.0, 4.0], "the others are left to jax.jit"
    assert len(ours.programs) == 3
    given.clear()
    steps = superopt.jit(twice_mixed, budget="20steps")
    for x in xs[:3]:
        steps(x)
    assert given == ["20steps"] * 3


def test_shares_end_where_the_time_is_gone() -> None:
    clock = Shares(1e-3)
    share = clock.next()
    assert share == 1e-3, "one type is tried whatever the budget is"
    with clock.spending("f", share):
        pass
    assert clock.next() is None
    late = Shares("60s")
    share = late.next()
    assert share == 30.0
    late._spent_s = 61.0
    assert late.next() is None


def test_a_line_says_what_takes_long(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    whole = jitted.optimize

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return whole(*args, **options)

    monkeypatch.setattr(jitted, "optimize", slow)
    superopt.jit(lambda x: x * 2, **FAST)(X)
    assert not caplog.records
    monkeypatch.setattr(shares, "SILENT_MS", 10)
    superopt.jit(twice_mixed, **FAST)(X)
    (record,) = caplog.records
    assert record.getMessage() == "superopt.jit: optimising twice_mixed of float32[4,8]"


def test_nan_is_looked_for_in_the_function(count: list[int]) -> None:
    """The operation is named that `jax.jit` names."""

    def fn(x: Any) -> Any:
        return jnp.log(x) * 2

    ours, x = superopt.jit(fn, **FAST), jnp.asarray(X)
    ours(x)
    with jax.debug_nans(True):
        for given in (-1 - x, jnp.asarray(-np.tile(X, (2, 1)))):
            said: list[str] = []
            for call in (jax.jit(fn), ours):
                with pytest.raises(FloatingPointError) as error:
                    call(given)
                said.append(str(error.value).splitlines()[0])
            assert said[0] == said[1]


def test_what_is_written_to_is_left_to_jax(count: list[int]) -> None:
    def bump(ref: Any, x: Any) -> Any:
        ref[...] += x
        return ref[...] * 2

    ours, held = superopt.jit(bump, **FAST), jax.new_ref(jnp.zeros(3))
    for i in range(3):
        np.testing.assert_allclose(ours(held, jnp.ones(3)), np.full(3, 2.0 * (i + 1)))
    assert count == [0]
    closed = superopt.jit(lambda x: bump(held, x), **FAST)
    for i in range(3, 6):
        np.testing.assert_allclose(closed(jnp.ones(3)), np.full(3, 2.0 * (i + 1)))


@pytest.mark.parametrize("devices", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_sharded_arguments_are_left_to_jax(devices: int, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "support" / "sharded_calls.py"
    done = subprocess.run(
        [sys.executable, str(script), str(devices)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_functions_that_a_loop_makes_again_are_optimised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lambda or a partial in a loop is another object each time, and the same function."""
    asked: list[object] = []
    monkeypatch.setattr(jitted, "optimize", lambda *given, **options: asked.append(1) or optimize(*given, **options))

    def scaled(x: jax.Array, n: int) -> jax.Array:
        return x * n + 1

    for _ in range(3):
        np.testing.assert_array_equal(superopt.jit(lambda x: scaled(x, 2), budget="1s", store=False)(np.ones(4)), 3)
        by_partial = superopt.jit(functools.partial(scaled, n=3), budget="1s", store=False)
        np.testing.assert_array_equal(by_partial(np.ones(4)), 4)
    assert len(asked) == 2
    superopt.jit(functools.partial(scaled, n=3), budget="2s", store=False)(np.ones(4))  # asked for more
    assert len(asked) == 3


def test_calls_of_known_types_run_no_code_of_python_in_jax() -> None:
    fn = superopt.jit(lambda x: jnp.tanh(x) * 2 + x, budget="1s", store=False)
    arguments = [jnp.ones(n) for n in (3, 4, 5)]
    for x in arguments * 2:
        fn(x)
    entered = set[str]()
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        for x in arguments:
            fn(x)
    finally:
        sys.setprofile(None)
    assert not [name for name in entered if name.endswith(("pjit.py", "pxla.py"))]


_AT_ONCE = """
import jax, jax.numpy as jnp, superopt
jax.jit = superopt.jit(budget="1s", store=False)
"""
_BEFORE_ITS_IMPORT = """
import jax, jax.numpy as jnp
def jit(*given, **options):
    import superopt
    return superopt.jit(*given, budget="1s", store=False, **options)
jax.jit = jit
"""


@pytest.mark.parametrize("replace", [_AT_ONCE, _BEFORE_ITS_IMPORT], ids=["at once", "before its import"])
def test_jit_takes_the_place_of_that_of_jax(replace: str) -> None:
    code = f"""{replace}
print(len(jax.make_jaxpr(lambda x: jax.jit(lambda y: y * 2)(x))(1.0).eqns))
f = jax.jit(lambda x: jnp.tanh(x) * 2)
print(float(f(0.0)), float(jax.grad(lambda x: jax.jit(jnp.sin)(x))(0.0)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.split() == ["1", "0.0", "1.0"], ran.stderr[-2000:]
