"""The check of a kernel: it computes its loop program, accesses only its own memory, and its tasks have no race."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.ir import as_loaded
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.loops.ranges import iterations
from superopt.kernels.loops.stage import Buffer, LoopProgram
from superopt.machine.deadline import Stopwatch, thread_s
from verifier.floats.check import Run, farther
from verifier.floats.machine import KernelPart, MachineCode, compiled
from verifier.kernels.field import Field, Marks, P, Unread
from verifier.kernels.meaning import divisors, evaluate
from verifier.kernels.reader import CodeFunction, functions
from verifier.kernels.rewrite import rewritten
from verifier.kernels.watched import BOUNDS, CODES, DOUBT, FUEL, GLOBALS, POINTERS, RACE
from verifier.verdict import PROVED, REFUTED, UNKNOWN

_SAYS = {BOUNDS: "an access outside of its array", RACE: "two tasks meet", FUEL: "it does not end in time"}
_CPU = re.compile(r'"target-(?:cpu|features)"="[^"]*"')
_NOTHING = np.uint64(1 << 63)  # the word of unwritten memory
_TURNS = 16  # limit of loop iterations of a kernel for each iteration or element of the program, which needs no more
_MOST_TASKS = 1 << 30  # most tasks of a kernel: stamps of tasks and phases are 32 bits
_SHORT = 100_000  # lines below which a module is compiled without optimization, with all on the stack, 20 bytes a line
_HELD = {  # dtypes as types in memory
    "bool": "i8", "bfloat16": "i16", "float16": "half", "float32": "float", "float64": "double", "int32": "i32"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """The verdict on a kernel.

    Attributes:
        status: PROVED, REFUTED (an access outside of its array, or a race) or UNKNOWN.
        cause: why it is not proved; empty for a proof.
        seconds: processor time of the validation.
    """

    status: str
    cause: str
    seconds: float

    @property
    def proved(self) -> bool:
        """Whether the kernel may be used."""
        return self.status == PROVED


class _Fault(Exception):
    pass


@functools.cache
def version() -> str:
    """Digest of the sources of this validation; empty where they have changed since the process began."""
    rooms = (Path(__file__).parent, Path(__file__).parents[1] / "floats")
    files = sorted([file for room in rooms for file in room.iterdir() if file.suffix in (".py", ".json")])
    if not as_loaded(files):
        return ""
    return hashlib.sha256(b"\0".join([file.read_bytes() for file in files])).hexdigest()[:16]


def validate(
    before: LoopProgram,
    parts: Sequence[KernelPart],
    scalar: Mapping[str, str],
    seed: int = 0,
    runs: int = 1,
    machine: Run | None = None,
) -> KernelVerdict:
    """Compare kernels that run one after the other with the loop program before its schedule.

    Args:
        before: the loop program before its schedule, which is the specification.
        parts: the kernels; a later one may read the buffers of an earlier one by name.
        scalar: digest of code that is known to compute a scalar function -> its name (`verifier.kernels.scalars`).
        seed: seed of the random points.
        runs: number of random points.
        machine: the kernels as they run for users; None to compile their text.
    """
    watch = Stopwatch(thread_s)
    status, cause = PROVED, ""
    try:
        for run in range(runs):
            _compare(before, parts, dict(scalar), seed + run)
        with nullcontext(machine) if machine else MachineCode(parts) as run_floats:
            if far := farther(before, run_floats, seed):
                raise Unread(far)
    except _Fault as fault:
        status, cause = REFUTED, str(fault)
    except (Unread, RecursionError) as reason:  # recursion: a value that is defined by itself
        status, cause = UNKNOWN, str(reason)
    return KernelVerdict(status, cause, watch.elapsed_s)


def _compare(before: LoopProgram, parts: Sequence[KernelPart], scalar: dict[str, str], seed: int) -> None:
    """Raise unless the code computes what the program before its schedule does, in a field of this seed."""
    said = dict[str, str]()
    for buffers in (before.buffers, *[part.pointers for part in parts]):
        for b in buffers:
            if b.dtype not in _HELD or (b.dtype == "int32" and b.scope not in ("input", "frozen")):
                raise Unread(f"integers in memory: {b.name} of {b.dtype}")
            if said.setdefault(b.name, b.dtype) != b.dtype or sum([b.name == other.name for other in buffers]) > 1:
                raise Unread(f"a buffer {b.name} of two kinds")
    code = [functions(part.text, scalar) for part in parts]
    field = Field(seed, divisors(before))
    texts = _texts(parts, code, field)  # early, so that code that cannot be read is refused before long work
    held = _given(before, field)
    wanted = evaluate(before, held, field)
    guessed = _run(before, parts, texts, held, field)
    for name, value in wanted.items():
        if name not in held or held[name].size != value.size:
            raise Unread(f"nothing writes {name}")
        wrong = np.flatnonzero((held[name] % np.uint64(P) != value) | (held[name] >= _NOTHING))
        if wrong.size:
            raise Unread(f"{wrong.size} of {value.size} elements of {name} are not shown to be equal, first {wrong[0]}")
    if guessed:
        field = Marks(seed)
        held = _given(before, field)
        _run(before, parts, _texts(parts, code, field), held, field)
        if any(held[name].any() for name in wanted):
            raise Unread("a result that depends on memory that nobody wrote")


def _texts(parts: Sequence[KernelPart], code: Sequence[dict[str, CodeFunction]], field: Field) -> list[str]:
    cpus = [" ".join(_CPU.findall(part.text)[:2]) for part in parts]
    return [rewritten(f, part.phases, field, cpu) for f, part, cpu in zip(code, parts, cpus, strict=True)]


def _given(before: LoopProgram, field: Field) -> dict[str, Any]:
    return {b.name: field.random(b.name, _count(b)) for b in before.buffers if b.scope in ("input", "frozen")}


def _count(b: Buffer) -> int:
    return int(np.prod(b.shape, dtype=np.int64))


def _run(before: LoopProgram, parts: Sequence[KernelPart], texts: list[str], held: dict[str, Any], f: Field) -> bool:
    """Run kernels one after the other; return whether one reads unwritten memory."""
    turns = [_TURNS * (1000 + sum(map(_count, part.pointers)) + iterations(before)) for part in parts]
    return sum([_run_part(*each, held, f) for each in zip(parts, texts, turns, strict=True)]) > 0  # run all of them


def _run_part(part: KernelPart, text: str, turns: int, held: dict[str, Any], field: Field) -> bool:
    """Run all tasks of a kernel; return whether one reads unwritten memory.

    The kernel reads the buffers in `held`; those that it fills are added there.
    """
    words, kept = list[Any](), list[Any]()
    for b in part.pointers:
        fresh = b.scope in ("output", "scratch")
        if fresh:
            if b.name in held:
                raise Unread(f"a buffer {b.name} that is filled twice")
            held[b.name] = np.full(_count(b), _NOTHING)
        if b.name not in held or held[b.name].size != _count(b):
            raise Unread(f"a buffer {b.name} that nothing fills")
        data = held[b.name] = np.ascontiguousarray(held[b.name])
        stamps = [np.zeros(_count(b), np.int32) for _ in range(2)] if fresh else []
        width = ITEMSIZE_BYTES[b.dtype]
        at = [x.ctypes.data for x in stamps] or [0, 0]
        key = field.key("table", b.name) >> 1
        made = [_count(b) * width, data.ctypes.data, CODES[_HELD[b.dtype]], *at, int(fresh), key]
        words.append(np.array(made, np.int64))
        kept.append(stamps)
    table = np.array([w.ctypes.data for w in words], np.int64)
    bufs = np.array([8 * len(words), table.ctypes.data, 8, 0, 0, POINTERS, 0], np.int64)
    if sum([tasks for _, tasks in part.phases]) > min(turns, _MOST_TASKS):
        raise Unread("more tasks than there are stamps")
    signature, base = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), 1
    with compiled(text, 0 if text.count("\n") < _SHORT else 1) as engine:
        at = {name: ctypes.c_int64.from_address(engine.get_global_value_address(name)) for name in GLOBALS}
        at["fuel"].value = turns
        for name, tasks in part.phases:
            call = signature(engine.get_function_address(f"kernel.{name}"))
            at["base"].value = base
            for task in range(tasks):
                at["mine"].value = base + 1 + task
                call(bufs.ctypes.data, 0, task)
            base += tasks + 2
        fault, guessed = at["fault"].value, at["unwritten"].value != 0
    if fault >> 2 >= DOUBT:
        raise Unread("a place made of integers in memory that may be outside of its array")
    if fault:
        line = part.text.splitlines()[fault >> 2].strip() if fault >> 2 else ""
        raise _Fault(f"{_SAYS[fault & 3]}: {line}".rstrip(": "))
    return guessed
