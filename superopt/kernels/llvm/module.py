"""LLVM modules and functions written as text: a thin builder that knows types, literals, loops and vectors.

A value is the name of an SSA value (`%v3`), the text of a constant, or, for `i64` only, a Python integer; arithmetic on
two integers is done at once, so that address computations at fixed sizes vanish.  Types: `superopt.kernels.llvm.types`.

`Function.lines` may hold nested lists: whoever keeps such a list can write into an earlier place, as long as what it
writes there has no branches.  Nothing here knows the width of a vector: it is in the types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.llvm.instructions import Instructions, Lines, Value
from superopt.kernels.llvm.types import (
    BYTES,
    TYPES,
    constant_mask,
    element_of,
    lanes_of,
    literal,
    mangled,
    splat,
    type_of,
    vector,
)

Body: TypeAlias = "Callable[[Value, list[Value]], Sequence[Value] | None]"

__all__ = [
    "BYTES", "TYPES", "Function", "Lines", "Module", "Value", "constant_mask", "element_of", "lanes_of", "literal",
    "mangled", "splat", "type_of", "vector",
]  # fmt: skip


class Module:
    """The text of one LLVM module for one processor."""

    def __init__(self, cpu: Cpu | None = None) -> None:
        self.cpu = cpu or host()
        self.functions: dict[str, Function] = {}
        self._declared: dict[str, None] = {}
        self._texts: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._metadata: list[str] = []

    def copy(self) -> Module:
        """A module with the same functions, to which others can be added."""
        made = Module(self.cpu)
        made.functions, made._declared = dict(self.functions), dict(self._declared)
        made._texts, made._constants = dict(self._texts), dict(self._constants)
        made._metadata = list(self._metadata)
        return made

    def declare(self, line: str) -> None:
        """Add a declaration, once."""
        self._declared[line] = None

    def function(
        self,
        name: str,
        args: Sequence[tuple[str, str]],
        returns: str = "void",
        internal: bool = True,
        attributes: str = "nounwind",
    ) -> Function:
        """Begin a function; `args` are (type with attributes, name), read as `%name`."""
        assert name not in self.functions, name
        made = Function(self, name, args, returns, internal, attributes)
        self.functions[name] = made
        return made

    def constant(self, name: str, type: str, value: str, exported: bool = False) -> None:
        """Add constant data, read as `@name`."""
        assert name not in self._constants, name
        self._constants[name] = f"@{name} = {'' if exported else 'private unnamed_addr '}constant {type} {value}"

    def variable(self, name: str, type: str, value: str, align: int = 8) -> None:
        """Add data that changes, read as `@name`."""
        assert name not in self._constants, name
        self._constants[name] = f"@{name} = internal global {type} {value}, align {align}"

    def text_constant(self, text: str) -> str:
        """The address of a zero-terminated string."""
        known = self._texts.get(text)
        if known is None:
            data = text.encode() + b"\0"
            shown = "".join([chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in data])
            name = f"text{len(self._texts)}"
            self.constant(name, f"[{len(data)} x i8]", f'c"{shown}"')
            known = self._texts[text] = f"@{name}"
        return known

    def loop_hint(self, *hints: str) -> str:
        """Metadata for the branch back of a loop, as `, !llvm.loop !3`."""
        first = len(self._metadata)
        names = [f"!{first + 1 + j}" for j in range(len(hints))]
        self._metadata.append(f"!{first} = distinct !{{{', '.join([f'!{first}', *names])}}}")
        self._metadata += [f"{name} = !{{{hint}}}" for name, hint in zip(names, hints, strict=True)]
        return f", !llvm.loop !{first}"

    def text(self) -> str:
        """The module."""
        cpu = self.cpu
        attributes = {
            "target-cpu": cpu.name,
            "target-features": ",".join(cpu.features),
            "prefer-vector-width": str(cpu.vector_bits),
            "no-trapping-math": "true",
        }
        shown = " ".join([f'"{name}"="{value}"' for name, value in attributes.items()])
        functions = [f.text() for f in self.functions.values()]
        return "\n".join(
            [
                *self._constants.values(),
                *functions,
                *self._declared,
                f"attributes #0 = {{ {shown} }}",
                *self._metadata,
                "",
            ]
        )


class Function(Instructions):
    """One function under construction: straight-line code, loops and conditionals, written in order."""

    def __init__(
        self, module: Module, name: str, args: Sequence[tuple[str, str]], returns: str, internal: bool, attributes: str
    ) -> None:
        super().__init__(module)
        self.module, self.name, self.args, self.returns = module, name, tuple(args), returns
        self.internal, self.attributes = internal, attributes
        self._block = "entry"

    def text(self) -> str:
        """The definition."""
        args = ", ".join([f"{type} %{name}" for type, name in self.args])
        linkage = "internal " if self.internal else ""
        frees = [f"  call void @free(ptr {x})" for x in self.heap]
        lines = [*self.entry]
        for line in _flat(self.lines):
            lines += [*frees, line] if frees and line.startswith("  ret ") else [line]
        head = f"define {linkage}{self.returns} @{self.name}({args}) {self.attributes} #0 {{"
        return "\n".join([head, "entry:", *lines, "}"])

    # ---- control

    def for_(
        self,
        low: Value,
        high: Value,
        step: int,
        body: Body,
        carried: Sequence[tuple[str, Value]] = (),
        unroll: bool = False,
    ) -> list[Value]:
        """Loop from low to high (excluded) by step > 0.

        Args:
            body: writes one iteration, given the iterator and the carried values; returns their new values.
            carried: (type, initial value).
            unroll: may LLVM unroll it?

        Returns:
            The carried values after the loop.  A single iteration at fixed bounds is written without a loop.
        """
        values = [value for _, value in carried]
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return values
            if high - low <= step:
                return list(body(low, values) or [])
        header, inside, latch, done = [self.label(x) for x in ("head", "body", "next", "done")]
        self._count += 1
        number = self._count
        iterator, following, before = f"%i{number}", f"%n{number}", self._block
        current: list[Value] = [f"%c{number}.{j}" for j in range(len(values))]
        self.effect(f"br label %{header}")
        self.open(header)
        phis: Lines = []
        self.lines.append(phis)
        self.effect(f"br i1 {self.less(iterator, high)}, label %{inside}, label %{done}")
        self.open(inside)
        new = list(body(iterator, list(current)) or [])
        self.effect(f"br label %{latch}")
        self.open(latch)
        self.lines.append(f"  {following} = add nsw i64 {iterator}, {step}")
        hint = "" if unroll else self.module.loop_hint('!"llvm.loop.unroll.disable"')
        self.effect(f"br label %{header}{hint}")
        phis.append(f"  {iterator} = phi i64 [ {low}, %{before} ], [ {following}, %{latch} ]")
        for name, (type, value), next_ in zip(current, carried, new, strict=True):
            phis.append(f"  {name} = phi {type} [ {value}, %{before} ], [ {next_}, %{latch} ]")
        self.open(done)
        return current

    def if_(
        self,
        condition: str,
        then: Callable[[], Sequence[Value] | None],
        orelse: Callable[[], Sequence[Value] | None] | None = None,
        types: Sequence[str] = (),
    ) -> list[Value]:
        """Branch; the values that both sides return (of these types) are merged."""
        if condition in ("true", "false"):
            side = then if condition == "true" else orelse
            return list((side() if side else None) or [])
        yes, no, done = [self.label(x) for x in ("then", "else", "done")]
        self.effect(f"br i1 {condition}, label %{yes}, label %{no}")
        ends: list[tuple[str, list[Value]]] = []
        for name, side in ((yes, then), (no, orelse)):
            self.open(name)
            values = list((side() if side else None) or [])
            ends.append((self._block, values))
            self.effect(f"br label %{done}")
        self.open(done)
        (left, a), (right, b) = ends
        merged = zip(types, a, b, strict=True)
        return [self.value(f"phi {t} [ {x}, %{left} ], [ {y}, %{right} ]") for t, x, y in merged]

    def exit_if(self, condition: str, type: str, x: Callable[[], Value]) -> None:
        """Return x (written on that path only) if the condition holds."""
        leave, stay = self.label("leave"), self.label("stay")
        self.effect(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.open(leave)
        self.ret(type, str(x()))
        self.open(stay)

    def label(self, prefix: str) -> str:
        """A fresh name for a block."""
        self._count += 1
        return f"{prefix}{self._count}"

    def open(self, label: str) -> None:
        """Begin a block; the one before must have ended with a branch."""
        self.lines.append(f"{label}:")
        self._block = label

    def ret(self, type: str = "void", x: Value = "") -> None:
        """Return."""
        self.effect(f"ret {type} {x}".rstrip())


def _flat(lines: Lines) -> list[str]:
    found: list[str] = []
    for line in lines:
        if isinstance(line, list):
            found += _flat(line)
        else:
            found.append(line)
    return found
