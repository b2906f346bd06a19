"""Mutants of emitted kernels: one number, operand, opcode, predicate, mask or line is changed, and the code validated.

A mutant that is not proved is *rejected*.  One that is proved is run as machine code on random floats beside the
kernel that it was made from: it is *missed* if any result differs by more than rounding.  Rejected ones count as
*wrong* if they touch foreign memory or make tasks overlap, or if they can be run (with their accesses watched) and give
other results.  The others are equal up to rounding, or for finite numbers, or have no meaning to the reader.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from superopt.backends.native import parts_of
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.scalar import DTYPE
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.ranges import KNOBS, knob_fault
from superopt.kernels.loops.stage import LoopProgram
from verifier.floats.machine import KernelPart, MachineCode, Unread
from verifier.kernels.check import validate
from verifier.kernels.scalars import known
from verifier.verdict import PROVED, REFUTED

ROUNDING = 1e-4  # relative to the largest result: sums of a few dozen float32 in other orders differ by 1e-6
SPREAD = 30.0  # spread of integers: beyond the bounds of every table on both sides
SHORT = {"float16": 3e-3}  # rounding of short types: some units of their last place


def _softmax(x: Any) -> Any:
    e = jax.numpy.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _norm(x: Any, g: Any) -> Any:
    d = x - x.mean(1, keepdims=True)
    return d * jax.lax.rsqrt((d * d).mean(1, keepdims=True) + 1e-5) * g


def _conv(x: Any, w: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims))


def _pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "chain": (lambda x, y: jax.nn.relu(x * y + 1.5) / (1.0 + x * x), ((7, 37), (37,))),
    "product": (lambda x, w, b: jax.nn.relu(x @ w + b), ((13, 21), (21, 43), (43,))),
    "product of rows": (lambda x, w: x @ w, ((1, 70), (70, 50))),
    "softmax": (_softmax, ((9, 37),)),
    "layer norm": (_norm, ((6, 40), (40,))),
    "sum": (lambda x: x.sum(0), ((33, 19),)),
    "transpose": (lambda x: x.T * 2.0, ((35, 22),)),
    "convolution": (_conv, ((1, 6, 7, 5), (3, 3, 5, 18))),
    "pool": (_pool, ((1, 9, 9, 17),)),
    "reversal": (lambda x: x[::-1, 1:] - x[:, :-1], ((5, 34),)),
    "choice": (lambda m, x: jax.numpy.where(m, x * 2.0, -1.0), ((7, 37), (7, 37))),
    "conditions": (lambda x, m: (x[:, 1:] < x[:, :-1]) & ~m, ((5, 34), (33,))),
    "half": (lambda x, y: jax.nn.relu(x * y + x), ((7, 37), (37,))),
    "circular": (lambda x: jax.numpy.sin(x) * jax.numpy.cos(x), ((5, 34),)),
    "rows": (lambda i, x: x[i], ((6,), (40, 37))),
    "sum of rows": (lambda i, j, x, y: x[i] + y[j] * 2.0, ((6,), (6,), (40, 21), (8, 21))),
}
"""Functions and the shapes of their operands: few elements, and tails along every axis."""
DTYPES = {"choice": ("bool",), "conditions": ("float32", "bool"), "half": ("float16",) * 2,
          "rows": ("int32",), "sum of rows": ("int32",) * 2}  # fmt: skip
"""Dtypes of the first operands, where they are not float32."""


class MadeKernel(NamedTuple):
    """A kernel to be changed: its name, the program that it computes, and its parts."""

    name: str
    before: LoopProgram
    parts: list[KernelPart]


def kernel(name: str) -> MadeKernel:
    """The kernel of a program; operands after the first are frozen."""
    fn, shapes = PROGRAMS[name]
    kinds = (*DTYPES.get(name, ()), *["float32"] * len(shapes))
    arrays = [np.ones(s, DTYPE[k]) for s, k in zip(shapes, kinds, strict=False)]
    graph: Graph = import_function(fn, arrays, frozen=tuple(range(1, len(arrays)))).graph
    return MadeKernel(name, from_graph(graph.outputs), parts_of(graph))


# ---- one change


_INTEGER = re.compile(r"(?<=i64 )-?\d+|(?<=, )-?\d+(?=$)|(?<=i32 )\d+|(?<=\[ )-?\d+(?=, %)|(?<=i1 )[01]")
_SWAPS = {
    "fadd": "fsub", "fsub": "fadd", "fmul": "fadd", "fdiv": "fmul", "udiv": "urem", "urem": "udiv", "slt": "sle",
    "sgt": "sge", "ogt": "olt", "olt": "ogt", "uno": "ord", "add": "sub", "mul": "add", "smin": "smax",
}  # fmt: skip


def changes(line: str, lines: list[str], rng: random.Random) -> Iterator[str]:
    """Replacements for a line; an empty one deletes it."""
    for match in _INTEGER.finditer(line):
        by = rng.choice((-16, -4, -2, -1, 1, 2, 4, 16))
        number = str(1 - int(match[0])) if line[match.start() - 3 : match.start()] == "i1 " else str(int(match[0]) + by)
        yield line[: match.start()] + number + line[match.end() :]
    for old, new in _SWAPS.items():
        if re.search(rf"\b{old}\b", line):
            yield re.sub(rf"\b{old}\b", new, line, count=1)
    head, equals, tail = line.partition(" = ")
    body = tail if equals else line
    names = re.findall(r"%[\w.]+", body)
    if len(names) > 1 and "label" not in body and "phi" not in body:
        a, b = rng.sample(names, 2)
        if a != b:
            swapped = re.sub(r"%[\w.]+", lambda m: {a: b, b: a}.get(m[0], m[0]), body)
            yield f"{head}{equals}{swapped}" if equals else swapped
    if names and "label" not in body:
        old = rng.choice(names)
        kind = next((_kind(x) for x in lines if x.startswith(f"  {old} = ")), "")
        others = [x.split()[0] for x in lines if " = " in x and _kind(x) == kind]
        made = re.sub(rf"{old}(?![\w.])", rng.choice(others) if others else old, body, count=1)
        yield f"{head}{equals}{made}" if equals else made
    floats = re.findall(r"0x[0-9A-F]{16}", body)
    if floats:
        old = rng.choice(floats)
        yield line.replace(old, "0x4004000000000000", 1)
        yield line.replace(old, f"0x{(int(old, 16) + (31 << 52)) % (1 << 64):016X}", 1)  # times 2^31: 1 in the field
    if line.strip().startswith("store") or "masked.store" in line:
        yield ""


def _kind(line: str) -> str:
    """Approximate type of the value that a line defines: that of its first operand; addresses and conditions differ."""
    op = line.split()[2]
    if op in ("getelementptr", "alloca", "icmp", "fcmp"):
        return op[1:]  # both comparisons are alike
    return next(iter(re.findall(r"<\d+ x [fpi]\w+>|float|i64|ptr", line.partition("<16 x i1>")[2] or line)), "")


def mutant(parts: list[KernelPart], rng: random.Random) -> tuple[list[KernelPart], str] | None:
    """The parts with one change in one of them, and the lines before and after; None where none was found."""
    which = rng.randrange(len(parts))
    part = parts[which]
    if rng.random() < 0.02:  # now and then a task is left out, or one too many is run
        j = rng.randrange(len(part.phases))
        name, tasks = part.phases[j]
        by = rng.choice((-1, 1))
        phases = [*part.phases[:j], (name, tasks + by), *part.phases[j + 1 :]]
        return [*parts[:which], part._replace(phases=phases), *parts[which + 1 :]], f"{tasks} tasks {by:+}"
    lines = part.text.splitlines()
    inside = [j for j, line in enumerate(lines) if line.startswith("  ") and not line.strip().startswith(";")]
    at = rng.choice(inside)
    edits = [x for x in changes(lines[at], [lines[j] for j in inside], rng) if x != lines[at]]
    if not edits:
        return None
    new = rng.choice(edits)
    text = "\n".join([*lines[:at], *([new] if new else []), *lines[at + 1 :]]) + "\n"
    told = f"{lines[at].strip()} -> {new.strip()}"
    return [*parts[:which], part._replace(text=text), *parts[which + 1 :]], told


# ---- as machine code


def differs(of: MadeKernel, parts: list[KernelPart], seed: int) -> bool:
    """Whether changed parts give another output, on random floats, than the kernel that they were made from."""
    rng = np.random.default_rng(seed)
    inputs = [b for b in of.before.buffers if b.scope in ("input", "frozen")]
    drawn = {b.name: rng.normal(size=b.shape) * (SPREAD if b.dtype == "int32" else 1.0) for b in inputs}
    arrays = {
        b.name: (drawn[b.name] > 0 if b.dtype == "bool" else drawn[b.name]).astype(DTYPE[b.dtype]) for b in inputs
    }
    try:
        with MachineCode(of.parts) as kernel, MachineCode(parts) as changed:
            right, outputs = kernel(arrays), changed(arrays)
    except Unread:  # LLVM refuses the text: it never becomes a kernel
        return False
    for b in of.before.buffers:
        if b.scope == "output":
            values = [held[b.name].astype(np.float64) for held in (right, outputs)]
            bound = SHORT.get(b.dtype, ROUNDING) * max(float(np.abs(values[0]).max()), 1e-30)
            if not np.allclose(*values, rtol=0, atol=bound, equal_nan=True):
                return True
    return False


def tried(of: MadeKernel, seed: int) -> dict[str, Any] | None:
    """One mutant: its status, cause, whether it is wrong, and whether it was missed; None where none was found."""
    made = mutant(of.parts, random.Random(seed))
    if made is None:
        return None
    parts, told = made
    verdict = validate(of.before, parts, known(), seed)
    wrong = verdict.status == REFUTED
    watched = verdict.proved or any(x in verdict.cause for x in ("not shown to be equal", "memory that nobody wrote"))
    if watched:
        wrong = differs(of, parts, seed)
    return {
        "kernel": of.name, "seed": seed, "change": told, "status": verdict.status, "cause": verdict.cause,
        "wrong": wrong, "missed": verdict.status == PROVED and wrong,
    }  # fmt: skip


def draw(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Mutants of all kernels in turn until `count` are wrong, including those between them that are not."""
    made = [kernel(name) for name in PROGRAMS]
    wrong, number = 0, 0
    attempts: list[Callable[[int], dict[str, Any] | None]] = [partial(tried, k) for k in made]
    while wrong < count and number < 20 * count:  # a kernel of which no change is wrong would have no end
        row = attempts[number % len(made)](seed + number)
        number += 1
        if row is not None:
            wrong += row["wrong"]
            yield row


def knobs_accepted() -> int:
    """Number of values outside the range of a knob that are accepted; none should be."""
    taken = 0
    for name, values in KNOBS.items():
        low, high = values[0], values[-1]
        numbers = isinstance(low, int) and isinstance(high, int)
        beside: tuple[Any, ...] = (low - 1, high + 1, -(1 << 40), 0.5) if numbers else ("", "other", 0)  # pyright: ignore[reportOperatorIssue]
        taken += sum(not knob_fault(name, value) for value in beside)
    return taken
