"""Where the C library has no memory for a task, the reserve serves one thread after the other."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from superopt.errors import UnsupportedKernel
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.runtime import rooms

pytestmark = pytest.mark.skipif(not supported(), reason="no code is made for this processor")
ROOM = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
VACATE = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def without_memory(tmp_path: Path) -> jit.Library:
    """The functions of the runtime on a machine whose C library has no memory at all."""
    module = Module()
    rooms.emit_rooms(module)
    text = module.text().replace(
        "declare ptr @aligned_alloc(i64, i64)", "define internal ptr @aligned_alloc(i64 %a, i64 %b) { ret ptr null }"
    )
    return jit.load(jit.compile(text, "lite", tmp_path))


def test_the_reserve_is_a_stack_of_one_thread(tmp_path: Path) -> None:
    library = without_memory(tmp_path)
    reserve = mmap.mmap(-1, 4096)
    base = ctypes.addressof(ctypes.c_char.from_buffer(reserve))
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(library.address("runtime.reserve"))(base, 4096)
    room, vacate = ROOM(library.address("runtime.room")), VACATE(library.address("runtime.vacate"))
    first, second = room(64, 1024), room(64, 64)
    assert (first, second) == (base, base + 1024)
    inner = room(64, 2048)
    assert inner == base + 1088
    vacate(inner)
    assert room(64, 2048) == inner  # a function that is called in a loop
    vacate(inner)
    done: list[int] = []

    def other() -> None:
        at = room(64, 4096)
        done.append(at)
        vacate(at)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.2)
    assert not done  # it waits
    for at in (first, second):
        vacate(at)
    thread.join(30)
    assert done == [base]
    assert room(64, 4096) == base


def test_a_reserve_that_no_memory_is_left_for_is_an_error_of_its_kind() -> None:
    with pytest.raises(UnsupportedKernel, match="no memory"):
        rooms.put_by(0, 1 << 62)


def test_rooms_begin_where_vectors_may() -> None:
    assert rooms.needed([]) == 0
    assert rooms.needed([1, 64, 65]) == 256


SCRIPT = """
import resource
from dataclasses import replace
from unittest import mock
import numpy as np
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host
from superopt.kernels.runtime.kernel import _place, build
from tests.kernels.test_kernels_chains import case, chain, evaluate, values
program = case("plain", 1, 37, 9001, 3, 5)
inputs = values(program)
cpu = replace(host(), l2=1 << 18, l3=1 << 24)
with mock.patch("superopt.kernels.schedule.tensorizing.host", return_value=cpu):
    scheduled = chain(program, "out0", cpu, threads=2).default()[0]
kernel = build(generate(scheduled))
placed = [_place(b, inputs, False) for b in kernel.pointers]
goes = [kernel._start(placed, threads) for threads in (2, 1)]
expected = evaluate(program, {n: x.astype(np.float64) for n, x in inputs.items()}, wide=True)["out0"]
(out,) = [array for b, (_, array) in zip(kernel.pointers, placed) if b.scope == "output"]
goes[0]()
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
errors = []
for go in goes:
    out[...] = 0
    go()
    errors.append(float(np.abs(out - expected).max()))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert max(errors) < 1e-3, errors
print("right")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_kernel_without_memory_gives_right_results() -> None:
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, cwd=root, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert re.search("right", ran.stdout)
