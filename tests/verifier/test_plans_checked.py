"""The check of plans: planted faults are refused, and a mutant that passes computes what the plan computes."""

from __future__ import annotations

import copy
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from superopt.kernels.llvm.cpu import supported
from superopt.native.lowering import buffers_of
from tests.support.native_programs import case
from verifier.memory.check import KernelBuffers, faults

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
PLANS = ("convolutions and concat", "attention", "depthwise", "mlp", "passed on")
MUTANTS = 120  # of each plan
PlanData = dict[str, Any]


def plan_of(name: str) -> tuple[PlanData, KernelBuffers]:
    lowered = case(name)[1].lowered
    return lowered.plan.to_json(), buffers_of(lowered.kernels)


# ---- what a plan computes, of bytes: a step's results are digests of what it reads


class OutsideError(Exception):
    """A slot is not within the arena, or a given one is written."""


def results(plan: PlanData, apart: bool = False) -> list[bytes]:
    """The bytes of the outputs; `apart`: every slot has memory of its own."""
    arena = bytearray(hashlib.shake_128(b"arena").digest(plan["arena_bytes"]))
    own: dict[Any, bytearray] = {}

    def held(number: int) -> memoryview:
        slot = plan["slots"][number]
        if slot["kind"] != "arena" or apart:
            key = (slot["kind"], slot["at"]) if slot["kind"] != "arena" else number
            start = hashlib.shake_128(repr(key).encode()).digest(slot["bytes"])
            return memoryview(own.setdefault(key, bytearray(start)))[: slot["bytes"]]
        if slot["at"] + slot["bytes"] > len(arena):
            raise OutsideError
        return memoryview(arena)[slot["at"] : slot["at"] + slot["bytes"]]

    for step in plan["steps"]:
        fresh = [*step["writes"], *step["scratch"]]
        if any(plan["slots"][i]["kind"] in ("argument", "weight") for i in fresh):
            raise OutsideError
        for i in fresh:  # a kernel may write all of its buffers before it reads the last operand
            held(i)[:] = hashlib.shake_128(f"begun {i}".encode()).digest(plan["slots"][i]["bytes"])
        read = b"".join([bytes(held(i)) for i in step["reads"]])
        for position, i in enumerate(step["writes"]):
            seed = read if step["kernel"] == "copy" else f"{step['kernel']} {position}".encode() + read
            size = plan["slots"][i]["bytes"]
            held(i)[:] = seed if step["kernel"] == "copy" else hashlib.shake_128(seed).digest(size)
    outputs = sorted([s["at"], i] for i, s in enumerate(plan["slots"]) if s["kind"] == "output")
    return [bytes(held(i)) for _, i in outputs]


# ---- faults


def _arena(plan: PlanData) -> list[PlanData]:
    return [slot for slot in plan["slots"] if slot["kind"] == "arena"]


def _swap_offsets(plan: PlanData, rng: random.Random) -> None:
    one, other = rng.choice(_arena(plan)), rng.choice(_arena(plan))
    one["at"], other["at"] = other["at"], one["at"]


def _shift(plan: PlanData, rng: random.Random) -> None:
    slot = rng.choice(_arena(plan))
    slot["at"] = max(0, slot["at"] + rng.choice((-1, 1)) * rng.choice((1, 4, 32, 64, 128, 256, 1024)))


def _put(plan: PlanData, rng: random.Random) -> None:
    rng.choice(_arena(plan))["at"] = 64 * rng.randrange(1 + plan["arena_bytes"] // 64)


def _drop(plan: PlanData, rng: random.Random) -> None:
    plan["steps"].pop(rng.randrange(len(plan["steps"])))


def _exchange(plan: PlanData, rng: random.Random) -> None:
    steps, i, j = plan["steps"], rng.randrange(len(plan["steps"])), rng.randrange(len(plan["steps"]))
    steps[i], steps[j] = steps[j], steps[i]


def _move(plan: PlanData, rng: random.Random) -> None:
    step = plan["steps"].pop(rng.randrange(len(plan["steps"])))
    plan["steps"].insert(rng.randrange(len(plan["steps"]) + 1), step)


def _repeat(plan: PlanData, rng: random.Random) -> None:
    plan["steps"].insert(rng.randrange(len(plan["steps"]) + 1), copy.deepcopy(rng.choice(plan["steps"])))


def _shrink(plan: PlanData, rng: random.Random) -> None:
    plan["arena_bytes"] -= rng.choice((1, 64, 256, plan["arena_bytes"] // 2))


def _write_elsewhere(plan: PlanData, rng: random.Random) -> None:
    step = rng.choice(plan["steps"])
    part = rng.choice([p for p in ("writes", "scratch") if step[p]])
    step[part][rng.randrange(len(step[part]))] = rng.randrange(len(plan["slots"]))


MUTATIONS: list[Callable[[PlanData, random.Random], None]] = [
    _swap_offsets, _shift, _put, _drop, _exchange, _move, _repeat, _shrink, _write_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans_of_programs_have_no_fault(name: str) -> None:
    plan, buffers = plan_of(name)
    assert faults(plan, buffers) == []
    assert results(plan) == results(plan, apart=True)


def test_mutants_are_refused_or_harmless() -> None:
    rng, counts = random.Random(0), Counter[str]()
    for name in PLANS:
        plan, buffers = plan_of(name)
        want = results(plan, apart=True)
        usable = [m for m in MUTATIONS if plan["arena_bytes"] or m not in (_swap_offsets, _shift, _put, _shrink)]
        for number in range(MUTANTS):
            mutant = copy.deepcopy(plan)
            mutate = usable[number % len(usable)]
            mutate(mutant, rng)
            if faults(mutant, buffers):
                counts["refused"] += 1
                continue
            assert results(mutant) == want, (name, mutate.__name__, mutant)
            counts["harmless"] += 1
    assert counts["refused"] > 300
    assert counts["harmless"] > 20


def test_harmful_mutants_are_there_to_be_refused() -> None:
    """Every kind of mutation gives programs with other results, so that the test above could fail."""
    rng = random.Random(1)
    plan, _ = plan_of("attention")
    want = results(plan, apart=True)
    for mutate in MUTATIONS:
        harmful = 0
        for _ in range(60):
            mutant = copy.deepcopy(plan)
            mutate(mutant, rng)
            try:
                harmful += results(mutant) != want
            except OutsideError:
                harmful += 1
        assert harmful or mutate is _repeat, mutate.__name__


def _slot(plan: PlanData, kind: str) -> int:
    return next(i for i, slot in enumerate(plan["slots"]) if slot["kind"] == kind)


def _overlapping(plan: PlanData) -> None:
    """A step writes where it reads."""
    for step in plan["steps"]:
        read, written = ([i for i in step[p] if plan["slots"][i]["kind"] == "arena"] for p in ("reads", "writes"))
        if read and written:
            plan["slots"][written[0]]["at"] = plan["slots"][read[0]]["at"]
            return


PLANTED: dict[str, tuple[Callable[[PlanData], Any], str]] = {
    "overlap": (_overlapping, "over slot"),
    "read before its write": (lambda p: p["steps"].reverse(), "which is not written"),
    "written argument": (lambda p: p["steps"][0]["writes"].__setitem__(0, _slot(p, "argument")), "which is given"),
    "written weight": (lambda p: p["steps"][0]["writes"].__setitem__(0, _slot(p, "weight")), "which is given"),
    "misaligned": (lambda p: _arena(p)[0].update(at=_arena(p)[0]["at"] + 4), "no multiple of 64"),
    "behind the arena": (lambda p: p.update(arena_bytes=64), "behind the arena"),
    "larger slot": (lambda p: _arena(p)[0].update(shape=[1 << 20], bytes=4 << 20), "passes"),
    "bytes of another shape": (lambda p: p["slots"][0].update(bytes=4), "not the bytes of its shape"),
    "unknown kernel": (lambda p: p["steps"][0].update(kernel="0" * 32), "unknown kernel"),
    "fewer operands": (lambda p: p["steps"][0]["reads"].pop(), "passes"),
    "output not written": (lambda p: p["steps"].pop(), "is not written"),
    "written twice": (lambda p: p["steps"].append(p["steps"][0]), "which something else writes"),
    "scratch in an output": (lambda p: p["steps"][0]["scratch"].append(_slot(p, "output")), "as scratch"),
    "output missing": (lambda p: p["slots"][_slot(p, "output")].update(at=1), "positions of outputs"),
    "slot that is not there": (lambda p: p["steps"][0]["reads"].append(10**6), "do not exist"),
    "slot below the first": (lambda p: p["steps"][0]["reads"].append(-1), "do not exist"),
    "negative offset": (lambda p: _arena(p)[0].update(at=-64), "has no place"),
    "truth for a number": (lambda p: p["slots"][0].update(at=True), "has no place"),
    "unknown kind": (lambda p: p["slots"][0].update(kind="stack"), "has no place"),
    "unknown dtype": (lambda p: p["slots"][0].update(dtype="float1"), "has no dtype"),
    "shape of words": (lambda p: p["slots"][0].update(shape="12"), "has no shape"),
    "no steps": (lambda p: p.pop("steps"), "no lists"),
    "no arena": (lambda p: p.update(arena_bytes="many"), "no count"),
    "a step that is none": (lambda p: p["steps"].append(3), "is no call"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_refused(fault: str) -> None:
    plan, buffers = plan_of("attention")
    plant, said = PLANTED[fault]
    plant(plan)
    assert any(said in line for line in faults(plan, buffers)), faults(plan, buffers)


def test_a_copy_between_different_sizes() -> None:
    plan, buffers = plan_of("passed on")
    step = next(s for s in plan["steps"] if s["kernel"] == "copy")
    step["reads"] = [next(i for i, s in enumerate(plan["slots"]) if s["bytes"] == 4)]
    assert any("different sizes" in line for line in faults(plan, buffers))


@pytest.mark.parametrize("data", [None, 3, [], {"slots": {}, "steps": []}, {"slots": [None], "steps": [None]}])
def test_what_is_no_plan_is_refused(data: Any) -> None:
    assert faults(data, {})
