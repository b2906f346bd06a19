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
from superopt.native.lowered import buffers_of
from tests.support.native_programs import LOOPS, case
from verifier.memory.check import KernelBuffers, faults

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
PLANS = ("convolutions and concat", "attention", "depthwise", "mlp", "passed on", *LOOPS)
MUTANTS = 120  # of each plan
PlanData = dict[str, Any]


def plan_of(name: str) -> tuple[PlanData, KernelBuffers]:
    lowered = case(name)[1].lowered
    return lowered.plan.to_json(), buffers_of(lowered.kernels)


# ---- what a plan computes, of bytes: a step's results are digests of what it reads


class OutsideError(Exception):
    """A slot is not within the arena, or a given one is written."""


Place = tuple[Any, int]
"""Some memory, and an offset in it."""


class Walked:
    """A plan that has run; `apart`: every slot that does not move has memory of its own; `turn`: added to indices."""

    def __init__(self, plan: PlanData, apart: bool = False, turn: int = 0) -> None:
        self.plan, self.calls, self.turn = plan, 0, turn
        arena = bytearray(hashlib.shake_128(b"arena").digest(plan["arena_bytes"]))
        self.places: dict[int, Place] = {}
        for i, slot in enumerate(plan["slots"]):
            if slot["kind"] == "arena" and not apart:
                self.places[i] = (arena, slot["at"])
            elif slot["kind"] != "moving":
                key = i if slot["kind"] == "arena" else (slot["kind"], slot["at"])
                self.places[i] = (bytearray(hashlib.shake_128(repr(key).encode()).digest(slot["bytes"])), 0)
        self.walk(plan["steps"], 0)

    def held(self, slot: int) -> memoryview:
        if slot not in self.places:
            raise OutsideError
        memory, at = self.places[slot]
        size = self.plan["slots"][slot]["bytes"]
        if at < 0 or at + size > len(memory):
            raise OutsideError
        return memoryview(memory)[at : at + size]

    def walk(self, steps: list[Any], trip: int) -> None:
        for step in steps:
            if "kernel" in step:
                self.call(step)
            elif "view" in step:
                memory, at = self.places[step["of"]]
                self.places[step["view"]] = (memory, at + step["at"] + trip * step["stride"])
            elif "choice" in step:
                branch = step["branches"][(self.held(step["choice"])[0] + self.turn) % len(step["branches"])]
                self.walk(branch["steps"], trip)
                self.places |= dict(zip(step["slots"], [self.places[i] for i in branch["results"]], strict=True))
            else:
                self.loop(step)

    def loop(self, step: PlanData) -> None:
        places, trip = self.places, 0
        for c in step["carries"]:
            places[c["slot"]] = places[c["first"]]
            if c["turns"]:
                places[c["next"]] = places[c["turns"][0]]
        while self.goes_on(step, trip):
            self.walk(step["steps"], trip)
            trip += 1
            for c in step["carries"]:
                places[c["slot"]] = places[c["next"]]
                if c["turns"]:
                    places[c["next"]] = places[c["turns"][trip % 2]]

    def goes_on(self, step: PlanData, trip: int) -> bool:
        """Whether there is a trip; a condition holds for one that no slot knows, but the steps before it."""
        self.walk(step["condition"], trip)
        return trip < (step["trips"] or 1 + self.held(step["goes_on"])[0] % 4)

    def call(self, step: PlanData) -> None:
        self.calls += 1
        fresh = [*step["writes"], *step["scratch"]]
        if any(self.plan["slots"][i]["kind"] in ("argument", "weight") for i in fresh) or self.calls > 10_000:
            raise OutsideError
        for i in fresh:  # a kernel may write all of its buffers before it reads the last operand
            self.held(i)[:] = hashlib.shake_128(f"begun {i}".encode()).digest(self.plan["slots"][i]["bytes"])
        read = b"".join([bytes(self.held(i)) for i in step["reads"]])
        for position, i in enumerate(step["writes"]):
            seed = read if step["kernel"] == "copy" else f"{step['kernel']} {position}".encode() + read
            size = self.plan["slots"][i]["bytes"]
            self.held(i)[:] = seed if step["kernel"] == "copy" else hashlib.shake_128(seed).digest(size)


def results(plan: PlanData, apart: bool = False) -> list[bytes]:
    """The bytes of the outputs, in every branch of a choice."""
    outputs = sorted([s["at"], i] for i, s in enumerate(plan["slots"]) if s["kind"] == "output")
    turns = max([len(choice["branches"]) for choice in choices_of(plan)], default=1)
    walked = [Walked(plan, apart, turn) for turn in range(turns)]
    return [bytes(each.held(i)) for each in walked for _, i in outputs]


def lists_of(plan: PlanData) -> list[list[Any]]:
    """The lists of steps of a plan, of its loops and of its branches, each before those in it."""
    lists = [plan["steps"]]
    for steps in lists:  # grows while it is walked
        for step in steps:
            lists += [step[key] for key in ("steps", "condition") if "trips" in step]
            lists += [branch["steps"] for branch in step.get("branches", ())]
    return lists


def loops_of(plan: PlanData) -> list[PlanData]:
    """The loops of a plan, each before those in it."""
    return [step for steps in lists_of(plan) for step in steps if "trips" in step]


def choices_of(plan: PlanData) -> list[PlanData]:
    """The choices of a plan."""
    return [step for steps in lists_of(plan) for step in steps if "choice" in step]


def calls_of(plan: PlanData) -> list[PlanData]:
    """The calls and copies of a plan."""
    return [step for steps in lists_of(plan) for step in steps if "kernel" in step]


# ---- faults


def _arena(plan: PlanData) -> list[PlanData]:
    return [slot for slot in plan["slots"] if slot["kind"] == "arena"]


def _some(plan: PlanData, rng: random.Random) -> list[Any]:
    """Steps of a plan or of a loop in it, which are not empty."""
    return rng.choice([steps for steps in lists_of(plan) if steps])


def _swap_offsets(plan: PlanData, rng: random.Random) -> None:
    one, other = rng.choice(_arena(plan)), rng.choice(_arena(plan))
    one["at"], other["at"] = other["at"], one["at"]


def _shift(plan: PlanData, rng: random.Random) -> None:
    slot = rng.choice(_arena(plan))
    slot["at"] = max(0, slot["at"] + rng.choice((-1, 1)) * rng.choice((1, 4, 32, 64, 128, 256, 1024)))


def _put(plan: PlanData, rng: random.Random) -> None:
    rng.choice(_arena(plan))["at"] = 64 * rng.randrange(1 + plan["arena_bytes"] // 64)


def _drop(plan: PlanData, rng: random.Random) -> None:
    steps = _some(plan, rng)
    steps.pop(rng.randrange(len(steps)))


def _exchange(plan: PlanData, rng: random.Random) -> None:
    steps = _some(plan, rng)
    i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
    steps[i], steps[j] = steps[j], steps[i]


def _move(plan: PlanData, rng: random.Random) -> None:
    steps, others = _some(plan, rng), rng.choice(lists_of(plan))
    number = rng.randrange(len(steps))
    if "view" not in steps[number]:  # with the trips of another loop it is another row
        others.insert(rng.randrange(len(others) + 1), steps.pop(number))


def _repeat(plan: PlanData, rng: random.Random) -> None:
    steps = _some(plan, rng)
    steps.insert(rng.randrange(len(steps) + 1), copy.deepcopy(rng.choice(steps)))


def _shrink(plan: PlanData, rng: random.Random) -> None:
    plan["arena_bytes"] -= rng.choice((1, 64, 256, plan["arena_bytes"] // 2))


def _write_elsewhere(plan: PlanData, rng: random.Random) -> None:
    step = rng.choice(calls_of(plan))
    part = rng.choice([p for p in ("writes", "scratch") if step[p]])
    step[part][rng.randrange(len(step[part]))] = rng.randrange(len(plan["slots"]))


def _turns(plan: PlanData) -> list[PlanData]:
    return [c for loop in loops_of(plan) for c in loop["carries"] if c["turns"]]


def _other_turn(plan: PlanData, rng: random.Random) -> None:
    """A carry takes its turns in another order, or with another slot."""
    if turns := _turns(plan):
        carry = rng.choice(turns)
        carry["turns"].reverse()
        if rng.random() < 0.5:
            carry["turns"][rng.randrange(2)] = rng.randrange(len(plan["slots"]))


def _in_place(plan: PlanData, rng: random.Random) -> None:
    """A carry has one slot in place of two."""
    if turns := _turns(plan):
        carry = rng.choice(turns)
        one, moving = rng.choice(carry["turns"]), carry["next"]
        carry.update(next=one, turns=[])
        for step in calls_of(plan):
            for part in ("reads", "writes"):
                step[part] = [one if i == moving else i for i in step[part]]


def _hand_on_elsewhere(plan: PlanData, rng: random.Random) -> None:
    """A carry reads rows that nothing writes, before the first or behind the last of its stack."""
    views = [step for steps in lists_of(plan) for step in steps if "view" in step and step["stride"]]
    if views:
        view = rng.choice(views)
        view["at"] += rng.choice((-1, 1)) * rng.choice((1, view["stride"], 64))


def _other_result(plan: PlanData, rng: random.Random) -> None:
    """A branch gives another slot, or what another branch gives."""
    if choices := choices_of(plan):
        one, other = [rng.choice(rng.choice(choices)["branches"])["results"] for _ in range(2)]
        slot = rng.choice(other) if rng.random() < 0.5 else rng.randrange(len(plan["slots"]))
        one[rng.randrange(len(one))] = slot


MUTATIONS: list[Callable[[PlanData, random.Random], None]] = [
    _swap_offsets, _shift, _put, _drop, _exchange, _move, _repeat, _shrink, _write_elsewhere,
    _other_turn, _in_place, _hand_on_elsewhere, _other_result,
]  # fmt: skip


OF_LOOPS = (_other_turn, _in_place, _hand_on_elsewhere)


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
        usable = [m for m in usable if loops_of(plan) or m not in OF_LOOPS]
        usable = [m for m in usable if choices_of(plan) or m is not _other_result]
        for number in range(MUTANTS):
            mutant = copy.deepcopy(plan)
            mutate = usable[number % len(usable)]
            mutate(mutant, rng)
            if faults(mutant, buffers):
                counts["refused"] += 1
                continue
            # another result of a branch is another value that may be read
            meant = results(mutant, apart=True) if mutate is _other_result else want
            assert results(mutant) == meant, (name, mutate.__name__, mutant)
            counts["harmless"] += 1
    assert counts["refused"] > 300
    assert counts["harmless"] > 20


def test_harmful_mutants_are_there_to_be_refused() -> None:
    """Every kind of mutation gives programs with other results, so that the test above could fail."""
    rng = random.Random(1)
    for mutate in MUTATIONS:
        plan, _ = plan_of("handed on" if mutate in OF_LOOPS else "chosen" if mutate is _other_result else "attention")
        want, harmful = results(plan, apart=True), 0
        for _ in range(60):
            mutant = copy.deepcopy(plan)
            mutate(mutant, rng)
            try:
                harmful += results(mutant) != want
            except (OutsideError, KeyError):  # or a slot that has no place
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


def _view(plan: PlanData, kind: str) -> PlanData:
    """The first view of a loop that moves, of a slot of this kind."""
    views = [step for loop in loops_of(plan) for step in loop["steps"] if "view" in step and step["stride"]]
    return next(view for view in views if plan["slots"][view["of"]]["kind"] == kind)


def _carry(plan: PlanData, loop: int = 0, carry: int = 0) -> PlanData:
    return loops_of(plan)[loop]["carries"][carry]


def _share(plan: PlanData) -> None:
    """A value that is written late in a trip lies where the steps before it read, in the next trip."""
    read = _carry(plan, 0, 1)["first"]
    fresh = loops_of(plan)[0]["goes_on"]
    plan["slots"][fresh]["at"] = plan["slots"][read]["at"]


PLANTED_IN_LOOPS: dict[str, tuple[str, Callable[[PlanData], Any], str]] = {
    "written before its last read": ("handed on", lambda p: _in_place(p, random.Random(0)), "which is not written"),
    "written where it is read": ("until", lambda p: _in_place(p, random.Random(0)), "over slot"),
    "two turns in one place": (
        "handed on", lambda p: _carry(p).update(turns=[_carry(p)["turns"][0]] * 2), "which something else writes",
    ),
    "a turn in an argument": (
        "handed on", lambda p: _carry(p).update(turns=[_slot(p, "argument"), _carry(p)["turns"][0]]), "which is given",
    ),
    "the result of another turn": ("recurrent", lambda p: _carry(p, 0, 1)["turns"].reverse(), "is not written"),
    "a trip more": ("recurrent", lambda p: loops_of(p)[0].update(trips=12), "outside of slot"),
    "a trip less": ("recurrent", lambda p: loops_of(p)[0].update(trips=10), "which is not written"),
    "no trip": ("recurrent", lambda p: loops_of(p)[0].update(trips=0), "trips and a condition, or none"),
    "both ends": ("until", lambda p: loops_of(p)[0].update(trips=3), "trips and a condition, or none"),
    "rows before the stack": ("nested", lambda p: _view(p, "argument").update(at=-160), "outside of slot"),
    "rows between elements": ("nested", lambda p: _view(p, "argument").update(at=1, stride=159), "between elements"),
    "rows written over each other": ("nested", lambda p: _view(p, "output").update(stride=0), "which is not written"),
    "rows of numberless trips": (
        "until", lambda p: loops_of(p)[0]["steps"].insert(0, _view(p, "argument")), "outside of slot",
    ),
    "rows left out": ("nested", lambda p: loops_of(p)[1]["steps"].pop(), "does not write all"),
    "rows of no loop": (
        "recurrent", lambda p: p["steps"].insert(1, loops_of(p)[0]["steps"].pop(0)), "outside of slot",
    ),
    "moved twice": ("nested", lambda p: p["steps"].append(_view(p, "argument")), "which has a place"),
    "a weight moved": ("nested", lambda p: _view(p, "argument").update(view=_slot(p, "weight")), "which has a place"),
    "nothing handed on": ("nested", lambda p: _carry(p, 1).update(next=_view(p, "moving")["view"]), "no trip writes"),
    "handed on from outside": (
        "nested", lambda p: _carry(p).update(next=_slot(p, "weight"), turns=[]), "no trip writes",
    ),
    "carried in other sizes": ("nested", lambda p: _carry(p).update(first=_slot(p, "argument")), "different sizes"),
    "carried from nothing": (
        "until", lambda p: _carry(p).update(first=loops_of(p)[0]["goes_on"]), "which is not written",
    ),
    "a truth value of several bytes": (
        "until", lambda p: loops_of(p)[0].update(goes_on=_slot(p, "weight")), "no truth value",
    ),
    "asked before it is known": ("until", lambda p: loops_of(p)[0]["condition"].clear(), "trips and a condition"),
    "needed in the next trip": ("until", _share, "over slot"),
    "read behind its loop": (
        "recurrent", lambda p: p["steps"].append(dict(calls_of(p)[0], writes=[_slot(p, "arena")])), "is not written",
    ),
    "loops without an end": (
        "nested", lambda p: loops_of(p)[1]["steps"].append(_deep(20)), "is no call",
    ),
    "a loop of words": ("nested", lambda p: loops_of(p)[0].update(steps="none"), "is no call"),
    "turns of words": ("nested", lambda p: _carry(p).update(turns="ab"), "without turns"),
    "one turn": ("nested", lambda p: _carry(p).update(turns=[0]), "without turns"),
    "a view of nothing": ("nested", lambda p: _view(p, "argument").update(of=None), "do not exist"),
    "a view at words": ("nested", lambda p: _view(p, "argument").update(at="0"), "no view"),
    "trips below none": ("nested", lambda p: loops_of(p)[0].update(trips=-1), "is no call"),
}  # fmt: skip


def _choice(plan: PlanData, number: int = 0) -> PlanData:
    return choices_of(plan)[number]


def _branch(plan: PlanData, number: int, branch: int) -> PlanData:
    return _choice(plan, number)["branches"][branch]


def _share_with_branch(plan: PlanData) -> None:
    """A branch writes a result where another result of it lies."""
    one, other = [i for i in _branch(plan, 1, 2)["results"] if plan["slots"][i]["kind"] == "arena"]
    plan["slots"][one]["at"] = plan["slots"][other]["at"]


PLANTED_IN_CHOICES: dict[str, tuple[Callable[[PlanData], Any], str]] = {
    "a result of another branch": (
        lambda p: _branch(p, 1, 1)["results"].__setitem__(0, _branch(p, 1, 2)["results"][0]), "which is not written",
    ),
    "a result of another size": (
        lambda p: _branch(p, 1, 1)["results"].__setitem__(0, _choice(p, 1)["choice"]), "of another size",
    ),
    "an index of several numbers": (lambda p: _choice(p).update(choice=_slot(p, "weight")), "by what is no number"),
    "an index that is not known": (
        lambda p: _choice(p).update(choice=_branch(p, 0, 1)["results"][1]), "which is not written",
    ),
    "a slot that has a place": (lambda p: _choice(p)["slots"].__setitem__(0, _slot(p, "argument")), "has a place"),
    "what a branch alone has written": (
        lambda p: p["steps"].append(dict(calls_of(p)[-1], reads=_branch(p, 0, 0)["results"][:1])), "is not written",
    ),
    "results in one place": (_share_with_branch, "over slot"),
    "a step in two branches": (
        lambda p: _branch(p, 1, 1)["steps"].extend(copy.deepcopy(_branch(p, 1, 2)["steps"])), "which something else",
    ),
    "a result less": (lambda p: _branch(p, 1, 1)["results"].pop(), "branches of other results"),
    "no branch": (lambda p: _choice(p).update(branches=[]), "is no choice"),
    "branches of words": (lambda p: _choice(p).update(branches=["ab"]), "is no choice"),
    "a result that is not there": (lambda p: _branch(p, 1, 1)["results"].__setitem__(0, 10**6), "do not exist"),
    "a step of words": (lambda p: _branch(p, 1, 1)["steps"].append("ab"), "is no call"),
    "choices without an end": (lambda p: _branch(p, 1, 1)["steps"].append(_deep_choice(20)), "is no choice"),
}  # fmt: skip


def _deep_choice(depth: int) -> PlanData:
    """Choices in each other."""
    steps = [_deep_choice(depth - 1)] if depth else []
    return {"choice": 0, "slots": [], "branches": [{"steps": steps, "results": []}]}


@pytest.mark.parametrize("fault", PLANTED_IN_CHOICES)
def test_planted_faults_of_choices_are_refused(fault: str) -> None:
    plan, buffers = plan_of("chosen")
    assert len(_choice(plan, 1)["branches"]) == 3  # the one in the loop, behind the one of the program
    plant, said = PLANTED_IN_CHOICES[fault]
    plant(plan)
    assert any(said in line for line in faults(plan, buffers)), faults(plan, buffers)


def _deep(depth: int) -> PlanData:
    """Loops in each other."""
    steps = [_deep(depth - 1)] if depth else []
    return {"trips": 1, "carries": [], "condition": [], "goes_on": 0, "steps": steps}


@pytest.mark.parametrize("fault", PLANTED_IN_LOOPS)
def test_planted_faults_of_loops_are_refused(fault: str) -> None:
    name, plant, said = PLANTED_IN_LOOPS[fault]
    plan, buffers = plan_of(name)
    plant(plan)
    assert any(said in line for line in faults(plan, buffers)), faults(plan, buffers)


@pytest.mark.parametrize("data", [None, 3, [], {"slots": {}, "steps": []}, {"slots": [None], "steps": [None]}])
def test_what_is_no_plan_is_refused(data: Any) -> None:
    assert faults(data, {})
