"""The fork-join region and its team of helpers: helpers that sleep, never come, come late, and many callers at once."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from superopt.ir.graph import make_input, mk
from superopt.kernels.choose.defaults import default
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.program import from_graph
from superopt.kernels.runtime import pool, team
from superopt.kernels.runtime.kernel import Kernel, build
from superopt.kernels.runtime.team import ASLEEP, AWAKE, BUSY, HEAD, SLOT_BYTES, SLOTS
from tests.support.kernels_code import expected, reversed_twice

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")

X = np.arange(256, dtype=np.float32)
_NUMBERS = itertools.count()
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def kernel(folder: Path) -> Kernel:
    return fresh(build(reversed_twice(), cache=folder))


class Team:
    """The code of the runtime with a team of its own, whose slots the test fills; no threads unless `hires`."""

    def __init__(self, folder: Path, slots: tuple[int, ...] = (), hires: bool = False) -> None:
        module = Module()
        pool.emit_serial(module)
        pool.emit_region(module)
        module.constant(f"copy{next(_NUMBERS)}", "i8", "0", exported=True)  # another text, hence memory of its own
        self.library = jit.load(jit.compile(module.text(), "lite", folder))
        self.base = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.library.address("runtime.members"))()
        for j, word in enumerate(slots):
            self.word(SLOTS + j * SLOT_BYTES).value = word
        self.word(HEAD["helpers"]).value = len(slots)
        self.word(HEAD["lock"]).value = 0 if hires else 1

    def word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.base + offset)

    @property
    def slots(self) -> list[int]:
        return [self.word(SLOTS + j * SLOT_BYTES).value for j in range(self.word(HEAD["helpers"]).value)]

    def run(self, kernel: Kernel, threads: int = 8, x: np.ndarray = X) -> np.ndarray:
        arrays = [x.copy(), np.zeros_like(x), np.zeros_like(x)]
        bufs = (ctypes.c_void_p * 3)(*[a.ctypes.data for a in arrays])
        _REGION(self.library.address("runtime.region"))(kernel.address("kernel"), ctypes.addressof(bufs), threads)
        return arrays[1]


@pytest.fixture
def costly(kernel: Kernel) -> Kernel:
    """A kernel whose next call is worth waking helpers."""
    work_of(kernel).value = -10 * pool.WAKE
    return kernel


def fresh(kernel: Kernel) -> Kernel:
    """A kernel that no call has told anything of: its code, and what it remembers, is mapped once per process."""
    for name in pool.WORK:
        work_of(kernel, name).value = -int(name == "work")
    return kernel


def work_of(kernel: Kernel, what: str = "work") -> ctypes.c_int64:
    pointer = ctypes.c_uint64.from_address(kernel.address("kernel") + pool.FIELDS["work"]).value
    return ctypes.c_int64.from_address(pointer + pool.WORK[what])


def test_a_team_without_helpers(costly: Kernel, folder: Path) -> None:
    np.testing.assert_array_equal(Team(folder).run(costly), expected(X))


def test_helpers_that_never_come(costly: Kernel, folder: Path) -> None:
    mates = Team(folder, (AWAKE, BUSY, ASLEEP))
    np.testing.assert_array_equal(mates.run(costly), expected(X))
    assert mates.slots == [BUSY] * 3  # taken back; the one that slept was woken, and finds nothing


def test_helpers_that_come_after_the_caller_has_returned(costly: Kernel, folder: Path) -> None:
    mates = Team(folder, (AWAKE, AWAKE, AWAKE, AWAKE))
    result = mates.run(costly)
    work = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(mates.library.address("runtime.work"))
    for number, state in enumerate(mates.slots[:3], 1):
        assert work(state, number) == 0  # no task is left; the last one frees the state
    np.testing.assert_array_equal(result, expected(X))
    assert mates.slots[3] == AWAKE  # four tasks: no more helpers than three


@pytest.mark.parametrize(
    ("number", "shares", "order"),
    [
        (0, 2, [0, 1, 2, 3, 4]),
        (1, 2, [3, 4, 0, 1, 2]),
        (3, 2, [3, 4, 0, 1, 2]),
        (2, 3, [4, 0, 1, 2, 3]),
        (1, 7, [1, 2, 3, 4, 0]),
        (6, 7, [0, 1, 2, 3, 4]),
    ],
)
def test_a_participant_begins_with_its_own_share(folder: Path, number: int, shares: int, order: list[int]) -> None:
    ran: list[int] = []
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(lambda _, number: ran.append(number))
    phases = (ctypes.c_int64 * 2)(ctypes.cast(task, ctypes.c_void_p).value or 0, len(order))
    fields = {"phases": 1, "phase_table": ctypes.addressof(phases)}
    kernel = (ctypes.c_int64 * len(pool.FIELDS))(*[fields.get(name, 0) for name in pool.FIELDS])
    state = (ctypes.c_int64 * 1024)(2)  # references: one remains, so that it is not freed
    values = {"kernel": ctypes.addressof(kernel), "mode": 0x1F80, "work": 1 << 40, "shares": shares}
    for name, value in values.items():
        state[pool._STATE[name] // 8] = value
    work = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
        Team(folder).library.address("runtime.work")
    )
    work(ctypes.addressof(state), number)
    assert ran == order
    work(ctypes.addressof(state), 0)
    assert ran == order  # nothing is left


def test_sleeping_helpers_are_left_alone_where_the_work_is_small(kernel: Kernel, folder: Path) -> None:
    mates = Team(folder, (ASLEEP, AWAKE, ASLEEP))
    work_of(kernel).value = -pool.WAKE // 2
    np.testing.assert_array_equal(mates.run(kernel), expected(X))
    assert mates.slots[0] == mates.slots[2] == ASLEEP
    assert mates.slots[1] > ASLEEP


def test_work_that_was_done_without_helpers_wakes_them(kernel: Kernel, folder: Path) -> None:
    mates = Team(folder, (ASLEEP,))
    for _ in range(8):
        work_of(kernel).value = -pool.WAKE // 2
        mates.word(HEAD["debt"]).value = pool.WAKE
        mates.word(HEAD["last"]).value = 1 << 62  # a moment ago
        mates.run(kernel)
    assert mates.slots == [BUSY]
    assert mates.word(HEAD["debt"]).value == 0


def test_calls_that_ask_no_helpers_leave_what_others_had_to_do_without(kernel: Kernel, folder: Path) -> None:
    other, mates = fresh(build(reversed_twice(tasks=16), cache=folder)), Team(folder, (ASLEEP,))
    for name, value in {"alone": 100, "shared": 200, "calls": 500, "work": -pool.WAKE // 2}.items():
        work_of(kernel, name).value = value  # asks none
    work_of(other).value = -pool.WAKE // 2
    mates.word(HEAD["debt"]).value = pool.WAKE
    for each, x, tasks in ((kernel, X, 4), (other, np.arange(1024, dtype=np.float32), 16)):
        assert mates.slots == [ASLEEP]
        mates.word(HEAD["last"]).value = 1 << 62  # a moment ago
        np.testing.assert_array_equal(mates.run(each, x=x), expected(x, tasks))
    assert mates.slots == [BUSY]  # woken


def test_work_that_is_too_small_to_share(kernel: Kernel, folder: Path) -> None:
    mates = Team(folder, (AWAKE, AWAKE))
    work_of(kernel).value = pool.GRAIN // 2
    np.testing.assert_array_equal(mates.run(kernel), expected(X))
    assert mates.slots == [AWAKE, AWAKE]


@pytest.mark.parametrize(
    ("alone", "shared", "calls", "work", "asked"),
    [
        (100, 200, 500, pool.SHORT_WORK // 2, False),
        (200, 100, 500, pool.SHORT_WORK // 2, True),
        (0, 200, 500, pool.SHORT_WORK // 2, True),  # not known
        (100, 200, 500, pool.SHORT_WORK * 2, True),
        (100, 200, 2 * pool.EVERY, pool.SHORT_WORK // 2, True),  # tries again
        (200, 100, 2 * pool.EVERY + pool.TRIES[0], pool.SHORT_WORK // 2, False),
        (200, 100, 2 * pool.EVERY + sum(pool.TRIES), pool.SHORT_WORK // 2, True),
    ],
)
def test_helpers_that_cost_more_than_they_save_are_not_asked(
    folder: Path, alone: int, shared: int, calls: int, work: int, asked: bool
) -> None:
    kernel, mates = fresh(build(reversed_twice(), cache=folder)), Team(folder, (AWAKE,))
    for name, value in {"alone": alone, "shared": shared, "calls": calls, "work": -work}.items():
        work_of(kernel, name).value = value
    np.testing.assert_array_equal(mates.run(kernel), expected(X))
    assert (mates.slots != [AWAKE]) == asked
    assert work_of(kernel, "calls").value == calls + 1
    changed = work_of(kernel, "shared" if asked else "alone").value
    assert changed != (shared if asked else alone)
    assert work_of(kernel, "alone" if asked else "shared").value == (alone if asked else shared)


def test_what_a_call_took_is_a_mean_without_outliers(folder: Path) -> None:
    kernel, mates = fresh(build(reversed_twice(), cache=folder)), Team(folder)
    work_of(kernel, "alone").value = 4  # the call takes more than twice that
    work_of(kernel).value = pool.GRAIN // 2
    mates.run(kernel)
    assert work_of(kernel, "alone").value == 5


def test_calls_measure_the_work(kernel: Kernel, folder: Path) -> None:
    mates = Team(folder)
    work_of(kernel).value = -(1 << 50)
    mates.run(kernel)
    measured = work_of(kernel).value
    assert 0 < measured < 1 << 40  # replaces the estimate
    work_of(kernel).value = 80
    mates.run(kernel)
    assert 0 < work_of(kernel).value <= 91  # one outlier is no reason


def test_at_most_so_many_threads_as_asked_and_hinted(folder: Path) -> None:
    kernel = build(reversed_twice(), threads_hint=2, cache=folder)
    mates = Team(folder, (AWAKE, AWAKE, AWAKE))
    np.testing.assert_array_equal(mates.run(kernel), expected(X))
    assert mates.slots[1:] == [AWAKE, AWAKE]
    mates = Team(folder, (AWAKE, AWAKE, AWAKE))
    np.testing.assert_array_equal(mates.run(kernel, threads=1), expected(X))
    assert mates.slots == [AWAKE, AWAKE, AWAKE]


def test_helpers_rest_awake_and_then_sleep(costly: Kernel, folder: Path) -> None:
    mates = Team(folder, hires=True)
    np.testing.assert_array_equal(mates.run(costly), expected(X))
    deadline = time.monotonic() + 30
    while mates.slots != [ASLEEP] * 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mates.slots == [ASLEEP] * 3
    begin = _processor_seconds()
    time.sleep(0.2)
    assert _processor_seconds() - begin < 0.1  # three that stayed awake would take 0.6
    work_of(costly).value = -10 * pool.WAKE
    np.testing.assert_array_equal(mates.run(costly), expected(X))  # and are woken again


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system


@pytest.mark.parametrize("helpers", [1, 3, 12])
def test_many_callers_and_few_helpers(folder: Path, helpers: int) -> None:
    """Every mixture of states: calls that wake, that take who is awake, busy or queued, and that work alone."""
    kernel, mates, wrong = fresh(build(reversed_twice(tasks=16), cache=folder)), Team(folder, hires=True), list[int]()

    def call(seed: int) -> None:
        rng, x = np.random.default_rng(seed), np.arange(1024, dtype=np.float32) + seed
        for _ in range(150):
            work_of(kernel).value = -int(rng.choice([pool.GRAIN, 4 * pool.GRAIN, 2 * pool.WAKE]))
            if not np.array_equal(mates.run(kernel, helpers + 1, x), expected(x, 16)):
                wrong.append(seed)
            if rng.random() < 0.1:
                time.sleep(float(rng.choice([1e-5, 1e-4, 1e-3])))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert len(mates.slots) <= helpers


def test_the_team_of_a_child_is_empty(folder: Path) -> None:
    mates = Team(folder, (AWAKE, 12345))
    team.reset(mates.base)
    assert mates.slots == []
    assert mates.word(HEAD["lock"]).value == 0


def test_a_tile_is_estimated_by_its_multiply_adds() -> None:
    x, w = make_input("x", (128, 256)), make_input("w", (256, 192))
    product = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    phases = generate(default(from_graph([product], frozen={"w"}), threads=4)).phases
    ideal = 1e6 * 128 * 256 * 192 / host().lanes("float32") / host().rates.hertz
    assert ideal <= sum([p.microseconds or 0 for p in phases]) <= 1.5 * ideal
    assert phases[-1].tasks >= 4
