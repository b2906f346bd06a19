"""Helpers go to processors that nobody of their region is on, and stay free to run anywhere."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator

import pytest

from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.runtime.processors import SET_BYTES, emit_apart

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")

CPUS = sorted(os.sched_getaffinity(0))
_ATTEMPTS = 50
_current: Callable[[], int] = ctypes.CDLL(None).sched_getcpu


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Callable[[set[int]], set[int]]:
    """The function on a set of processors; gives what it is afterwards."""
    module = Module()
    emit_apart(module)
    library = jit.load(jit.compile(module.text(), "lite", tmp_path_factory.mktemp("objects")))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("runtime.apart"))

    def call(used: set[int]) -> set[int]:
        number = sum(1 << cpu for cpu in used)
        words = ctypes.create_string_buffer(number.to_bytes(SET_BYTES, "little"), SET_BYTES)
        entry(ctypes.addressof(words))
        after = int.from_bytes(words.raw, "little")
        return {cpu for cpu in range(8 * SET_BYTES) if after >> cpu & 1}

    return call


@pytest.fixture(autouse=True)
def own_affinity() -> Iterator[None]:
    """Processors as they were, after each test."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("cpu", CPUS)
def test_its_own_processor_is_noted(apart: Callable[[set[int]], set[int]], cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    assert apart(set()) == {cpu}


def test_nowhere_to_go(apart: Callable[[set[int]], set[int]]) -> None:
    os.sched_setaffinity(0, {CPUS[-1]})
    assert apart({CPUS[-1]}) == {CPUS[-1]}  # the others are not allowed
    assert os.sched_getaffinity(0) == {CPUS[-1]}
    os.sched_setaffinity(0, CPUS)
    assert apart(set(CPUS)) == set(CPUS)
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two processors")
def test_a_thread_moves_off_a_taken_processor_and_stays_free(apart: Callable[[set[int]], set[int]]) -> None:
    pair = {CPUS[0], CPUS[-1]}
    moved = 0
    for _ in range(_ATTEMPTS):  # the operating system may move it in between, but not every time
        os.sched_setaffinity(0, {CPUS[0]})
        os.sched_setaffinity(0, pair)
        assert apart({CPUS[0]}) == pair
        moved += _current() == CPUS[-1]
        assert os.sched_getaffinity(0) == pair
    assert moved > _ATTEMPTS // 2
