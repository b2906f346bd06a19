"""Programs with kernels of our own in them: values, transformations, frozen operands, files, what is left to XLA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.backends import mixed
from superopt.backends.xla import build
from superopt.candidates.candidate import Candidate
from superopt.candidates.evidence import Measurement
from superopt.errors import InputError
from superopt.frontends.jax.call import calls_of_import
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.program import Program, frozen_cut, split
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.relayout import channels_last
from superopt.kernels.choose.specs import KernelSpec, specs_of
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.runtime.kernel import GuardError, Kernel
from superopt.lab.bench.programs.nets import bert, inverted_residual
from superopt.machine.speedup import Speedup
from superopt.measure import Timing, compare
from superopt.measure.session import ComparisonSettings
from superopt.report.data import Report
from superopt.returned.optimized import Optimized
from verifier.kernels.check import KernelVerdict
from verifier.verdict import UNKNOWN

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


def prepared(fn: Any, *args: Any, frozen: Any = ()) -> tuple[Imported, Program]:
    imported = import_function(fn, args, frozen=frozen)
    return imported, split(imported.graph, frozen_cut(imported.graph))


def all_kernels(program: Program) -> tuple[KernelSpec, ...]:
    return specs_of(program.hot, [(r, None) for r in partition(program.hot) if not r.is_free])


def layer(p: dict[str, Any], x: Any) -> Any:
    y = jnp.tanh(x @ p["w"] + p["b"])
    y = y - jnp.max(y, -1, keepdims=True)
    e = jnp.exp(y)
    return e / jnp.sum(e, -1, keepdims=True), jnp.sum(x, 0)


def weights(m: int = 24, n: int = 40, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    params = {"w": rng.standard_normal((m, n)).astype(np.float32), "b": rng.standard_normal(n).astype(np.float32)}
    return params, rng.standard_normal((7, m)).astype(np.float32)


@pytest.fixture(scope="module")
def built() -> tuple[Imported, Program, Any]:
    params, x = weights()
    imported, program = prepared(layer, params, x, frozen=0)
    return imported, program, mixed.build(program, imported.frozen_values, kernels=all_kernels(program))


def close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def test_values_are_those_of_xla_and_nothing_is_left_to_it(built: tuple[Imported, Program, Any]) -> None:
    imported, program, executable = built
    params, x = weights()
    assert executable.mix.refused == {}
    ops = {n.op for n in executable.mix.program.hot.nodes()}
    assert ops <= {"input", "opaque", "result"}
    close(executable(x), build(program, imported.frozen_values)(x))
    close(executable(x), layer(params, x))


def test_under_jit_vmap_and_grad(built: tuple[Imported, Program, Any]) -> None:
    imported, _, executable = built
    params, x = jax.tree_util.tree_unflatten(imported.in_tree, imported.examples)[0]
    call = calls_of_import(imported, executable)[1]
    close(call(params, x), layer(params, x))
    close(jax.jit(call)(params, x), layer(params, x))
    xs = np.stack([x, -x, 2 * x])
    close(jax.vmap(call, (None, 0))(params, xs), jax.vmap(layer, (None, 0))(params, xs))
    close(jax.jit(jax.vmap(call, (None, 0)))(params, xs), jax.vmap(layer, (None, 0))(params, xs))

    def loss(f: Any) -> Any:
        return jax.grad(lambda p, x: f(p, x)[0][:, 0].sum())(params, x)

    close(loss(call), loss(layer))


def test_other_frozen_values_are_packed_again(built: tuple[Imported, Program, Any]) -> None:
    imported, _, executable = built
    call = calls_of_import(imported, executable)[1]
    others, x = weights(seed=1)
    close(call(others, x), layer(others, x))
    close(jax.jit(call)(others, x), layer(others, x))


def test_vmap_over_frozen_values(built: tuple[Imported, Program, Any]) -> None:
    imported, _, executable = built
    call = calls_of_import(imported, executable)[1]
    many = [weights(seed=s) for s in range(3)]
    stacked = jax.tree_util.tree_map(lambda *a: np.stack(a), *[p for p, _ in many])
    x = many[0][1]
    close(jax.vmap(call, (0, None))(stacked, x), jax.vmap(layer, (0, None))(stacked, x))


def test_float64_kernels_run_whatever_the_process_has_enabled() -> None:
    def f(x: Any, w: Any) -> Any:
        return jnp.exp(x @ w) * 0.5

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 12)), rng.standard_normal((12, 9)) / 4
    with jax.enable_x64(True):
        imported, program = prepared(f, x, w, frozen=1)
    executable = mixed.build(program, imported.frozen_values, kernels=all_kernels(program))
    assert executable.mix.refused == {}
    (got,) = executable(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(np.asarray(got), np.exp(x @ w) * 0.5, rtol=1e-13)


def test_an_encoder_layer_is_kernels_throughout() -> None:
    net = bert(1, 32, 2, 9)
    imported, program = prepared(net.fn, net.params, *net.inputs, frozen=0)
    executable = mixed.build(program, imported.frozen_values, kernels=all_kernels(program))
    assert executable.mix.refused == {}
    close(executable(*net.inputs), jax.jit(net.fn)(net.params, *net.inputs), 2e-5)


def test_images_channels_last() -> None:
    net = inverted_residual(cin=8, cout=8, expand=2, size=9)
    imported, program = prepared(net.fn, net.params, *net.inputs, frozen=0)
    found = channels_last(program)
    assert found is not None
    moved, kept = found
    choices = specs_of(moved.hot, [(r, None) for r in partition(moved.hot, kept)])
    executable = mixed.build(moved, imported.frozen_values, kernels=choices)
    assert executable.mix.refused == {}
    close(executable(*net.inputs), jax.jit(net.fn)(net.params, *net.inputs), 2e-5)


def test_what_is_no_kernel_stays_with_xla() -> None:
    def f(x: Any) -> Any:
        return jnp.sort(jnp.exp(x)) * 2.0, jnp.cumsum(x * x, 0)

    x = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
    imported, program = prepared(f, x)
    executable = mixed.build(program, (), kernels=all_kernels(program))
    close(executable(x), jax.jit(f)(x))
    assert not {"cumsum", "exp", "mul"} & {n.op for n in executable.mix.program.hot.nodes()}
    assert imported.opaque_ops


def test_packed_weights_are_counted(built: tuple[Imported, Program, Any]) -> None:
    _, program, executable = built
    hot = executable.mix.program.hot
    packed = [n for n in hot.inputs if n["name"].startswith(mixed.PACKED)]
    assert executable.added_bytes == sum(4 * int(np.prod(n.shape)) for n in packed)
    assert mixed.prepared_bytes(program, executable.specs) == executable.mix.program.prepared_bytes


def test_a_trace_that_does_not_fit_leaves_the_region_to_xla(built: tuple[Imported, Program, Any]) -> None:
    imported, program, _ = built
    params, x = weights()
    wrong = [KernelSpec(c.root, c.reads, (("split", "out0", "nowhere", 4),)) for c in all_kernels(program)]
    executable = mixed.build(program, imported.frozen_values, kernels=wrong)
    assert len(executable.refused) == len(wrong)
    close(executable(x), layer(params, x))


def test_equal_regions_are_built_once() -> None:
    net = bert(2, 32, 2, 9)
    _, program = prepared(net.fn, net.params, *net.inputs, frozen=0)
    mix = mixed.mixed(program, all_kernels(program))
    assert len({id(k) for k in mix.kernels}) < 0.6 * len(mix.kernels)


def test_kernels_are_compared_in_the_worker(built: tuple[Imported, Program, Any]) -> None:
    imported, program, executable = built
    tuned = Candidate(name="tuned", program=program, kernels=executable.specs)
    result = compare(program, [tuned], imported.live_values, imported.frozen_values, ComparisonSettings(2, 1e-4))
    (outcome,) = result.candidates
    assert isinstance(outcome, Timing), outcome
    assert outcome.max_error < 1e-5


def test_saved_with_kernels_and_loaded(built: tuple[Imported, Program, Any], tmp_path: Path) -> None:
    imported, program, executable = built
    (params, x), _ = jax.tree_util.tree_unflatten(imported.in_tree, imported.examples)
    measured = Measurement(speedup=Speedup(1.0, 1.0, 1.0))
    report = Report(program="layer", verdict="made by a test", measured=measured, original_returned=False)
    result = Optimized(imported, program, executable, report, None, executable.specs)
    path = result.save(tmp_path / "layer.superopt")
    loaded = superopt.load(path)
    assert loaded.kernels == executable.specs
    assert loaded.refused == {}
    close(loaded(params, x), layer(params, x))
    close(jax.jit(loaded)(params, x), layer(params, x))
    gradient = jax.grad(lambda x: loaded(params, x)[0][:, 0].sum())(x)
    close(gradient, jax.grad(lambda x: layer(params, x)[0][:, 0].sum())(x))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing is on record
        patched.setattr("superopt.certify.kernels.validated", lambda *_: KernelVerdict(UNKNOWN, "nobody reads it", 0.0))
        patched.setattr("superopt.certify.kernels.difference_from_xla", lambda *_: "it differs")
        without = superopt.load(path)
    assert without.kernels == ()
    assert set(without.refused.values()) == {"it differs"}
    close(without(params, x), layer(params, x))


def test_guarded_kernels_run_alone_first(built: tuple[Imported, Program, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    imported, program, executable = built
    data = [{**c.to_json(), "guarded": True} for c in executable.specs]
    params, x = weights()
    close(mixed.build(program, imported.frozen_values, kernels=data)(x), layer(params, x))

    def outside(*_: Any, guard: bool = False, **__: Any) -> Any:
        raise GuardError(f"guard={guard}")

    monkeypatch.setattr(Kernel, "run", outside)
    with pytest.raises(GuardError, match="guard=True"):
        mixed.build(program, imported.frozen_values, kernels=data)
    mixed.build(program, imported.frozen_values, kernels=executable.specs)


def test_choices_of_another_program_are_refused(built: tuple[Imported, Program, Any]) -> None:
    _, program, _ = built
    with pytest.raises(InputError):
        mixed.build(program, (), kernels=[json.loads(json.dumps(KernelSpec(500, ()).to_json()))])
