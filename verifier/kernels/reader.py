"""A parser of LLVM IR text: functions, blocks, instructions, and marked code of scalar functions.

It accepts the constructs that kernels consist of and refuses all others by name.  Comments `; begin NAME %x` and
`; end %y` around instructions claim that these compute a scalar function; the digest of their text verifies it.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verifier.kernels.field import Unread

_TOKEN = re.compile(r"<\d+ x \w+>|[%@][\w.$]+|-?\d[\w.+-]*|\w[\w.]*|\S")
_TYPE = re.compile(r"<(\d+) x (\w+)>|(half|bfloat|float|double|i1|i8|i16|i32|i64|ptr|void)")
_PLAIN = r"(?:<\d+ x \w+>|\w+)"  # a type
_OUTSIDE = re.compile(  # lines outside of functions: declarations without attributes, loop hints, the processor
    rf"""declare {_PLAIN} @[\w.]+\((?:{_PLAIN}(?:, {_PLAIN})*)?\)(?: nounwind)?|"""
    r"""!\d+ = (?:distinct )?!\{(?:!\d+|!"llvm\.loop\.unroll\.disable"|, )*\}|"""
    r"""attributes \#0 = \{(?: "(?:target-cpu|target-features|prefer-vector-width|no-trapping-math)"="[^"]*")+ \}"""
)
BYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
FLOATING = ("half", "float", "double")
DATA = (*FLOATING, "i8", "i16", "bfloat")  # i8 is a condition, i16 holds the bits of a 16-bit float


class Type(NamedTuple):
    """An element type, and lanes; 0 of a scalar."""

    element: str
    lanes: int

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element

    def of(self, element: str) -> Type:
        """The type with as many lanes of another element type."""
        return Type(element, self.lanes)


class Operand(NamedTuple):
    """An operand: a name (`%x`), or a constant with one value per lane, one for a scalar; None is poison."""

    type: Type
    name: str = ""
    lanes: tuple[float | int | None, ...] = ()


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        op: opcode; for a call, the name of the function with its `@`.
        words: predicate of a comparison, labels of a branch or of the operands of a phi, count of an array.
        type: type of the result; for loads, stores, addresses and stack arrays, that of the element in memory.
        align: alignment of a load, store or array on the stack; 0 where it is not given.
        count: line number in the module.
    """

    name: str
    op: str
    type: Type
    operands: tuple[Operand, ...] = ()
    words: tuple[str, ...] = ()
    align: int = 0
    count: int = 0


@dataclass(slots=True)
class CodeFunction:
    """A function: parameters by name, and blocks of instructions in their order."""

    name: str
    returns: Type
    parameters: tuple[tuple[Type, str], ...]
    blocks: dict[str, list[Instruction]] = field(default_factory=dict[str, list[Instruction]])


VOID = Type("void", 0)
_POINTER = Type("ptr", 0)


class _Line:
    """Tokens of a line, taken from the front."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at, self.aligned = text, [*_TOKEN.findall(text), ""], 0, 0

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self, wanted: str = "") -> str:
        token = self.tokens[self.at]
        if not token or (wanted and token != wanted):
            raise Unread(f"the line {self.text.strip()!r}")
        self.at += 1
        return token

    def has(self, token: str) -> bool:
        """Whether the next token is this one; takes it if so."""
        present = self.tokens[self.at] == token
        self.at += present
        return present

    def type(self) -> Type:
        type_ = _type_of(self.take())
        if type_ is None:
            raise Unread(f"a type in {self.text.strip()!r}")
        return type_

    def operand(self, type_: Type) -> Operand:
        """Read a name or a constant of this type."""
        token = self.tokens[self.at]
        if token[:1] == "%":
            self.at += 1
            return Operand(type_, token)
        count = type_.lanes or 1
        for word, value in (("zeroinitializer", 0), ("poison", None)):
            if self.has(word):
                return Operand(type_, "", (value,) * count)
        if self.has("splat"):
            self.take("(")
            self.type()
            value = _number(self.take(), type_.element)
            self.take(")")
            return Operand(type_, "", (value,) * count)
        if type_.lanes:
            self.take("<")
            values: list[float | int | None] = []
            while not self.has(">"):
                self.type()
                values.append(_number(self.take(), type_.element))
                self.has(",")
            if len(values) != count:
                raise Unread(f"a constant in {self.text.strip()!r}")
            return Operand(type_, "", tuple(values))
        return Operand(type_, "", (_number(self.take(), type_.element),))

    def typed(self) -> Operand:
        """Read a type and an operand of it."""
        type_ = self.type()
        if self.has("align"):
            self.aligned = max(self.aligned, int(self.take()))
        return self.operand(type_)

    def align(self) -> int:
        return int(self.take()) if self.has(",") and self.take("align") else 0

    def end(self) -> None:
        if self.peek():
            raise Unread(f"the end of {self.text.strip()!r}")


@functools.lru_cache(maxsize=256)
def _type_of(token: str) -> Type | None:
    """Return the type of a token; None where it is none."""
    match = _TYPE.fullmatch(token)
    if match is None:
        return None
    return Type(match[2], int(match[1])) if match[1] else Type(match[3], 0)


def _number(token: str, element: str) -> float | int:
    if token in ("true", "false"):
        return int(token == "true")
    try:
        if element in FLOATING:
            if token.startswith("0x"):
                return struct.unpack("<d", int(token, 16).to_bytes(8, "little"))[0]
            return float(token)
        if element in ("i1", "i8") and token not in ("0", "1"):
            raise ValueError
        if not -(1 << 63) <= int(token) << 64 - 8 * BYTES.get(element, 8) < 1 << 63:  # LLVM truncates other constants
            raise ValueError
        return int(token)
    except ValueError:
        raise Unread(f"the constant {token}") from None


def functions(text: str, scalar: dict[str, str]) -> dict[str, CodeFunction]:
    """Parse the functions of a module, by name.

    Args:
        text: text of the module.
        scalar: digest of code that computes a scalar function -> its name.

    Raises:
        Unread: a construct that kernels do not use.
    """
    functions_by_name: dict[str, CodeFunction] = {}
    if not re.fullmatch(r"[\n -~]*", text):  # other characters may end a line for LLVM or for Python alone
        raise Unread("a character that is not printed")
    bodies = texts(text)
    for line in _DEFINED.sub("", text).splitlines():
        if line.strip() and not _OUTSIDE.fullmatch(line.strip()):
            raise Unread(f"the line {line.strip()[:40]!r}")
    for whole in _DEFINED.finditer(text):
        head, *lines = whole[0].splitlines()[:-1]
        f = _head(head.strip())
        if f.name in (*functions_by_name, *_OF_C):
            raise Unread(f"a second {f.name}")
        functions_by_name[f.name] = f
        block = unnamed = list[Instruction]()
        marked: list[str] | None = None
        for number, line in enumerate(lines, text.count("\n", 0, whole.start()) + 1):
            bare = line.strip()
            if bare.startswith("; begin") and marked is None:
                marked = [bare]
            elif bare.startswith("; end"):
                if marked is None:
                    raise Unread("the end of a scalar function that did not begin")
                block.append(_scalar(marked, bare, scalar, number, bodies))
                marked = None
            elif marked is not None:
                marked.append(bare)
            elif re.fullmatch(r"[\w.]+:", bare):
                block = f.blocks[bare[:-1]] = []
            elif bare and not bare.startswith(";"):
                block.append(instruction(bare))
                block[-1].count = number
        if unnamed or marked is not None:
            raise Unread(f"code before the first label of {f.name}, or a scalar function that does not end")
    return functions_by_name


def _head(text: str) -> CodeFunction:
    match = re.fullmatch(r"define (?:internal )?(.+?) @([\w.]+)\((.*)\)(?: noinline| nounwind)* #0 \{", text)
    if match is None:
        raise Unread(f"the line {text[:60]!r}")
    parameters: list[tuple[Type, str]] = []
    line = _Line(match[3])
    while line.peek():
        type_ = line.type()
        parameters.append((type_, line.take()))
        line.has(",")
    return CodeFunction(match[2], _Line(match[1]).type(), tuple(parameters))


_OF_C = ("aligned_alloc", "free", "malloc", "memset", "memcpy", "memmove")  # LLVM may insert calls of these
_DEFINED = re.compile(r"^define .*?@([\w.]+)\(.*?^\}", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"@(?!llvm\.)([\w.]+)\(")


def texts(module: str) -> dict[str, str]:
    """The text of each function of a module, without loop hints, whose numbering depends on the module."""
    return {match[1]: re.sub(r", !llvm\.loop !\d+", "", match[0]) for match in _DEFINED.finditer(module)}


def _scalar(lines: list[str], end: str, known: dict[str, str], number: int, bodies: Mapping[str, str]) -> Instruction:
    """One instruction for the code between marks.

    Raises:
        Unread: the digest of the code is not known to compute the function that the mark names.
    """
    _, _, name, *inputs = _OPERAND.findall(lines[0])
    output = end.split()[2]
    code = digest(lines[1:], inputs, output, bodies)
    last = next((line for line in lines[1:] if line.split()[0] == output), "")
    if not last or known.get(code) != called(name, inputs):
        raise Unread(f"code of {called(name, inputs)} that was not compared")
    type_ = instruction(last).type
    takes = type_.of(_TAKES.get(name, type_.element))
    operands = [Operand(takes, x) if x[0] == "%" else _Line(x).operand(takes) for x in inputs]
    return Instruction(output, f"scalar.{name}", type_, tuple(operands), count=number)


_TAKES = {"widened": "bfloat", "narrowed": "float"}  # functions whose operand has another type than the result
_OPERAND = re.compile(r"splat \(\w+ [^)]*\)|\S+")


def called(name: str, inputs: Sequence[str]) -> str:
    """The name of a function, with its operands where one of them is a constant, on which its code may depend."""
    words = [x if x[0] == "%" else repr(_number(x.split()[-1].rstrip(")"), "float")) for x in inputs]
    if all(x[0] == "%" for x in words):
        return name
    return f"{name}({', '.join(['x' if x[0] == '%' else x for x in words])})"


_LANEWISE = re.compile(r"<\d+ x (\w+)>")


def digest(lines: Sequence[str], inputs: Sequence[str], output: str, bodies: Mapping[str, str]) -> str:
    """The digest of code that computes a scalar function."""
    return hashlib.sha256(canonical(lines, inputs, output, bodies).encode()).hexdigest()[:16]


def canonical(lines: Sequence[str], inputs: Sequence[str], output: str, bodies: Mapping[str, str]) -> str:
    """The canonical text of lane-by-lane code: the same for codes that differ only in value names and number of lanes.

    The functions of the module that it calls, directly or indirectly, are appended unchanged, with their lanes.

    Raises:
        Unread: an instruction does not act lane by lane, or reads a value that is neither an input nor computed here.
    """
    below: dict[str, str] = {}
    calls = _CALLED.findall("\n".join(lines))
    if any(name not in bodies for name in calls):
        raise Unread("a scalar function that calls what its text does not say")
    while calls:  # a function without text is one of the C library
        name = calls.pop()
        if name in bodies and name not in below:
            below[name] = bodies[name]
            calls += _CALLED.findall(bodies[name].partition("\n")[2])
    names = {x: f"%x{j}" for j, x in enumerate(inputs) if x[0] == "%"}
    made: list[str] = []
    for line in lines:
        if re.search(r"shufflevector|element|\bbr\b|phi|load|store|reduce|poison", line):
            raise Unread("a scalar function that is not computed lane by lane")
        target = line.split()[0]
        for name in re.findall(r"%[\w.$]+", line.partition("=")[2]):
            if name not in names:
                raise Unread(f"a scalar function of {name}, which is not its operand")
        names[target] = f"%y{len(made)}"
        line = re.sub(r"%[\w.$]+", lambda m: names[m[0]], line)
        line = re.sub(r"splat \(\w+ ([^)]*)\)", r"\1", line)
        made.append(re.sub(r"\.v\d+([fi]\d+)", r".\1", _LANEWISE.sub(r"\1", line)))
    return "\n".join([*made, names.get(output, "?"), *[below[name] for name in sorted(below)]])


_BINARY = frozenset("add sub mul udiv urem sdiv srem and or xor shl lshr fadd fsub fmul fdiv frem".split())  # noqa: SIM905
_CASTS = frozenset("trunc sext zext sitofp uitofp fpext fptrunc bitcast".split())  # noqa: SIM905


_LOOP_HINT = re.compile(r"^(br .*), !llvm\.loop !\d+$")


def instruction(text: str) -> Instruction:
    """Parse one instruction.

    Raises:
        Unread: kernels have no such instruction.
    """
    line, name = _Line(_LOOP_HINT.sub(r"\1", text) if text[:2] == "br" else text), ""
    if line.tokens[1:2] == ["="]:
        name = line.take()
        line.take("=")
    made = _instruction(line, name, line.take())
    line.end()
    return made


_FORMS = {  # T: a type, X: an operand with its type, Y: one of the type of X, W: a word, N: a number, A: an alignment
    **dict.fromkeys(_BINARY, "X , Y"), **dict.fromkeys(("icmp", "fcmp"), "W X , Y"), **dict.fromkeys(_CASTS, "X to T"),
    **dict.fromkeys(("select", "insertelement", "shufflevector"), "X , X , X"), "extractelement": "X , X", "fneg": "X",
    "getelementptr": "T , X , X", "load": "T , X A", "store": "X , X A", "alloca": "[ N x T ] A",
}  # fmt: skip
_PARTS = {op: tuple(form.split()) for op, form in _FORMS.items()}


def _formed(line: _Line, name: str, op: str) -> Instruction:
    """Parse the rest of an instruction by its form in `_FORMS`."""
    xs, words, type_, align = list[Operand](), list[str](), VOID, 0
    for part in _PARTS[op]:
        if part == "X":
            xs.append(line.typed())
        elif part == "Y":
            xs.append(line.operand(xs[0].type))
        elif part == "T":
            type_ = line.type()
        elif part in "WN":
            words.append(line.take() if part == "W" else str(_number(line.take(), "i64")))
        elif part == "A":
            align = line.align()
        else:
            line.take(part)
    if op in ("icmp", "fcmp"):
        type_ = xs[0].type.of("i1")
    elif op in ("shufflevector", "extractelement"):
        type_ = Type(xs[0].type.element, xs[2].type.lanes if op == "shufflevector" else 0)
    elif type_ == VOID:
        type_ = xs[op == "select"].type
    if op == "getelementptr" and type_.lanes:
        raise Unread("an address of a vector")
    return Instruction(name, op, type_, tuple(xs), tuple(words), align)


def _instruction(line: _Line, name: str, op: str) -> Instruction:
    """Read the rest of an instruction's line."""
    if op in _FORMS:
        return _formed(line, name, op)
    if op == "freeze":  # of an address, which is that address
        x = line.typed()
        if x.type != _POINTER:
            raise Unread("a freeze of no address")
        return Instruction(name, "getelementptr", Type("i8", 0), (x, Operand(Type("i64", 0), lanes=(0,))))
    if op == "call":
        line.has("reassoc")  # the one fast-math flag that is accepted: sums in any order
    if op == "phi":
        type_, xs, labels = line.type(), list[Operand](), list[str]()
        while line.has("["):
            xs.append(line.operand(type_))
            line.take(",")
            labels.append(line.take()[1:])
            line.take("]")
            line.has(",")
        return Instruction(name, op, type_, tuple(xs), tuple(labels))
    if op == "br":
        xs = () if line.peek() == "label" else (line.typed(),)
        labels = list[str]()
        while line.has(",") or line.peek() == "label":
            line.take("label")
            labels.append(line.take()[1:])
        return Instruction(name, op, VOID, xs, tuple(labels))
    if op == "ret":
        type_ = line.type()
        return Instruction(name, op, type_, () if type_ == VOID else (line.operand(type_),))
    if op == "call":
        type_, target, xs = line.type(), line.take(), list[Operand]()
        line.take("(")
        while not line.has(")"):
            xs.append(line.typed())
            line.has(",")
        return Instruction(name, target, type_, tuple(xs), align=line.aligned)
    raise Unread(f"the instruction {op}")
