"""What outlives a run: saved programs of every width, and entries of the store that are stale, damaged or cut short."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest

import superopt
from superopt.errors import ArgumentError, InputError
from superopt.frontends.jax.arguments import is_weak
from superopt.frontends.jax.call import REFUSED
from superopt.frontends.jax.keys import is_key
from superopt.kernels.llvm.cpu import supported
from superopt.returned import remember
from superopt.store import Store
from tests.support.onnx_models import mlp

pytestmark = pytest.mark.usefixtures("keeps_plain", "quickly")

RNG = np.random.default_rng(0)
OPTIONS = {"frozen": 0, "budget": "30steps", "deterministic": True}


def scaled(w, x):
    return jnp.tanh(x @ (w + w)) * 2


def arrays(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return RNG.standard_normal((8, 8)).astype(kind), RNG.standard_normal((4, 8)).astype(kind)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_saved_programs_keep_narrow_types(dtype: str, tmp_path) -> None:
    w, x = arrays(dtype)
    fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    got, want = loaded(w, x), fast(w, x)
    assert got.dtype == want.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))


def powers(x):
    lag = jnp.arange(8)[:, None] - jnp.arange(8)
    return jnp.where(lag >= 0, 0.5 ** jnp.maximum(lag, 0), 0.0) @ x


def test_constants_that_are_computed_ahead_are_made_again_by_a_loaded_program(tmp_path) -> None:
    x = RNG.standard_normal((8, 3)).astype(np.float32)
    fast = superopt.optimize(powers, x, store=False, budget="30steps", deterministic=True)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    np.testing.assert_allclose(fast(x), powers(x), rtol=1e-6)
    np.testing.assert_array_equal(loaded(x), fast(x))


def test_saved_programs_keep_64_bits(tmp_path) -> None:
    w, x = arrays("float64")
    with jax.enable_x64(True):
        fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
        want = np.asarray(fast(w, x))
        path = fast.save(tmp_path / "p.superopt")
    loaded = superopt.load(path)  # outside of x64: the prepared tensors keep their type
    with jax.enable_x64(True):
        got = np.asarray(loaded(w, x))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
def test_calls_of_loaded_programs_are_one_jitted_call(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the program that was saved are: Python around it takes as long as a small program runs."""
    x = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
    fast = superopt.optimize(lambda x: jnp.tanh(x) * 2 + 1, x, search=False, store=False)
    assert fast.kernels
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    slope = jax.grad(lambda x: loaded(x).sum())(x)
    np.testing.assert_allclose(slope, 2 - 2 * np.tanh(x) ** 2, rtol=1e-5, atol=1e-6)
    loaded(x)  # without XLA
    loaded(x)
    for module in (jax.tree_util, jax.api_util):  # a call looks at nothing in Python
        monkeypatch.setattr(module, "tree_flatten" if module is jax.tree_util else "shaped_abstractify", None)
    np.testing.assert_allclose(loaded(x), np.tanh(x) * 2 + 1, rtol=1e-5, atol=1e-6)


def named(tree, x, *, shift):
    return {"y": jnp.sin(tree["a"]) * x + shift, "n": x * 2}


CALLS = {
    "arrays": (lambda x: jnp.tanh(x) * 2 + 1, (np.ones((3, 4), np.float32),), {}),
    "numbers": (lambda x, s: (x * s, s + 1), (np.ones(3, np.float32), 2.0), {}),
    "by name": (named, ({"a": np.ones(3, np.float32)}, np.full(3, 2, np.float32)), {"shift": 0.5}),
    "keys": (lambda key, x: (jax.random.split(key)[0], x + jax.random.normal(key, (3,))), (jax.random.key(1), 2.0), {}),
    "nothing": (lambda: jnp.arange(3) * 2, (), {}),
    "bools and integers": (
        lambda p, n: jnp.where(p, n + 1, n),
        (np.array([True, False]), np.array([1, 2], np.int8)),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_direct_calls_of_loaded_programs_give_what_checked_ones_give(name: str, tmp_path) -> None:
    fn, args, kwargs = CALLS[name]
    fast = superopt.optimize(fn, *args, kwargs=kwargs, search=False, store=False)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    assert loaded.direct is not None
    want, others = fast(*args, **kwargs), (loaded(*args, **kwargs), loaded.direct(*args, **kwargs))
    with jax.disable_jit():
        others += (loaded(*args, **kwargs),)
    for got in others:
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (a.dtype, is_weak(a)) == (b.dtype, is_weak(b))
            np.testing.assert_array_equal(*(jax.random.key_data(v) if is_key(v) else v for v in (a, b)))


def test_frozen_arguments_are_looked_at_in_every_call(tmp_path) -> None:
    w, x = arrays("float32")
    fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    want = loaded(w, x)
    assert loaded.direct is not None, "from then on it is one jitted call"
    for call in (loaded, loaded.direct):
        for _ in range(2):
            np.testing.assert_array_equal(call(w, x), want)
            np.testing.assert_array_equal(call(w, x=x), want)
    for other in (w + 1, w[:4], jnp.asarray(w) * 2, 1.0, "text"):
        with pytest.raises(ArgumentError, match=r"frozen|is a str"):
            loaded(other, x)
        assert loaded.direct(other, x) is REFUSED
    for wrong in (x[:2], x.astype(np.int32)):
        for args, kwargs in (((w, wrong), {}), ((w,), {"x": wrong}), ((), {"x": wrong})):
            with pytest.raises(ArgumentError, match="argument x is"):
                loaded(*args, **kwargs)
    same = jnp.asarray(w)
    np.testing.assert_array_equal(loaded(same, x), want)
    np.testing.assert_array_equal(loaded.direct(same, x), want)
    np.testing.assert_array_equal(loaded(w, x), want)


OTHERS: tuple[Any, ...] = (
    np.ones(3, np.float16), jnp.ones(3, jnp.bfloat16), np.arange(3), jnp.arange(3, dtype=jnp.int8), np.ones(3, bool),
    1.5, 2, True, 1j, np.float64(1.0), np.bool_(True), np.ones(4, np.float32), [np.float32(1)] * 3, None,
)  # fmt: skip


@pytest.mark.parametrize("frozen", [None, 0])
def test_arguments_of_other_types_raise_nothing_inside_of_a_trace(frozen: int | None, tmp_path) -> None:
    """An exception out of a trace costs milliseconds, at every call."""
    w, x = np.full(3, 2, np.float32), np.ones(3, np.float32)
    fast = superopt.optimize(lambda w, x: jnp.tanh(x) * w, w, x, frozen=frozen, search=False, store=False)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    want = loaded(w, x)
    for program in (fast, loaded):
        assert program.direct is not None
        for other in OTHERS:
            assert program.direct(w, other) is REFUSED
        np.testing.assert_array_equal(jax.jit(program.direct)(w, x) if frozen is None else program.direct(w, x), want)
    for other in OTHERS:
        for _ in range(2):
            with pytest.raises(ArgumentError, match="argument x"):
                loaded(w, other)


def test_numbers_take_the_place_of_arrays_without_axes_in_direct_calls(tmp_path) -> None:
    """One that gives way to the type of an array is a type that a program may not have seen."""
    fast = superopt.optimize(
        lambda x, s: (x * s, s + 1), np.ones(3, np.float32), np.float32(2), search=False, store=False
    )
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    for program in (fast, loaded):
        assert program.direct is not None
        for s in (3.5, np.float32(3.5), np.float64(3.5), jnp.float32(3.5)):
            want = jax.jit(lambda x, s: (x * s, s + 1))(np.ones(3, np.float32), s)
            for got in (program.direct(np.ones(3, np.float32), s), program(np.ones(3, np.float32), s)):
                jax.tree.map(np.testing.assert_array_equal, got, want)


def test_calls_that_leave_frozen_arguments_out_are_one_jitted_call(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = arrays("float32")
    fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    want = loaded(x=x)
    monkeypatch.setattr(jax.tree_util, "tree_flatten", None)
    np.testing.assert_array_equal(loaded(x=x), want)


def test_a_folder_that_does_not_exist(tmp_path) -> None:
    x = np.ones((2, 3), np.float32)
    fast = superopt.optimize(lambda x: x + 1, x, search=False, store=False)
    with pytest.raises(InputError, match="cannot be written: its folder does not exist") as told:
        fast.save(tmp_path / "none" / "f.superopt")
    assert "folder" in told.value.hint


def test_saved_programs_check_their_arguments(tmp_path) -> None:
    w, x = arrays("float32")
    loaded = superopt.load(superopt.optimize(scaled, w, x, store=False, **OPTIONS).save(tmp_path / "p.superopt"))
    for wrong in (x[:2], x.astype(np.int32), "text"):
        with pytest.raises(ArgumentError):
            loaded(w, wrong)
    data = (tmp_path / "p.superopt").read_bytes()
    for cut in (0, 10, len(data) // 2, len(data) - 5):
        (tmp_path / "cut").write_bytes(data[:cut])
        with pytest.raises(InputError, match="not a saved program"):
            superopt.load(tmp_path / "cut")


def test_a_call_by_name_does_without_the_frozen_arguments(tmp_path) -> None:
    weights = {"w": np.ones((3, 4), np.float32), "more": [np.full(4, 2, np.float32), None]}
    x, scale = np.ones((2, 3), np.float32), np.float32(3)

    def f(params, x, scale):
        return (x @ params["w"] + params["more"][0]) * scale

    path = tmp_path / "p.superopt"
    superopt.optimize(f, weights, x, scale, **OPTIONS, store=False).save(path)
    again, want = superopt.load(path), f(weights, x, scale)
    calls = [
        ((), {"x": x, "scale": scale}),
        ((weights, x), {"scale": scale}),
        ((), {"params": weights, "x": x, "scale": scale}),
    ]
    for args, kwargs in calls:
        np.testing.assert_allclose(again(*args, **kwargs), want)
    np.testing.assert_allclose(jax.jit(lambda x: again(x=x, scale=scale))(x), want)
    with pytest.raises(
        ArgumentError, match=r"(?s)argument scale is missing; .* left out where others are given by name"
    ):
        again(x=x)
    with pytest.raises(ArgumentError, match=r"argument params\.w is frozen, and is not what"):
        again(params={**weights, "w": weights["w"] * 2}, x=x, scale=scale)


def test_a_frozen_argument_that_cannot_be_made_is_named(tmp_path) -> None:
    function = jax.tree_util.Partial(lambda w, x: w @ x, np.ones((3, 3), np.float32))
    x = np.ones(3, np.float32)
    path = superopt.optimize(lambda g, x: g(x), function, x, store=False, **OPTIONS).save(tmp_path / "p.superopt")
    with pytest.raises(ArgumentError, match="frozen argument g cannot be left out: "):
        superopt.load(path)(x=x)


class Measuring:
    """A node that looks at its leaf when it is made."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = w
        self.rows = w.shape[0] if hasattr(w, "shape") else 0


jax.tree_util.register_pytree_node(Measuring, lambda v: ((v.w,), None), lambda _, leaves: Measuring(leaves[0]))


def test_a_frozen_argument_that_looks_at_its_leaves_is_named(tmp_path) -> None:
    w, x = arrays("float32")
    result = superopt.optimize(lambda g, x: scaled(g.w, x), Measuring(w), x, store=False, **OPTIONS)
    again = superopt.load(result.save(tmp_path / "p.superopt"))
    np.testing.assert_allclose(again(g=Measuring(w), x=x), scaled(w, x), rtol=1e-5)
    with pytest.raises(ArgumentError, match="frozen argument g cannot be left out: IndexError"):
        again(x=x)


def test_saved_programs_refuse_other_frozen_values(tmp_path) -> None:
    w, x = arrays("float32")
    loaded = superopt.load(superopt.optimize(scaled, w, x, store=False, **OPTIONS).save(tmp_path / "p.superopt"))
    want = loaded(w, x)
    for same in (jnp.asarray(w), w.astype(np.float64), jax.ShapeDtypeStruct(w.shape, w.dtype)):
        np.testing.assert_array_equal(loaded(same, x), want)
    np.testing.assert_array_equal(jax.jit(loaded)(w, x), want)
    for other in (w + 1, w[:4], np.float32(0)):
        with pytest.raises(ArgumentError, match="argument w is frozen, and is not what the program was saved with"):
            loaded(other, x)


def test_entries_that_cannot_be_read_are_misses(proofs) -> None:
    w, x = arrays("float32")
    path = proofs
    want = superopt.optimize(scaled, w, x, store=path, **OPTIONS)
    with Store(path) as store:
        (key, kept), *_ = store.items("runs")
        report = kept["report"]
        broken = [
            {},
            {**kept, "hot": "%0 = nonsense"},
            {**kept, "hot": kept["hot"].replace("tanh", "tan_h")},
            {**kept, "report": {**report, "speedup": None}},
            {**kept, "report": {**report, "growth": "cannot be shown"}},
            {**kept, "report": {k: v for k, v in report.items() if k != "verdict"}},
        ]
    for entry in broken:
        with Store(path) as store:
            store.put("runs", key, entry)
        again = superopt.optimize(scaled, w, x, store=path, **OPTIONS)
        assert not any("answered from the store" in note for note in again.report.notes)
        np.testing.assert_array_equal(again(w, x), want(w, x))
        with Store(path) as store:
            assert store.get("runs", key)["hot"] == kept["hot"], "the next run mends the entry"


def test_a_recalled_program_proves_itself(proofs) -> None:
    """An entry with a right digest and another program in it is a miss: it runs beside the original first."""
    w, x = arrays("float32")
    path = proofs
    want = superopt.optimize(scaled, w, x, store=path, **OPTIONS)
    with Store(path) as store:
        (key, kept), *_ = store.items("runs")
        for old, new in (("tanh", "sin"), ("literal 2.0", "literal 3.0")):
            assert old in kept["hot"]
            store.put("runs", key, {**kept, "hot": kept["hot"].replace(old, new)})
            again = superopt.optimize(scaled, w, x, store=path, **OPTIONS)
            assert not any("answered from the store" in note for note in again.report.notes)
            np.testing.assert_array_equal(again(w, x), want(w, x))
    again = superopt.optimize(scaled, w, x, store=path, **OPTIONS)
    assert any("answered from the store" in note for note in again.report.notes)


def test_only_own_options_of_the_compiler_are_taken_from_a_file(tmp_path) -> None:
    """XLA has options that write files, end the process, or change results."""
    w, x = arrays("float32")
    fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    foreign = {
        "xla_dump_to": str(tmp_path / "dump"),
        "xla_cpu_parallel_codegen_split_count": "-5",
        "xla_cpu_enable_fast_math": True,
        "xla_cpu_use_fusion_emitters": "no",
        "xla_cpu_prefer_vector_width": "64\x1b[2J",
    }
    fast.report = replace(fast.report, compiler_options={**foreign, "xla_cpu_use_fusion_emitters": True})
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    np.testing.assert_array_equal(loaded(w, x), fast(w, x))
    assert loaded.compiler_options == {}
    assert set(loaded.refused) == set(foreign)
    assert [p.name for p in tmp_path.iterdir()] == ["p.superopt"]
    fast.report = replace(fast.report, compiler_options={"xla_cpu_use_fusion_emitters": False})
    own = superopt.load(fast.save(tmp_path / "p.superopt"))
    assert own.compiler_options == {"xla_cpu_use_fusion_emitters": False}


def test_runs_cut_short_are_not_kept() -> None:
    w, x = arrays("float32")
    result = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    with Store(memory=True) as store:
        search = {**result.report.search, "interrupted": True}
        for report, kept in ((result.report, 1), (replace(result.report, search=search), 0)):
            result.report = report
            remember.remember(store, f"key{kept}", result)
            assert (store.get("runs", f"key{kept}") is not None) == bool(kept)


def test_a_loaded_program_has_its_report_and_can_be_pickled(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = arrays("float32")
    fast = superopt.optimize(scaled, w, x, store=False, **OPTIONS)
    monkeypatch.chdir(tmp_path)
    fast.save("p.superopt")
    loaded = superopt.load("p.superopt")
    assert loaded.report.verdict == fast.report.verdict
    assert loaded.report.speedup == loaded.speedup == fast.speedup
    assert str(loaded.report) == str(fast.report)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(loaded))
    np.testing.assert_array_equal(again(w, x), loaded(w, x))
    assert "p.superopt" in repr(loaded)
    for shown in (fast, fast.report, loaded):
        page = shown._repr_html_()
        assert page.startswith("<iframe srcdoc=")
        assert page.count("<") == 2, "the page is a text within"


def test_calls_of_a_model_go_straight_to_its_program(tmp_path) -> None:
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    fast = superopt.optimize(tmp_path / "mlp.onnx", store=False, budget="30steps", deterministic=True)
    x = jnp.asarray(RNG.standard_normal((2, 4)), jnp.float32)
    assert fast.direct is not None
    (got,) = fast.direct(x)  # it refuses what is not called under the settings of the import
    np.testing.assert_allclose(got, fast(x)[0])


def _own_vjp(x: Any) -> Any:
    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda kept, g: (10 * g,))
    return doubled(x)


def _own_jvp(x: Any) -> Any:
    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return 2 * x

    doubled.defjvps(lambda t, y, x: 10 * t)
    return doubled(x)


@pytest.mark.parametrize("inner", [_own_vjp, _own_jvp, lambda x: jax.lax.stop_gradient(x) * x])
@pytest.mark.parametrize("looped", [False, True])
def test_loaded_programs_refuse_derivatives_that_a_function_defines_itself(inner: Any, looped: bool, tmp_path) -> None:
    def fn(w: Any, x: Any) -> Any:
        y = x @ w
        return jnp.sum(jax.lax.fori_loop(0, 3, lambda i, y: inner(y), y) if looped else inner(y))

    w, x = arrays("float32")
    w, x = w[: x.shape[-1]], x
    made = superopt.optimize(fn, w, x, **OPTIONS, store=False)
    loaded = superopt.load(made.save(tmp_path / "own.superopt"))
    np.testing.assert_allclose(loaded(w, x), fn(w, x), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(loaded)(w, x), fn(w, x), rtol=1e-4)
    for derivative in (jax.grad(loaded, 1), jax.grad(loaded, 0), jax.jit(jax.grad(loaded, (0, 1)))):
        with pytest.raises(
            ArgumentError, match=r"has its own \((jax\.custom_[vj]+p of doubled|jax\.lax\.stop_gradient)\)"
        ):
            derivative(w, x)


@pytest.mark.parametrize("looped", [False, True])
def test_loaded_programs_refuse_vmap_that_a_function_defines_itself(looped: bool, tmp_path) -> None:
    @jax.custom_batching.custom_vmap
    def twice(x: jax.Array) -> jax.Array:
        return x * 2

    @twice.def_vmap
    def _(size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return x * 20, True

    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, y: twice(y), x) if looped else twice(x) + 1

    x = jnp.arange(12.0).reshape(3, 4)
    made = superopt.optimize(fn, x[0], **OPTIONS, store=False)
    loaded = superopt.load(made.save(tmp_path / "own.superopt"))
    np.testing.assert_array_equal(loaded(x[0]), fn(x[0]))
    np.testing.assert_array_equal(jax.jit(loaded)(x[0]), fn(x[0]))
    np.testing.assert_array_equal(jax.vmap(made)(x), jax.vmap(fn)(x))
    for batched in (jax.vmap(loaded), jax.jit(jax.vmap(loaded))):
        with pytest.raises(ArgumentError, match=r"defines vmap itself \(jax\.custom_batching\.custom_vmap of twice"):
            batched(x)


def test_derivatives_of_functions_of_jax_itself_are_those_of_their_operations(tmp_path) -> None:
    def fn(w: Any, x: Any) -> Any:
        return jnp.sum(jax.nn.softmax(jax.nn.relu(x @ w)) ** 2)

    w, x = arrays("float32")
    loaded = superopt.load(superopt.optimize(fn, w, x, **OPTIONS, store=False).save(tmp_path / "own.superopt"))
    np.testing.assert_allclose(jax.grad(loaded, 1)(w, x), jax.grad(fn, 1)(w, x), rtol=1e-4, atol=1e-6)
