"""The fork-join region on pools that fail, that run tasks at once, late, or never."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernels_code import expected, reversed_twice

from superopt.kernels import runtime
from superopt.kernels.cpu import supported
from superopt.kernels.ffi_layout import layout
from superopt.kernels.runtime import Kernel, build

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")

CALL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
X = np.arange(256, dtype=np.float32)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return build(reversed_twice(), cache=tmp_path_factory.mktemp("objects"))


def read(address: int, struct: str, name: str) -> int:
    return ctypes.c_uint64.from_address(address + layout().at(struct, name)).value


class FakePool:
    """An interface of XLA's whose functions are Python's."""

    def __init__(self, threads: int | None, schedule: Callable[[int, int], int | None]) -> None:
        self.destroyed: list[int] = []
        self.scheduled = 0

        def number(args: int) -> int | None:
            assert read(args, "ThreadPool_NumThreads_Args", "struct_size") == layout().size(
                "ThreadPool_NumThreads_Args"
            )
            assert read(args, "ThreadPool_NumThreads_Args", "ctx") == 77
            if threads is None:
                return 5
            ctypes.c_int64.from_address(read(args, "ThreadPool_NumThreads_Args", "num_threads")).value = threads
            return None

        def add(args: int) -> int | None:
            self.scheduled += 1
            assert read(args, "ThreadPool_Schedule_Args", "ctx") == 77
            task, data = [read(args, "ThreadPool_Schedule_Args", name) for name in ("task", "data")]
            return schedule(task, data)

        def destroy(args: int) -> None:
            self.destroyed.append(read(args, "Error_Destroy_Args", "error"))

        self._functions = {
            "ThreadPool_NumThreads": CALL(number), "ThreadPool_Schedule": CALL(add), "Error_Destroy": CALL(destroy),
        }  # fmt: skip
        self.table = (ctypes.c_uint64 * 64)()
        for name, function in self._functions.items():
            place = layout().at("Api", f"XLA_FFI_{name}") // 8
            self.table[place] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def run(self, kernel: Kernel) -> np.ndarray:
        arrays = [X.copy(), np.zeros_like(X), np.zeros_like(X)]
        bufs = (ctypes.c_void_p * 3)(*[a.ctypes.data for a in arrays])
        region = runtime._REGION(runtime._entries().address("runtime.region"))
        region(kernel.address("kernel"), ctypes.addressof(self.table), 77, ctypes.addressof(bufs))
        return arrays[1]


def never(task: int, data: int) -> None:
    return None


def at_once(task: int, data: int) -> None:
    CALL(task)(data)


def test_tasks_that_never_start(kernel: Kernel) -> None:
    fake = FakePool(4, never)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.scheduled == 3


def test_tasks_that_run_at_once_in_the_calling_thread(kernel: Kernel) -> None:
    fake = FakePool(4, at_once)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))


def test_tasks_that_run_after_the_caller_has_returned(kernel: Kernel) -> None:
    waiting: list[tuple[int, int]] = []
    fake = FakePool(4, lambda task, data: waiting.append((task, data)))
    result = fake.run(kernel)
    for task, data in waiting:
        CALL(task)(data)  # the last one frees the state
    np.testing.assert_array_equal(result, expected(X))
    assert len(waiting) == 3


def test_a_pool_of_one_thread_is_not_used(kernel: Kernel) -> None:
    fake = FakePool(1, never)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.scheduled == 0


def test_no_more_helpers_than_tasks(kernel: Kernel) -> None:
    fake = FakePool(64, never)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.scheduled == 3  # four tasks


def test_without_a_pool_the_caller_works_alone(kernel: Kernel) -> None:
    fake = FakePool(None, never)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.destroyed == [5]


def test_tasks_that_cannot_be_scheduled(kernel: Kernel) -> None:
    fake = FakePool(4, lambda task, data: 9)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.destroyed == [9, 9, 9]


def test_at_most_so_many_threads_as_hinted(tmp_path: Path) -> None:
    kernel = build(reversed_twice(), threads_hint=2, cache=tmp_path)
    fake = FakePool(8, never)
    np.testing.assert_array_equal(fake.run(kernel), expected(X))
    assert fake.scheduled == 1
