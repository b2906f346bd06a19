"""Loop programs run one iteration at a time, by code that shares nothing with the checker: every access is watched.

`faults(before, after)` says what goes wrong when `after` runs literally: an access outside a buffer, an element written
twice, one read before it is written, an output that stays unwritten, a value that is not that of `before`.  Expressions
become Python text, so that a whole program of a few hundred iterations takes milliseconds.

`mutants(program)` gives copies of a program with one integer changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.ir import expr
from superopt.ir.expr import Expr
from superopt.ir.index import (
    APPLY,
    Atom,
    Guard,
    Size,
    Symbol,
    Truth,
    all_of,
    nonnegative,
    of_atom,
    substitute,
    substitute_guard,
)
from superopt.ir.ops.record import identity
from superopt.ir.scalar import DTYPE, apply
from superopt.kernels.loops.evaluate import evaluate as run
from superopt.kernels.loops.stage import Loop, LoopProgram, Stage


class Fault(Exception):
    """Something goes wrong."""


# ---- running


def faults(before: LoopProgram, after: LoopProgram, seeds: int = 2) -> str:
    """What goes wrong in `after`, or nothing."""
    inputs = {b.name: b for b in before.buffers if b.scope in ("input", "frozen")}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        arrays = {name: _values(b.shape, b.dtype, rng) for name, b in inputs.items()}
        wanted = run(before, arrays)
        try:
            found = execute(after, arrays)
        except Fault as fault:
            return str(fault)
        for name, array in wanted.items():
            if name not in found or found[name].shape != array.shape:
                return f"{name} is missing"
            if not np.allclose(np.asarray(found[name], float), np.asarray(array, float), rtol=1e-4, atol=1e-4):
                return f"{name} differs"
    return ""


def _values(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(DTYPE[dtype]) if DTYPE[dtype].kind in "iu" else None
    low, high = (-4, 5) if info is None else (int(info.min), int(info.max) + 1) if info.bits == 8 else (-9, 10)
    return rng.integers(low, high, shape).astype(DTYPE[dtype])


def execute(program: LoopProgram, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs, computed iteration by iteration.

    Raises:
        Fault: an access is wrong.
    """
    memory: dict[str, dict[tuple[int, ...], Any]] = {}
    shapes = {b.name: b.shape for b in program.buffers}
    for b in program.buffers:
        if b.scope in ("input", "frozen"):
            values = arrays[b.name].tolist() if arrays[b.name].shape else arrays[b.name].item()
            memory[b.name] = {i: _at(values, i) for i in itertools.product(*(range(n) for n in arrays[b.name].shape))}
            if arrays[b.name].shape != b.shape:
                raise Fault(f"{b.name} has another shape")

    def read(name: str, *index: int) -> Any:
        if any(not 0 <= i < n for i, n in zip(index, shapes[name], strict=True)):
            raise Fault(f"{name}{index} is read outside of {shapes[name]}")
        if name not in memory or index not in memory[name]:
            raise Fault(f"{name}{index} is read before it is written")
        return memory[name][index]

    bodies = {s.buffer: _compiled(s, read) for s in program.stages}
    writers: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for stage in program.phases():
        _run(program, stage, {}, 0, bodies, memory, shapes, writers)
    out: dict[str, np.ndarray] = {}
    for b in program.buffers:
        if b.scope == "output":
            array = np.zeros(b.shape, DTYPE[b.dtype])
            for i in itertools.product(*(range(n) for n in b.shape)):
                if i not in memory.get(b.name, {}):
                    raise Fault(f"{b.name}{i} is not written")
                array[i] = memory[b.name][i]
            out[b.name] = array
    return out


def _at(values: Any, index: tuple[int, ...]) -> Any:
    for i in index:
        values = values[i]
    return values


def _run(
    program: LoopProgram,
    stage: Stage,
    env: dict[str, int],
    depth: int,
    bodies: Mapping[str, Any],
    memory: dict[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    writers: dict[Any, Any],
) -> None:
    """A stage whose first `depth` axes are set, and the stages placed in it."""
    if depth == (stage.at[1] if stage.at is not None else 0):  # a new version of its buffer
        memory[stage.buffer] = {}
        for key in [k for k in writers if k[0] == stage.buffer]:
            del writers[key]
        if stage.combine is not None:
            neutral = identity(stage.combine, program.buffer(stage.buffer).dtype)
            every = itertools.product(*(range(n) for n in shapes[stage.buffer]))
            memory[stage.buffer] = dict.fromkeys(every, neutral)
    for inner in program.placed(stage.buffer):
        if inner.at is not None and inner.at[1] == depth:
            _run(program, inner, dict(env), depth, bodies, memory, shapes, writers)
    if depth < len(stage.axes):
        axis = stage.axes[depth]
        for i in range(axis.extent):
            _run(program, stage, {**env, axis.symbol.name: i}, depth + 1, bodies, memory, shapes, writers)
        return
    guard, index, value = bodies[stage.buffer]
    if not guard(env):
        return
    at = tuple(int(i) for i in index(env))
    if any(not 0 <= i < n for i, n in zip(at, shapes[stage.buffer], strict=True)):
        raise Fault(f"{stage.buffer}{at} is written outside of {shapes[stage.buffer]}")
    held = memory[stage.buffer]
    task = tuple(env[a.symbol.name] for a in stage.axes if a.kind == "parallel")
    if stage.combine is None:
        if at in held:
            raise Fault(f"{stage.buffer}{at} is written twice")
        held[at] = value(env)
    else:
        if writers.setdefault((stage.buffer, at), task) != task:
            raise Fault(f"{stage.buffer}{at} is written by two tasks")
        held[at] = _FOLD[stage.combine](held[at], value(env))


def _compiled(stage: Stage, read: Callable[..., Any]) -> tuple[Any, Any, Any]:
    scope = {
        "S": _Others(),
        "R": read,
        "F": _FUNCTIONS,
        "M": _FOLD,
        "math": math,
        "clip": lambda x, a, b: min(max(x, a), b),
    }
    value, index = _text(stage.value), "(" + "".join(f"{_size(x)}, " for x in stage.index) + ")"
    guard = _guard(stage.guard)
    return tuple(eval(f"lambda e: {text}", scope) for text in (guard, index, value))  # pyright: ignore[reportReturnType]


def _size(x: Size) -> str:
    if isinstance(x, int):
        return f"({x})"
    return "(" + "+".join(f"({c})" + "".join(f"*{_atom(a)}" for a in m) for m, c in x.terms) + ")"


def _atom(a: Atom) -> str:
    if isinstance(a, Symbol):
        return f"e['{a.name}']"
    if a.op == "value":
        return f"int({_text(a.args[0])})"
    args = [_size(x) for x in a.args]
    return f"({args[0]}{a.op}{args[1]})" if a.op in ("//", "%") else f"{a.op}({','.join(args)})"


def _guard(guard: Truth) -> str:
    if not isinstance(guard, Guard):
        return str(bool(guard))
    return "(" + " and ".join(f"{_size(p)}>=0" for p in guard.ordered) + ")"


def _text(e: Expr) -> str:
    match e.kind:
        case "load":
            return f"R('{e.args[0]}'{''.join(f', {_size(x)}' for x in e.args[1])})"
        case "const":
            return f"({e.args[0]!r})" if math.isfinite(e.args[0]) else f"float('{e.args[0]}')"
        case "op":
            name = f"F['{e.args[0]}']" if e.args[0] in _FUNCTIONS else f"S['{e.args[0]}']"
            return f"{name}('{e.args[1]}', {', '.join(_text(x) for x in e.operands)})"
        case "convert":
            return f"F['convert']('{e.dtype}', {_text(e.args[1])})"
        case "where":
            return f"({_text(e.args[1])} if {_guard(e.args[0])} else {_text(e.args[2])})"
        case "reduce":
            monoid, iterators, body = e.args
            loops = " ".join(f"for {_name(it)} in range({_size(it.high + 1)})" for it in iterators)
            env = "{**e, " + ", ".join(f"'{it.name}': {_name(it)}" for it in iterators) + "}"
            neutral = identity(monoid, e.dtype)
            start = f"float('{neutral}')" if isinstance(neutral, float) else repr(neutral)
            inner = f"(lambda e: {_text(body)})({env})"
            return f"F['fold']('{e.dtype}', M['{monoid}'], {start}, ({inner} {loops}))"
        case _:
            return f"F['convert']('{e.dtype}', {_size(e.args[0])})"


def _name(it: Symbol) -> str:
    return "_" + "".join(ch if ch.isalnum() else "_" for ch in it.name)


def _wrapped(dtype: str, x: Any) -> Any:
    if dtype == "bool":
        return bool(x)
    if DTYPE[dtype].kind not in "iu":
        return float(x)
    bits = DTYPE[dtype].itemsize * 8
    x = int(x) & ((1 << bits) - 1)
    return x - (1 << bits) if dtype.startswith("int") and x >> (bits - 1) else x


def _fold(dtype: str, combine: Callable[[Any, Any], Any], start: Any, values: Iterator[Any]) -> Any:
    for x in values:
        start = _wrapped(dtype, combine(start, x))
    return start


class _Others(dict[str, Callable[..., Any]]):
    """Functions that are not written out here: those of the interpreter."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        def call(dtype: str, *args: Any) -> Any:
            with np.errstate(all="ignore"):
                return apply(name, dtype, tuple(np.asarray(x, DTYPE[dtype]) for x in args)).item()

        return call


def _exp(x: float) -> float:
    return math.exp(min(x, 60.0))


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "max": max, "min": min,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip
_PLAIN: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a,
    "max": max, "min": min, "abs": abs, "exp": _exp, "tanh": math.tanh,
    "div": lambda a, b: a / b if b else math.copysign(1e9, a), "erf": math.erf,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "select_n": lambda which, *cases: cases[int(which)],
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: (lambda d, *xs, f=f: f(*xs) if d == "bool" else _wrapped(d, f(*xs))) for name, f in _PLAIN.items()},
    **{name: (lambda d, *xs, f=_PLAIN[name]: f(*xs)) for name in ("eq", "ne", "lt", "le", "gt", "ge", "select_n")},
    "convert": _wrapped,
    "fold": _fold,
}  # fmt: skip


# ---- mutants


def mutants(program: LoopProgram, rng: np.random.Generator, count: int) -> Iterator[tuple[str, LoopProgram]]:
    """Copies with one integer changed, or one guard, kind or place; described."""
    total = _Mutation(-1, 0)
    total.program(program)
    for _ in range(count):
        kind = int(rng.integers(0, 10))
        if kind == 0:
            made = _structural(program, rng)
            if made is not None:
                yield made
            continue
        change = _Mutation(int(rng.integers(0, total.seen)), int(rng.choice([-1, 1, 1, 2, -2])))
        made_by = change.program(program)
        if made_by is not None and made_by != program:
            yield change.what, made_by


def _structural(program: LoopProgram, rng: np.random.Generator) -> tuple[str, LoopProgram] | None:
    stages = list(program.stages)
    at = int(rng.integers(0, len(stages)))
    s = stages[at]
    choice = int(rng.integers(0, 4))
    if choice == 0 and isinstance(s.guard, Guard):
        kept = s.guard.ordered[1:]
        stages[at] = replace(s, guard=Guard(kept) if kept else True)
        return f"{s.buffer}: a condition dropped", replace(program, stages=tuple(stages))
    if choice == 1 and s.at is None and s.axes:
        axes = (replace(s.axes[0], kind="parallel"), *s.axes[1:])
        stages[at] = replace(s, axes=axes)
        return f"{s.buffer}: first axis parallel", replace(program, stages=tuple(stages))
    if choice == 2 and len(stages) > 1:
        stages[at], stages[at - 1] = stages[at - 1], stages[at]
        return "stages swapped", replace(program, stages=tuple(stages))
    if choice == 3 and len(s.index) > 1:
        stages[at] = replace(s, index=(*s.index[1:], s.index[0]))
        return f"{s.buffer}: index rotated", replace(program, stages=tuple(stages))
    return None


class _Mutation:
    """Rebuilds a program with the integer at one place changed."""

    def __init__(self, place: int, by: int) -> None:
        self.place, self.by, self.seen, self.what = place, by, 0, ""

    def number(self, n: int, what: str, low: int | None = None) -> int:
        here, self.seen = self.seen, self.seen + 1
        if here != self.place:
            return n
        changed = n + self.by
        if low is not None and changed < low:
            changed = n + 1
        self.what = f"{what}: {n} -> {changed}"
        return changed

    def program(self, p: LoopProgram) -> LoopProgram | None:
        buffers = []
        for b in p.buffers:
            if b.scope in ("scratch", "local"):
                shape = tuple(self.number(n, f"shape of {b.name}", 1) for n in b.shape)
                buffers.append(replace(b, shape=shape))
            else:
                buffers.append(b)
        stages: list[Stage] = []
        for s in p.stages:
            mapping: dict[Symbol, Size] = {}
            axes: list[Loop] = []
            for a in s.axes:
                n = self.number(a.extent, f"extent of {a.symbol} in {s.buffer}", 1)
                symbol = Symbol(a.symbol.name, 0, n - 1)
                axes.append(replace(a, symbol=symbol))
                if symbol != a.symbol:
                    mapping[a.symbol] = of_atom(symbol)
            index = tuple(self.size(x, f"index of {s.buffer}") for x in s.index)
            guard = self.guard(s.guard, f"guard of {s.buffer}")
            value = self.value(s.value)
            made = replace(s, axes=tuple(axes), index=index, guard=guard, value=value)
            if mapping:
                made = _substituted(made, mapping)
            stages.append(made)
        return replace(p, buffers=tuple(buffers), stages=tuple(stages))

    def size(self, x: Size, what: str) -> Size:
        if isinstance(x, int):
            return self.number(x, what)
        total: Size = 0
        constant = False
        for mono, c in x.terms:
            constant |= not mono
            term: Size = self.number(c, what)
            for a in mono:
                term = term * self.atom(a, what)
            total = total + term
        return total if constant else total + self.number(0, what)

    def atom(self, a: Atom, what: str) -> Size:
        if isinstance(a, Symbol) or a.op == "value":
            return of_atom(a)
        args = [self.size(a.args[0], what)]
        for y in a.args[1:]:
            args.append(self.number(y, what, 1 if a.op in ("//", "%") else None) if isinstance(y, int) else y)
        return APPLY[a.op](*args)

    def guard(self, guard: Truth, what: str) -> Truth:
        if not isinstance(guard, Guard):
            return guard
        return all_of(*(nonnegative(self.size(p, what)) for p in guard.ordered))

    def value(self, root: Expr) -> Expr:
        done: dict[Expr, Expr] = {}
        for e in expr.subexpressions(root):
            inner = [done[x] for x in e.operands]
            match e.kind:
                case "load":
                    index = [self.size(x, f"load of {e.args[0]}") for x in e.args[1]]
                    done[e] = expr.load(e.args[0], index, e.dtype)
                case "op":
                    done[e] = expr.op(e.args[0], e.args[1], *inner)
                case "convert":
                    done[e] = expr.convert(inner[0], e.args[0], e.dtype)
                case "where":
                    done[e] = expr.where(self.guard(e.args[0], "choice"), lambda i=inner: i[0], lambda i=inner: i[1])
                case "reduce":
                    monoid, iterators, _ = e.args
                    mapping: dict[Symbol, Size] = {}
                    new: list[Symbol] = []
                    for it in iterators:
                        s = Symbol(it.name, 0, self.number(it.high + 1, f"extent of {it}", 1) - 1)
                        new.append(s)
                        if s != it:
                            mapping[it] = of_atom(s)
                    done[e] = expr.reduce(monoid, new, inner[0].substitute(mapping))
                case _:
                    done[e] = e
        return done[root]


def _substituted(s: Stage, mapping: dict[Symbol, Size]) -> Stage:
    guard = substitute_guard(s.guard, mapping)
    index = tuple(substitute(x, mapping) for x in s.index)
    return replace(s, index=index, guard=guard, value=s.value.substitute(mapping))
