"""Kernels run, called inside XLA, shared among threads, and their failures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.errors import InputError, UnsupportedKernel
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import splat, type_of
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, GuardError, Kernel, Phase, build, shared
from tests.support.kernels_code import expected, reversed_twice

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Kernel:
    return build(reversed_twice(), cache=folder)


X = np.arange(256, dtype=np.float32)


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_run_gives_the_outputs_for_any_number_of_threads(kernel: Kernel, threads: int) -> None:
    found = kernel.run({"x": X}, threads=threads, guard=True)
    assert list(found) == ["y"]
    np.testing.assert_array_equal(found["y"], expected(X))


def test_many_runs_on_a_team_larger_than_the_machine(kernel: Kernel) -> None:
    go = kernel.bind({"x": X}, threads=8)
    for _ in range(2000):
        go()
    np.testing.assert_array_equal(kernel.run({"x": X}, threads=8)["y"], expected(X))


def test_bound_call_computes_on_its_own_copies(kernel: Kernel) -> None:
    x = X.copy()
    go = kernel.bind({"x": x})
    x[:] = 0
    go()
    np.testing.assert_array_equal(kernel.run({"x": X})["y"], expected(X))


def test_operands_that_do_not_fit(kernel: Kernel) -> None:
    with pytest.raises(InputError, match="missing"):
        kernel.run({})
    with pytest.raises(InputError, match=r"x is float32\[256\], got float32\[3\]"):
        kernel.run({"x": X[:3]})
    with pytest.raises(InputError, match=r"takes \(x: float32\[256\]\), got \(int32\[256\]\)"):
        kernel.call(X.astype(np.int32))


def test_writes_outside_of_a_buffer_are_noticed(folder: Path) -> None:
    module = Module()
    f = module.function("over", [("ptr", "bufs"), ("i64", "task")])
    y = f.load("ptr", "%bufs")
    f.store("float", "0.0", f.element(y, 8))
    f.ret()
    kernel = build(Code(module, (Phase("over", 1),), (Buffer("y", (8,), "float32", "output"),)), cache=folder)
    with pytest.raises(GuardError, match="outside of y"):
        kernel.run({}, guard=True)


def test_call_inside_jit(kernel: Kernel) -> None:
    call = jax.jit(lambda x: kernel.call(x + 1.0)[0] - 1.0)
    np.testing.assert_array_equal(call(X), expected(X + 1) - 1)


@pytest.mark.parametrize("method", ["broadcast_all", "sequential"])
def test_vmap(kernel: Kernel, method: str) -> None:
    several = np.stack([X, X - 7, 3 * X])
    call = jax.vmap(lambda x: kernel.call(x, vmap_method=method)[0])
    np.testing.assert_array_equal(jax.jit(call)(several), np.stack([expected(x) for x in several]))
    np.testing.assert_array_equal(jax.jit(jax.vmap(call))(several[None]), [[expected(x) for x in several]])


def test_wrong_buffers_are_python_exceptions(kernel: Kernel) -> None:
    kernel.call(X)
    name = f"superopt_{kernel.digest}"
    result = jax.ShapeDtypeStruct((256,), np.float32)

    def ffi(x: np.ndarray, results: int = 2) -> object:
        return jax.jit(lambda x: jax.ffi.ffi_call(name, [result] * results)(x))(x)

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"kernel twice: x must be float32\[256\]"):
        jax.block_until_ready(ffi(X[:255]))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"kernel twice: x must be float32\[256\]"):
        jax.block_until_ready(ffi(X.astype(np.int32)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="expected 1 operands and 2 results"):
        jax.block_until_ready(ffi(X, 1))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"y must be .* one batch for all"):
        jax.block_until_ready(ffi(np.stack([X, X])))


def test_many_python_threads_call_at_once(kernel: Kernel) -> None:
    call, wrong = jax.jit(lambda x: kernel.call(x)[0]), []
    want = expected(X)

    def work() -> None:
        for _ in range(60):
            if not np.array_equal(call(X), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_many_python_threads_share_the_team(kernel: Kernel) -> None:
    wrong: list[int] = []

    def work(start: int) -> None:
        x = X + start
        for _ in range(30):
            if not np.array_equal(kernel.run({"x": x}, threads=4)["y"], expected(x)):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_many_python_threads_build_at_once(tmp_path: Path) -> None:
    codes = [reversed_twice(tasks=2 + i % 3) for i in range(12)]
    built: list[Kernel] = []
    threads = [threading.Thread(target=lambda c=c: built.append(build(c, cache=tmp_path))) for c in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 12
    assert len({kernel.digest for kernel in built}) == 3
    for kernel in built:
        tasks = kernel.phases[0].tasks
        x = np.arange(64 * tasks, dtype=np.float32)
        np.testing.assert_array_equal(kernel.run({"x": x})["y"], expected(x, tasks))


def test_independent_calls_in_one_jit(kernel: Kernel) -> None:
    total = jax.jit(lambda x: sum(kernel.call(x + float(i))[0] for i in range(8)))
    np.testing.assert_array_equal(total(X), sum(expected(X + i) for i in range(8)))


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("float64", "double"), ("bfloat16", "i16"), ("int8", "i8"), ("uint8", "i8"), ("int16", "i16"), ("bool", "i8")],
)
def test_every_dtype_passes_through(folder: Path, dtype: str, element: str) -> None:
    module = Module()
    f = module.function("copy", [("ptr", "bufs"), ("i64", "task")])
    x, y = [f.load("ptr", f.element("%bufs", i, "ptr")) for i in range(2)]
    f.for_(0, 6, 1, lambda i, _: f.store(element, f.load(element, f.element(x, i, element)), f.element(y, i, element)))
    f.ret()
    buffers = (Buffer("x", (2, 3), dtype, "input"), Buffer("y", (3, 2), dtype, "output"))
    kernel = build(Code(module, (Phase("copy", 1),), buffers), cache=folder)
    with jax.enable_x64(True):
        x = jnp.asarray([[0, 1, 1], [2, 3, 0]]).astype(dtype)
        found = jax.jit(lambda x: kernel.call(x)[0])(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(x).reshape(3, 2))
    assert np.array_equal(kernel.run({"x": np.asarray(x)})["y"], np.asarray(x).reshape(3, 2))


def test_too_much_on_the_stack_is_refused(folder: Path) -> None:
    module = Module()
    f = module.function("big", [("ptr", "bufs"), ("i64", "task")])
    f.store("float", "0.0", f.alloca(2 << 20))
    f.ret()
    with pytest.raises(UnsupportedKernel, match="8388608 bytes on the stack"):
        build(Code(module, (Phase("big", 1),), ()), cache=folder)


def test_denormals_are_flushed_inside_xla_only(folder: Path) -> None:
    x = np.full(256, 1e-39, np.float32)
    module = Module()
    lanes = module.cpu.lanes("float32")
    vector = type_of("float32", lanes)
    f = module.function("half", [("ptr", "bufs"), ("i64", "task")])
    source, target = [f.element(f.load("ptr", f.element("%bufs", i, "ptr")), f.mul("%task", lanes)) for i in range(2)]
    f.store(vector, f.fop("mul", f.load(vector, source), splat(0.5, "float32", lanes), vector), target)
    f.ret()
    buffers = (Buffer("x", (256,), "float32", "input"), Buffer("y", (256,), "float32", "output"))
    kernel = build(Code(module, (Phase("half", 256 // lanes),), buffers), cache=folder)
    np.testing.assert_array_equal(kernel.run({"x": x}, threads=4)["y"], x / 2)
    np.testing.assert_array_equal(jax.jit(lambda x: kernel.call(x)[0])(x), jax.jit(lambda x: x * np.float32(0.5))(x))


def test_buffers_without_elements_and_without_axes(folder: Path) -> None:
    module = Module()
    f = module.function("one", [("ptr", "bufs"), ("i64", "task")])
    f.store("float", "1.0", f.load("ptr", f.element("%bufs", 2, "ptr")))
    f.ret()
    buffers = (
        Buffer("x", (0, 3), "float32", "input"),
        Buffer("y", (2, 0), "float32", "output"),
        Buffer("z", (), "float32", "output"),
    )
    kernel = build(Code(module, (Phase("one", 1),), buffers), cache=folder)
    found = kernel.run({"x": np.zeros((0, 3), np.float32)}, guard=True)
    assert found["y"].shape == (2, 0)
    assert found["z"] == 1
    y, z = jax.jit(lambda x: kernel.call(x))(np.zeros((0, 3), np.float32))
    assert y.shape == (2, 0)
    assert z == 1


def test_short_work_is_not_shared() -> None:
    assert shared((Phase("a", 8),))
    assert not shared((Phase("a", 1), Phase("b", 1)))
    assert not shared((Phase("a", 8, 0.4), Phase("b", 8, 0.5)))
    assert shared((Phase("a", 8, 400.0), Phase("b", 1, 5.0)))


def test_a_kernel_of_short_work_has_no_region(folder: Path) -> None:
    kernel = build(reversed_twice(microseconds=0.5), cache=folder)
    assert not kernel.parallel
    np.testing.assert_array_equal(kernel.run({"x": X}, threads=4)["y"], expected(X))
    np.testing.assert_array_equal(jax.jit(lambda x: kernel.call(x)[0])(X), expected(X))


def test_code_can_be_built_again(folder: Path) -> None:
    code = reversed_twice()
    first, second = build(code, cache=folder), build(code, cache=folder)
    assert first.digest == second.digest
    assert build(code, pipeline="O2", cache=folder).digest != first.digest


_ONE_PROCESSOR = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, numpy as np
from pathlib import Path
from superopt.kernels.runtime.kernel import build
from tests.support.kernels_code import expected, reversed_twice
kernel = build(reversed_twice(), cache=Path(os.environ["OBJECTS"]))
x = np.arange(256, dtype=np.float32)
call = jax.jit(lambda x: kernel.call(x)[0])
for _ in range(200):
    assert np.array_equal(call(x), expected(x))
assert np.array_equal(kernel.run({"x": x}, threads=8)["y"], expected(x))
print("done")
"""
_FORKED = """
import os, sys, warnings
import jax, numpy as np
from pathlib import Path
from superopt.kernels.runtime.kernel import build
from tests.support.kernels_code import expected, reversed_twice
kernel = build(reversed_twice(), cache=Path(os.environ["OBJECTS"]))
x = np.arange(256, dtype=np.float32)
go = kernel.bind({"x": x}, threads=4)
go()
call = jax.jit(lambda x: kernel.call(x)[0])
call(x)
warnings.simplefilter("ignore")                                     # jax warns of forks
child = os.fork()
if not child:
    for _ in range(1000):
        go()                                                        # the parent's helpers are not here
    good = np.array_equal(kernel.run({"x": x}, threads=4)["y"], expected(x))  # new ones
    for _ in range(1000):
        good = good and np.array_equal(call(x), expected(x))        # XLA's pool has no threads
    os._exit(0 if good else 1)
print("done" if os.waitpid(child, 0)[1] == 0 else "failed")
"""


@pytest.mark.parametrize("script", [_ONE_PROCESSOR, _FORKED], ids=["one processor", "after fork"])
def test_in_another_process(folder: Path, script: str) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "OBJECTS": str(folder), "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert found.stdout.strip() == "done", found.stderr


def test_the_width_is_that_of_the_processor(folder: Path) -> None:
    register = {512: "%zmm", 256: "%ymm"}[host().vector_bits]
    assert register in jit.assembly(reversed_twice().module.text().replace("define internal", "define"))
    assert type_of("float32", host().lanes("float32")) == f"<{host().vector_bits // 32} x float>"
