"""Native programs: results of both faces in every bit, threads, arguments of other kinds, what has no plan."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.errors import ArgumentError, InputError, VerificationError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import original_program
from superopt.kernels.llvm.cpu import supported
from superopt.native.lowering import LeftToXla, lower
from superopt.native.plan import COPY, PlanLoop, from_json
from superopt.native.planner import Lifetime, largest_live_bytes, offsets
from superopt.native.running import KEPT, NativeProgram
from tests.support.native_programs import CASES, built, case, native

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


ROWS = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
WEIGHTS = {"a": np.eye(8, dtype=np.float32), "b": np.full((8, 8), 0.25, np.float32)}


def same(got: Sequence[Any], want: Sequence[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (np.shape(a), a.dtype) == (np.shape(b), b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_both_faces_give_the_bits_of_the_program_inside_xla(name: str) -> None:
    executable, program, arrays = case(name)
    want = executable.jit(program.hosted)(*arrays, *executable.prepared)
    same(program(*arrays), want)
    same(program(*arrays), want)  # in an arena that has been used
    same(executable.jit(program.inside)(*arrays, *executable.prepared), want)
    same(executable(*arrays), want)
    go, results = program.bind(*arrays)
    go()
    same(results, want)


def test_outputs_are_written_in_place_and_copied_only_where_they_are_given() -> None:
    kinds = [kinds for _, kinds in calls("passed on")]
    copies = [kinds for kernel, kinds in calls("passed on") if kernel == COPY]
    assert copies == [["argument", "output"], ["weight", "output"], ["output", "output"], ["weight", "output"]]
    assert all("arena" not in k for k in kinds)


def calls(name: str) -> list[tuple[str, list[str]]]:
    """The kernel of each step of a program, those in loops too, and the kinds of its slots; `copy` for a copy."""
    plan = case(name)[1].lowered.plan
    return [(step.kernel, [plan.slots[i].kind for i in step.slots]) for step in plan.every_step()]


def loops(name: str) -> list[PlanLoop]:
    """The loops of a program, the outer one first where one stands in another."""
    outer = [step for step in case(name)[1].lowered.plan.steps if isinstance(step, PlanLoop)]
    return outer + [step for loop in outer for step in loop.steps if isinstance(step, PlanLoop)]


def test_loops_copy_nothing_that_a_kernel_can_write_where_it_belongs() -> None:
    assert [kernel for kernel, _ in calls("recurrent") if kernel == COPY] == []
    assert [kernel for kernel, _ in calls("nested") if kernel == COPY] == []
    plan = case("recurrent")[1].lowered.plan
    first, second = loops("recurrent")[0].carries
    assert plan.slots[first.first].kind == "weight"  # zeros are read where they lie
    assert (plan.slots[first.next].kind, first.turns) == ("moving", ())  # the row of a result is the carry as well
    assert [plan.slots[i].kind for i in second.turns] == ["output", "arena"]  # the last of 11 trips writes the output


def test_a_carry_that_is_read_before_the_next_is_written_has_one_slot() -> None:
    def fn(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w["a"]) @ w["b"], None), x, None, length=9)[0]

    executable = built(fn, WEIGHTS, ROWS)
    program = native(executable)
    (loop,) = program.lowered.plan.steps
    assert isinstance(loop, PlanLoop)
    assert [(program.lowered.plan.slots[c.next].kind, c.turns) for c in loop.carries] == [("output", ())]
    same(program(ROWS), executable.jit(program.hosted)(ROWS, *executable.prepared))
    assert executable.lower().as_text().count("custom_call") == 1  # a loop alone is one operation of XLA as well


def test_a_loop_under_vmap() -> None:
    executable, program, (x,) = case("recurrent")
    xs = np.stack([x, -x])
    batched = jax.jit(jax.vmap(program.inside, (0, *[None] * len(executable.prepared))))
    for got, *want in zip(batched(xs, *executable.prepared), *map(program, xs), strict=True):
        np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-6)


def test_a_loop_is_read_by_people() -> None:
    lines = str(case("nested")[1].lowered.plan).splitlines()
    assert lines[1] == "6 trips, moving3 = weight1 then moving4 in turn arena[0:32] and output0:"
    assert "    5 trips, moving7 = moving3 then moving1:" in lines
    assert "        moving5 f32[8] = 32 bytes of moving0 from 0 by 32" in lines
    assert any(line.startswith("while arena[") for line in str(case("until")[1].lowered.plan).splitlines())


def test_a_call_on_one_thread_gives_the_same_bits() -> None:
    _, program, arrays = case("attention")
    alone = NativeProgram(program.lowered, program.weights, program.hosted, threads=1)
    same(alone(*arrays), program(*arrays))


def test_calls_from_many_threads_do_not_disturb_each_other() -> None:
    executable, program, arrays = case("attention")
    given = [[x + np.asarray(i, x.dtype) for x in arrays] for i in range(2 * KEPT)]
    want = [program(*xs) for xs in given]
    wrong: list[int] = []

    def many(i: int) -> None:
        for _ in range(30):
            got = [np.asarray(x) for x in (program if i % 2 else executable)(*given[i])]
            if any(a.tobytes() != b.tobytes() for a, b in zip(got, want[i], strict=True)):
                wrong.append(i)

    threads = [threading.Thread(target=many, args=(i,)) for i in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_same_plan_with_other_weights_is_another_program() -> None:
    hosted, program, inputs = case("mlp")
    net = CASES["mlp"]()
    executable = built(net.fn, {name: 2 * w for name, w in net.params.items()}, *net.inputs)
    other = native(executable)
    assert other.kernel.digest == program.kernel.digest
    same(other(*inputs), executable(*inputs))
    same(program(*inputs), hosted(*inputs))
    del other, executable
    gc.collect()  # the arenas of the plan are freed, and allocated again
    same(program(*inputs), hosted(*inputs))


def test_weights_live_as_long_as_the_program() -> None:
    net = CASES["mlp"]()
    program = native(built(net.fn, net.params, *net.inputs))
    gc.collect()
    same(program(*net.inputs), case("mlp")[0](*net.inputs))


def test_under_vmap_and_jit() -> None:
    executable, program, (x,) = case("mlp")
    xs = np.stack([x, -x, 2 * x])
    batched = jax.jit(jax.vmap(program.inside, (0, *[None] * len(executable.prepared))))
    same(batched(xs, *executable.prepared), [np.stack([np.asarray(executable(x)[0]) for x in xs])])


def test_a_call_is_one_operation_of_xla_where_there_are_several_kernels() -> None:
    executable, _, arrays = case("attention")
    assert executable.lower().as_text().count("custom_call") == 1
    alone = built(lambda p, x: jnp.tanh(x @ p), arrays[0][0].T, arrays[0][0])
    assert alone.lower().as_text().count("custom_call") == 1
    assert alone.run is native(alone).hosted


def test_float64_whatever_the_process_has_enabled() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 12)), rng.standard_normal((12, 9)) / 4
    with jax.enable_x64(True):
        executable = built(lambda w, x: jnp.exp(x @ w) * 0.5, w, x)
    program = native(executable)
    same(program(x), executable(x))
    same(executable.jit(program.inside)(x, *executable.prepared), executable(x))


def test_types_that_numpy_knows_from_others() -> None:
    x, w = [np.asarray(jnp.linspace(-1, 1, 64, dtype=jnp.bfloat16).reshape(8, 8)) + i for i in range(2)]
    executable = built(lambda w, x: (x @ w) * x, w, x)
    same(native(executable)(x), executable(x))


def test_arguments_of_other_kinds() -> None:
    executable, program, (x,) = case("mlp")
    want = executable(x)
    same(program(np.asfortranarray(x)), want)
    same(program(jnp.asarray(x)), want)  # pyright: ignore[reportArgumentType]
    same(program(np.repeat(x, 2, 0)[::2]), want)
    shifted = np.empty(x.nbytes + 4, np.uint8)[4:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    same(program(shifted), want)
    with pytest.raises(ArgumentError, match="one after the other"):
        program.bind(np.asfortranarray(x))
    others: list[Any] = [(x.astype(np.float64),), (x[1:],), (x, x), (), ([1.0],)]
    for wrong in others:
        with pytest.raises(ArgumentError):
            program(*wrong)


def test_what_no_kernel_computes_is_named() -> None:
    def fn(w: Any, x: Any) -> Any:
        return jnp.sort(x @ w), jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(jnp.sort(y)), x)

    left = built(fn, np.eye(4, dtype=np.float32), np.ones((3, 4), np.float32)).native
    assert isinstance(left, LeftToXla)
    assert [count for op, count in left.ops.items() if "sort" in op] == [2]
    assert not left.ops.keys() & {"scan", "while"}
    assert "2 x opaque sort" in str(left)


def test_a_program_of_xla_alone_has_no_plan() -> None:
    graph = import_function(lambda x: jnp.tanh(x) + 1, (np.ones(3, np.float32),)).graph
    left = lower(original_program(graph), ())
    assert isinstance(left, LeftToXla)
    assert left.ops.keys() >= {"tanh", "add"}


@pytest.mark.parametrize("name", CASES)
def test_the_data_of_a_plan_is_read_back(name: str) -> None:
    plan = case(name)[1].lowered.plan
    assert from_json(plan.to_json()) == plan


def test_data_that_is_no_plan() -> None:
    for data in ({}, {"slots": [{}], "steps": [], "arena_bytes": 0}, {"slots": 3, "steps": [], "arena_bytes": 0}):
        with pytest.raises(InputError, match="not a native plan"):
            from_json(data)


def test_a_plan_is_read_by_people() -> None:
    program = case("passed on")[1]
    head, first, *rest = str(program.lowered.plan).splitlines()
    assert head == f"2 arguments, {len(program.weights)} weights, 5 outputs, arena of 0 bytes"
    assert first.startswith("output0 f32[8,8] = ")
    assert rest[0] == "output1 f32[8,8] = copy(argument1)"
    assert rest[2] == "output3 f32[64] = copy(output0)"


def test_a_plan_with_a_fault_does_not_run() -> None:
    executable, program, _ = case("attention")
    smaller = replace(program.lowered.plan, arena_bytes=program.lowered.plan.arena_bytes - 64)
    with pytest.raises(VerificationError, match="behind the arena"):
        NativeProgram(replace(program.lowered, plan=smaller), executable.prepared, executable.run)


def test_values_that_are_live_together_share_no_bytes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        firsts, lengths, sizes = rng.integers(0, 20, 30), rng.integers(0, 6, 30), rng.integers(0, 1000, 30)
        lives = [Lifetime(int(s), int(a), int(a + n)) for s, a, n in zip(sizes, firsts, lengths, strict=True)]
        at, arena_bytes = offsets(lives)
        assert arena_bytes >= largest_live_bytes(lives)
        assert all(o % 64 == 0 and o + x.size_bytes <= arena_bytes for o, x in zip(at, lives, strict=True))
        for i, one in enumerate(lives):
            for j in range(i):
                apart = at[i] + one.room_bytes <= at[j] or at[j] + lives[j].room_bytes <= at[i]
                assert apart or not one.meets(lives[j])


def test_a_chain_takes_the_memory_of_two_values() -> None:
    lives = [Lifetime(64, i, i + 1) for i in range(9)]
    assert offsets(lives)[1] == largest_live_bytes(lives) == 128


def test_a_value_that_would_stand_above_all_others_is_placed_first() -> None:
    """A U-Net: by size alone the arena has 29 units of memory where 24 are live at once."""
    rows = [
        (5, 0, 1), (1, 0, 0), (5, 1, 6), (5, 1, 1), (1, 2, 3), (2, 3, 4), (1, 3, 3), (2, 4, 5), (2, 4, 4), (5, 5, 6),
        (9, 5, 5), (9, 6, 7), (5, 7, 8), (10, 7, 7), (5, 8, 9), (5, 8, 8),
    ]  # fmt: skip
    lives = [Lifetime(64 * size, first, last) for size, first, last in rows]
    assert offsets(lives)[1] == largest_live_bytes(lives) == 64 * 24


def test_the_smallest_gap_is_taken() -> None:
    lives = [Lifetime(640, 0, 0), Lifetime(512, 0, 9), Lifetime(256, 0, 0), Lifetime(192, 0, 9), Lifetime(128, 1, 1)]
    at, _ = offsets(lives)
    assert (at[1], at[3]) == (640, 1408)
    assert at[4] == 1152  # between the second and the fourth: 256 bytes, not the first 640
