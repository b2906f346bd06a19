"""Frozen arguments of a loaded program that are traced: it computes with what is given, or refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import ArgumentError, InputError
from superopt.files.reading import Archive, ArchiveWriter
from tests.support.sampling import sampled

RNG = np.random.default_rng(0)
W, X, LARGE = (RNG.standard_normal(s).astype(np.float32) for s in ((8, 8), (4, 8), (8, 8)))
SMALL = np.array([1.0, 2.0], np.float32)
HOW: dict[str, Callable[[Any, Any, Any], Any]] = {
    "jit": lambda g, w, x: jax.jit(g)(w, x),
    "the saved arrays": lambda g, w, x: jax.jit(g)(W, x),
    "vmap": lambda g, w, x: jax.vmap(g, (0, None))(jnp.stack([W, w]), x),
    "grad": lambda g, w, x: jax.grad(lambda w: g(w, x).sum())(w),
    "hessian": lambda g, w, x: jax.hessian(lambda w: g(w, x).sum())(w),
    "linearize": lambda g, w, x: jax.linearize(lambda w: g(w, x), w)[1](w),
    "scan": lambda g, w, x: jax.lax.scan(lambda c, w: (c, g(w, x)), 0.0, jnp.stack([W, w]))[1],
    "cond": lambda g, w, x: jax.lax.cond(x.sum() > 0, g, lambda w, x: g(w * 2, x), w, x),
    "checkpoint": lambda g, w, x: jax.grad(lambda w: jax.checkpoint(g)(w, x).sum())(w),
    "while": lambda g, w, x: jax.lax.fori_loop(0, 2, lambda i, w: w * g(w, x).mean(), w),
    "make_jaxpr": lambda g, w, x: jax.core.eval_jaxpr(  # pyright: ignore[reportAttributeAccessIssue]
        (closed := jax.make_jaxpr(g)(W, x)).jaxpr, closed.consts, w, x
    )[0],
}
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "arguments": lambda w, x: jnp.tanh(x @ (w + w)),
    "folded arrays": lambda w, x: jnp.tanh(x @ (w @ LARGE)) * SMALL[0],
    "arrays as they are": lambda w, x: jnp.tanh(x @ w) @ LARGE + SMALL.sum(),
}


BOTH = [(of, name) for of in PROGRAMS for name in HOW]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """Gives a function and what was saved and loaded of it, with kernels."""

    @functools.cache
    def made(of: str) -> tuple[Any, Any]:
        fn = PROGRAMS[of]
        fast = superopt.optimize(fn, W, X, frozen=0, search=False, store=False)
        return fn, superopt.load(fast.save(tmp_path_factory.mktemp("files") / "p.superopt"))

    return made


@pytest.mark.parametrize(("of", "name"), sampled(BOTH, lambda n, case: case[0] == "folded arrays" or n % 5 == 0))
def test_traced_frozen_arguments_are_computed_with(
    programs: Callable[[str], tuple[Any, Any]], of: str, name: str
) -> None:
    fn, loaded = programs(of)
    np.testing.assert_allclose(HOW[name](loaded, W * 2, X), HOW[name](fn, W * 2, X), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loaded(W, X), fn(W, X), rtol=1e-5, atol=1e-5)  # no tracer is remembered


@pytest.mark.parametrize("of", PROGRAMS)
def test_traced_frozen_arguments_are_of_the_type_of_the_program(
    programs: Callable[[str], tuple[Any, Any]], of: str
) -> None:
    _, loaded = programs(of)
    for wrong in (W[:4], W.astype(np.float16), W.astype(np.int32)):
        with pytest.raises(ArgumentError, match="argument w is "):
            jax.jit(loaded)(wrong, X)


def test_frozen_arguments_of_which_one_is_traced(tmp_path: Path) -> None:
    def fn(tree: Any, x: Any) -> Any:
        return jnp.tanh(x @ tree["w"]) + tree["b"]

    tree = {"w": W, "b": W[0]}
    loaded = superopt.load(
        superopt.optimize(fn, tree, X, frozen=0, search=False, store=False).save(tmp_path / "p.superopt")
    )
    got = jax.jit(lambda w: loaded({"w": w, "b": W[1]}, X))(W * 2)
    np.testing.assert_allclose(got, fn({"w": W * 2, "b": W[1]}, X), rtol=1e-4, atol=1e-5)
    given = jax.ShapeDtypeStruct((8,), np.float32)
    with pytest.raises(ArgumentError, match="is left out, and others are traced"):
        jax.jit(lambda w: loaded({"w": w, "b": given}, X))(W)
    np.testing.assert_allclose(jax.jit(lambda x: loaded(x=x))(X), fn(tree, X), rtol=1e-4, atol=1e-5)


def test_traced_keys(tmp_path: Path) -> None:
    def fn(key: Any, x: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    one, two = jax.random.key(1), jax.random.key(2)
    made = superopt.optimize(fn, one, X, frozen=0, search=False, store=False)
    loaded = superopt.load(made.save(tmp_path / "p.superopt"))
    np.testing.assert_allclose(jax.jit(loaded)(two, X), fn(two, X), rtol=1e-5)


def test_64_bits(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        w, x = W.astype(np.float64), X.astype(np.float64)
        made = superopt.optimize(PROGRAMS["folded arrays"], w, x, frozen=0, search=False, store=False)
        loaded = superopt.load(made.save(tmp_path / "p.superopt"))
        got = jax.jit(loaded)(w * 2, x)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, PROGRAMS["folded arrays"](w * 2, x))


def test_files_that_lack_what_the_original_closes_over_are_refused_by_name(tmp_path: Path) -> None:
    made = superopt.optimize(PROGRAMS["folded arrays"], W, X, frozen=0, search=False, store=False)
    path = made.save(tmp_path / "p.superopt")

    def rewritten(edit: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
        with open(path, "rb") as handle:
            archive = Archive(handle, lambda _: True)
            meta = archive.json("meta.json")
            data = {name: archive.read(name) for name in archive.names if name != "meta.json"}
        edit(meta, data)
        with ArchiveWriter(tmp_path / "other") as out:
            out.json("meta.json", meta)
            for name, value in data.items():
                if name.partition("/")[1]:
                    out.aligned(name, memoryview(value))
                else:
                    out.text(name, value)
        return tmp_path / "other"

    def of_before(meta: dict[str, Any], data: dict[str, bytes]) -> None:
        del meta["places"], data["constants/0"]

    loaded = superopt.load(rewritten(of_before))
    np.testing.assert_allclose(loaded(W, X), PROGRAMS["folded arrays"](W, X), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="it lacks arrays that its original closes over"):
        jax.jit(loaded)(W, X)
    for edit in (
        lambda meta, data: data.pop("constants/0"),
        lambda meta, data: meta["places"].clear(),
        lambda meta, data: meta["places"].update(other=3),
    ):
        with pytest.raises(InputError):
            superopt.load(rewritten(edit))

    def shorter(meta: dict[str, Any], data: dict[str, bytes]) -> None:
        data["constants/0"] = data["constants/0"][:-4]

    with pytest.raises(InputError, match="bytes, f32"):
        jax.jit(superopt.load(rewritten(shorter)))(W, X)
