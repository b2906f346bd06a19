"""Kernels of loaded programs are compared with XLA's values once; those that differ are left to XLA."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.backends import made, mixed, native
from superopt.backends.protocol import CompiledRegion
from superopt.candidates.evidence import Measurement
from superopt.certify import kernels, taking
from superopt.certify.kernels import difference_from_xla, disagreeing, too_large, validate_code
from superopt.certify.taking import take_kernels
from superopt.files import seals
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import KernelSpec, specs_of
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.runtime.kernel import Kernel
from superopt.machine.speedup import Speedup
from superopt.report.data import Report
from superopt.returned.optimized import Optimized
from tests.support.quantised import OTHERS, quantised
from verifier.kernels.check import KernelVerdict, version
from verifier.verdict import UNKNOWN

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def chosen(factor: float) -> tuple[Graph, tuple[KernelSpec, ...]]:
    x, w = jnp.zeros((9, 40)), jnp.zeros((40, 33))
    graph = import_function(lambda x, w: jax.nn.relu(x @ w) * factor, (x, w), frozen=(1,)).graph
    return graph, specs_of(graph, [(r, None) for r in partition(graph)])


def test_a_kernel_that_agrees_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    assert disagreeing(graph, choices) == {}
    (region,) = partition(graph)
    assert made.agrees(made.key_of(region.graph, native.default_trace(region.graph)))
    monkeypatch.setattr("superopt.certify.kernels._of_xla", lambda *_: pytest.fail("it is compared again"))
    assert disagreeing(graph, choices) == {}


def test_a_kernel_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    other = partition(chosen(2.5)[0])[0].graph
    wrong = native.compiled(other)
    monkeypatch.setattr(native, "compiled", lambda graph, _: CompiledRegion(wrong.hot, wrong.prepare, graph))
    found = disagreeing(graph, choices)
    assert list(found) == [0]
    assert "differs from XLA's values" in found[0]


def quantised_difference(**changes: Any) -> str:
    """How the kernel of a changed quantised product differs from XLA's version of the product."""
    made_of = native.compiled(quantised(**changes), native.default_trace(quantised(**changes)))
    return difference_from_xla(native.Native(), CompiledRegion(made_of.hot, made_of.prepare, quantised()))


def test_near_the_middle_between_two_integers_a_kernel_may_give_either() -> None:
    assert [quantised_difference(off=off) for off in (-1e-5, 1e-5)] == ["", ""]


@pytest.mark.parametrize("wrong", OTHERS)
def test_kernels_with_other_quantised_results_differ(wrong: Any) -> None:
    assert "values differ" in quantised_difference(**wrong)


def test_what_is_proved_is_not_compared_with_xla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was run on floats between bands, and was near float64."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    assert validate_code(graph, choices).proved == 1
    monkeypatch.setattr("superopt.certify.kernels._of_xla", lambda *_: pytest.fail("it is compared"))
    assert disagreeing(graph, choices) == {}
    assert take_kernels(graph, choices, 1, called=False).kernels == choices


def test_what_no_time_was_left_for_is_not_used_before_it_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    monkeypatch.setattr(taking, "MOST_SECONDS", 0.0)
    taken = take_kernels(graph, choices, 1, called=False)
    assert (taken.kernels, taken.waiting) == ((), True)
    assert "at the first call" in next(iter(taken.left.values()))
    taken = take_kernels(graph, choices, 1, called=True)
    assert (taken.kernels, taken.waiting, taken.code.proved) == (choices, False, 1)
    assert take_kernels(graph, choices, 1, called=False).kernels == choices  # it is on record


def test_what_differs_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    monkeypatch.setattr(kernels, "validated", lambda *_: KernelVerdict(UNKNOWN, "nobody reads it", 0.0))
    monkeypatch.setattr(kernels, "difference_from_xla", lambda *_: "it differs from XLA's values")
    taken = take_kernels(graph, choices, 1, called=False)
    assert (taken.kernels, taken.waiting) == ((), False)
    assert "differs" in next(iter(taken.left.values()))


def test_of_damaged_or_foreign_files_of_the_cache_nothing_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.compiled.cache_clear()  # what another test made lies in its own folder
    graph, choices = chosen(2.0)
    (region,) = partition(graph)
    trace = native.default_trace(region.graph)
    key = made.key_of(region.graph, trace)
    assert validate_code(graph, choices).proved == 1
    assert made.find(key)
    assert native.Native().recorded(region.graph, trace)
    folder = jit.cache_folder()
    for ending, lost in (
        (".kernel", lambda: made.find(key)),
        (".verdict", lambda: native.Native().recorded(region.graph, trace)),
    ):
        path = folder / f"{key}{ending}"
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert not lost()
        path.write_bytes(whole)
        assert lost()
        (folder / f"other{ending}").write_bytes(whole)  # under another name it is not what was sealed
    assert made.find("other") is None
    assert made.verdict("other", version(), made.objects(native.compiled(region.graph, trace).hot)) is None
    mine = (folder / seals.KEY).read_bytes()
    (folder / seals.KEY).write_bytes(bytes(32))  # files of another folder
    seals._key.cache_clear()
    assert made.find(key) is None
    assert native.Native().recorded(region.graph, trace) is None
    (folder / seals.KEY).write_bytes(mine)
    seals._key.cache_clear()
    assert native.Native().recorded(region.graph, trace)
    (folder / seals.KEY).chmod(0o644)  # others may have read it
    seals._key.cache_clear()
    assert native.Native().recorded(region.graph, trace) is None
    assert stat.S_IMODE((folder / seals.KEY).stat().st_mode) == 0o600
    seals._key.cache_clear()


def test_a_verdict_is_on_the_bytes_of_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    (region,) = partition(graph)
    trace = native.default_trace(region.graph)
    assert validate_code(graph, choices).proved == 1
    kernel = native.compiled(region.graph, trace)
    assert native.Native().recorded(region.graph, trace)
    assert isinstance(kernel.hot, Kernel)
    monkeypatch.setattr(kernel.hot, "compiled", replace(kernel.hot.compiled, object=kernel.hot.compiled.object + b"\0"))
    assert native.Native().recorded(region.graph, trace) is None


def scaled(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2.0 + jnp.exp(x)


def test_what_takes_long_to_compare_waits_for_a_call_with_arrays(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x = jnp.linspace(0.0, 1.0, 40).reshape(4, 10)
    imported = import_function(scaled, (x,))
    program = original_program(imported.graph)
    choices = specs_of(program.hot, [(r, None) for r in partition(program.hot)])
    measured = Measurement(speedup=Speedup(1.0, 1.0, 1.0))
    report = Report(program="scaled", verdict="made by a test", measured=measured, original_returned=False)
    executable = mixed.build(program, (), kernels=choices)
    path = Optimized(imported, program, executable, report, None, choices).save(tmp_path / "p.superopt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # where nothing is known of it
    asked: list[object] = []
    compare = kernels.difference_from_xla
    monkeypatch.setattr(kernels, "validated", lambda *_: KernelVerdict(UNKNOWN, "nobody reads it", 0.0))
    monkeypatch.setattr(kernels, "difference_from_xla", lambda *case: asked.append(case) or compare(*case))
    monkeypatch.setattr(kernels, "MOST_ELEMENTS", 40)
    loaded = superopt.load(path)
    assert not asked
    assert not loaded.kernels
    (why,) = loaded.refused.values()
    assert "at the first call: it works on 120 elements" in why
    jax.eval_shape(loaded, x)
    assert not asked
    np.testing.assert_allclose(loaded(x), scaled(x), rtol=1e-5)
    assert len(asked) == len(loaded.kernels) == 1
    assert loaded.refused == {}
    np.testing.assert_allclose(loaded(x), scaled(x), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda x: loaded(x).sum())(x), jax.grad(lambda x: scaled(x).sum())(x), rtol=1e-5
    )
    assert len(asked) == 1
    assert superopt.load(path).kernels  # it is known to agree


def test_shapes_that_a_small_file_states_do_not_make_loading_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(rows: int, live: int = 1) -> bool:
        graph = import_function(scaled, (jax.ShapeDtypeStruct((rows, 1000), "float32"),)).graph
        (choice,) = specs_of(graph, [(r, None) for r in partition(graph)])
        return list(too_large(graph, [choice], live)) == [0]

    assert late(200_000)
    assert not late(1000)
    monkeypatch.setattr(kernels, "MOST_SECONDS", 0.19)
    assert late(1000)
    assert not late(1000, live=0)  # the file holds as many elements
