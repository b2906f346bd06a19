"""Prints loop programs, and computes their content hash.

    kernel
      input x: f32[8,4]
      output out0: f32[8,4]
    for o0<8 parallel, o1<4 vector
      out0[o0,o1] = div(exp(sub(x[o0,o1], max_{r0<4} x[o0,r0])), sum_{r1<4} exp(sub(x[o0,r1], max_{r0<4} x[o0,r0])))

Stages placed inside another are printed in its loops.  A long subexpression that occurs more than once is printed once
and named `$1`, `$2` ...  The hash is over structure: it is the same in every process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Form, Guard, Size, Symbol, Truth
from superopt.ir.types import SHORT
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage, Tile

_SHARED = 48  # characters from which a repeated subexpression gets a name


def show(program: LoopProgram) -> str:
    """Print the program as loops, one nest after another."""
    lines = [program.name, *[f"  {_declaration(b)}" for b in program.buffers]]
    for stage in program.phases():
        lines += _nest(program, stage, 0, 0)
    return "\n".join(lines)


def show_stages(program: LoopProgram) -> str:
    """Print the loops alone, without name and buffers."""
    return "\n".join(line for stage in program.phases() for line in _nest(program, stage, 0, 0))


def _declaration(b: Buffer) -> str:
    return f"{b.scope} {b.name}: {SHORT[b.dtype]}[{','.join(map(str, b.shape))}]"


def _nest(program: LoopProgram, stage: Stage, above: int, depth: int) -> list[str]:
    """Return the lines of a stage whose first `above` axes are already open, at this depth of indentation."""
    inner = program.placed(stage.buffer)
    lines: list[str] = []
    done = above
    for count in sorted({s.at[1] for s in inner if s.at is not None}):
        if count > done:
            lines.append("  " * depth + _loops(stage.axes[done:count]))
            depth, done = depth + 1, count
        for other in inner:
            if other.at is not None and other.at[1] == count:
                lines += _nest(program, other, count, depth)
    if done < len(stage.axes) or stage.guard is not True:
        lines.append("  " * depth + _loops(stage.axes[done:], stage.guard))
        depth += 1
    return lines + ["  " * depth + line for line in _statement(stage)]


def _loops(axes: Sequence[Loop], guard: Truth = True) -> str:
    text = ", ".join(f"{a.symbol}<{a.extent}{'' if a.kind == 'serial' else f' {a.kind}'}" for a in axes)
    condition = "" if guard is True else f"if {guard}"
    return " ".join(x for x in (f"for {text}" if text else "", condition) if x)


def _statement(stage: Stage) -> list[str]:
    value, named = _expression(stage.value)
    sign = "=" if stage.combine is None else f"{stage.combine}="
    notes = [_tile(stage.tile)] if stage.tile is not None else []
    notes += [", ".join(f"{k}={v}" for k, v in stage.knobs)] if stage.knobs else []
    tail = f"   # {'; '.join(notes)}" if notes else ""
    first = f"{stage.buffer}[{','.join(map(str, stage.index))}] {sign} {value}{tail}"
    return [first, *[f"  {name} = {text}" for name, text in named]]


def _tile(tile: Tile) -> str:
    rows = "x".join(f"{name}:{n}" for name, n in tile.rows)
    return f"{tile.intrinsic} {rows} by {tile.vectors} vectors of {tile.lanes} over {','.join(tile.depth)}"


def _expression(root: Expr) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of an expression, and the texts of its long repeated parts."""
    inner = subexpressions(root)
    uses = Counter(x for e in inner for x in e.operands)
    texts: dict[Expr, str] = {}
    named: list[tuple[str, str]] = []
    for e in inner:
        text = _one(e, texts)
        if uses[e] > 1 and len(text) > _SHARED:
            named.append((f"${len(named) + 1}", text))
            text = named[-1][0]
        texts[e] = text
    return texts[root], named[::-1]


def _one(e: Expr, texts: dict[Expr, str]) -> str:
    match e.kind:
        case "load":
            return f"{e.args[0]}[{','.join(map(str, e.args[1]))}]"
        case "const":
            return f"{e.args[0]:g}" if isinstance(e.args[0], float) else str(e.args[0])
        case "op":
            return f"{e.args[0]}({', '.join(texts[x] for x in e.operands)})"
        case "convert":
            return f"{e.dtype}({texts[e.args[1]]})"
        case "where":
            return f"[{e.args[0]}] ? {texts[e.args[1]]} : {texts[e.args[2]]}"
        case "reduce":
            return f"{e.args[0]}_{{{','.join(f'{it}<{it.extent}' for it in e.args[1])}}} {texts[e.args[2]]}"
        case _:
            return f"({e.args[0]})"


# ---- content hash


def digest(program: LoopProgram) -> str:
    """Return a hash of everything but the program's name: equal content has equal digests in every process."""
    texts: dict[Expr, str] = {}
    parts = [repr((b.name, b.shape, b.dtype, b.scope)) for b in program.buffers]
    for s in program.stages:
        axes = [(a.symbol.name, a.extent, a.kind) for a in s.axes]
        where = [_size(x, texts) for x in s.index], _guard(s.guard, texts)
        parts.append(repr((s.buffer, axes, where, _hash(s.value, texts), s.at, s.tile, s.knobs, s.combine)))
    return _blake("\n".join(parts))


def _blake(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _hash(root: Expr, texts: dict[Expr, str]) -> str:
    """Hash an expression from the hashes of its parts."""
    for e in subexpressions(root):
        if e not in texts:
            texts[e] = _blake(repr((e.kind, e.dtype, *_parts(e, texts))))
    return texts[root]


def _parts(e: Expr, texts: dict[Expr, str]) -> list[Any]:
    inner = [texts[x] for x in e.operands]
    match e.kind:
        case "load":
            return [e.args[0], [_size(x, texts) for x in e.args[1]]]
        case "op":
            return [*e.args[:2], inner]
        case "convert":
            return [e.args[0], inner]
        case "where":
            return [_guard(e.args[0], texts), inner]
        case "reduce":
            return [e.args[0], [(it.name, _size(it.extent, texts)) for it in e.args[1]], inner]
        case "index":
            return [_size(e.args[0], texts)]
        case _:
            return [repr(e.args[0])]


def _guard(guard: Truth, texts: dict[Expr, str]) -> Any:
    return sorted(_size(p, texts) for p in guard.terms) if isinstance(guard, Guard) else guard


def _size(x: Size, texts: dict[Expr, str]) -> str:
    """Return the text of an index, independent of the process (whose numbering decides the order of terms)."""
    if isinstance(x, int):
        return str(x)
    terms = [f"{c}*{'*'.join(sorted(_atom(a, texts) for a in mono))}" for mono, c in x.terms]
    return "+".join(sorted(terms))


def _atom(a: Symbol | Form, texts: dict[Expr, str]) -> str:
    if isinstance(a, Symbol):
        return f"{a.name}<{a.high}"
    if a.op == "value":
        return f"value({_hash(a.args[0], texts)})"
    return f"{a.op}({','.join(_size(y, texts) for y in a.args)})"
