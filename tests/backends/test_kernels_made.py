"""Kernels that are found again by region and schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends import made
from superopt.backends.native import compiled, default_trace
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.kernels.choose.partition import partition
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import supported
from verifier.verdict import PROVED

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(s).astype(np.float32) for s in ((20, 40), (40, 24)))


def region(frozen: bool = True) -> Graph:
    imported = import_function(lambda x, w: jnp.maximum(x @ w, 0.0), (X, W), frozen=(1,) if frozen else ())
    return partition(imported.graph)[0].graph


def copied(kernel: Any, cache: Path) -> None:
    """Have the object of a kernel in a folder of the test."""
    (cache / f"{kernel.digest}.object").write_bytes((jit.cache_folder() / f"{kernel.digest}.object").read_bytes())


def test_kernels_come_back_as_they_were_made(tmp_path: Path) -> None:
    graph = region(frozen=False)
    trace = default_trace(graph)
    key, built = made.key_of(graph, trace), compiled(graph, trace)
    assert made.find(key, tmp_path) is None
    made.keep(key, (built.hot, built.prepare), tmp_path)
    assert made.find(key, tmp_path) is None  # its object is not there
    for kernel in (built.hot, built.prepare):
        if kernel is not None:
            copied(kernel, tmp_path)
    again = made.find(key, tmp_path)
    assert again is not None
    hot, prepare = again
    assert (hot.phases, hot.pointers, hot.digest) == (built.hot.phases, built.hot.pointers, built.hot.digest)
    assert (prepare is None) == (built.prepare is None)
    arrays = {b.name: a for b, a in zip(hot.operands, (X, W), strict=False)}
    if prepare is None:
        np.testing.assert_array_equal(hot.run(arrays)[hot.outputs[0].name], built.hot.run(arrays)[hot.outputs[0].name])


def test_what_another_machine_made_is_stored_under_the_seals_of_this_one(tmp_path: Path) -> None:
    there, here, folder = (tmp_path / name for name in ("there", "here", "folder"))
    for path in (there, folder):
        path.mkdir()
    graph = region()
    trace = default_trace(graph)
    key, built = made.key_of(graph, trace), compiled(graph, trace)
    made.keep(key, (built.hot, built.prepare), there)
    kernels = [kernel for kernel in (built.hot, built.prepare) if kernel is not None]
    for kernel in kernels:
        copied(kernel, there)
    of = made.objects(*kernels)
    made.keep_verdict(key, "1", of, PROVED, "", there)
    names = made.hand_over(key, folder, there)
    assert len(names) == len(set(names)) == 2 + len(kernels)
    assert sorted(names) == sorted(file.name for file in folder.iterdir())
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    made.take_over(files | dict.fromkeys(("seal.key", f"{key}.agrees", "x.part", f"../{key}.kernel"), b"x" * 32), here)
    assert not (tmp_path / f"{key}.kernel").exists()
    made.take_over(files, here)
    assert {file.name for file in here.iterdir()} == {*names, "seal.key", "pruned"}
    assert (here / "seal.key").read_bytes() != b"x" * 32, "whoever writes the key could seal anything"
    again = made.find(key, here)
    assert again is not None
    assert made.objects(*again) == of
    assert made.verdict(key, "1", of, here) == (PROVED, "")
    (here / names[0]).write_bytes(b"damaged")
    made.take_over(files, here)
    assert made.find(key, here) is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[null, null]", b'[{"name": "k"}, null]', b"\xff"])
def test_what_was_not_written_by_us_is_no_kernel(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.kernel").write_bytes(content)
    assert made.find("key", tmp_path) is None


def test_sources_newer_than_the_process_make_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = region()
    for began_s, known in ((0.0, False), (float("inf"), True)):
        made.surroundings.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr("superopt.ir._BEGAN_S", began_s)
            assert (made.key_of(graph, ()) != "") == known
    made.surroundings.cache_clear()


def test_the_key_holds_what_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, other = region(), region(frozen=False)
    trace = default_trace(graph)
    keys = {made.key_of(graph, trace), made.key_of(graph, ()), made.key_of(other, trace)}
    for name, value in (("host", "another processor"), ("usable_cores", 1 << 20)):
        made.surroundings.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(made, name, lambda value=value: value)
            keys.add(made.key_of(graph, trace))
    made.surroundings.cache_clear()
    assert len(keys) == 5
