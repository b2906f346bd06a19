"""Rewriting of kernels into the field: every number from memory becomes a word, every access is checked.

Values are of three kinds.  *Control* values are integers and conditions made of constants, loop counters and the number
of the task; they stay as they are.  *Data* values are floats and conditions on floats; they become elements of the
field.  *Pointers* become two values, the description of an array and an offset in bytes.  Branches, masks and addresses
must be control, else the kernel is refused: hence the elements that are read and written do not depend on the data.
The exception is the address of a load: an *index* is made of integers in memory, a *place* is an address made of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from verifier.kernels.field import ORDERED, Field, P, Unread
from verifier.kernels.reader import BYTES, DATA, FLOATING, VOID, CodeFunction, Instruction, Operand, Type
from verifier.kernels.watched import CODES, DOUBT, POINTERS, Words, library

CodeType = Literal["control", "data", "pointer", "index", "place"]
_SAME_VALUE = ("fpext", "fptrunc")  # the identity up to rounding
_FUNCTIONS = {"llvm.sqrt": "sqrt", "llvm.fabs": "abs", "llvm.floor": "floor", "llvm.ceil": "ceil",
              "llvm.roundeven": "round_even", "llvm.round": "round_away"}  # fmt: skip
_ROUNDED = ("scalar.rounded", "scalar.narrowed", "scalar.widened")  # to 16 bits and back: the identity up to rounding
_SHORT = ("i16", "bfloat")  # types that hold the bits of a 16-bit float
_INFINITE = float("inf")
_ARITHMETIC: dict[str, Callable[[Words, list[str]], str]] = {  # of floats, and of conditions
    "fadd": lambda w, x: w.call("add", *x), "fsub": lambda w, x: w.call("sub", *x),
    "fneg": lambda w, x: w.call("sub", 0, *x), "fmul": lambda w, x: w.call("mul", *x),
    "fdiv": lambda w, x: w.call("mul", x[0], w.call("inverse", x[1])), "and": lambda w, x: w.call("mul", *x),
    "frem": lambda w, x: w.call("pair", w.field.key("rem"), *x),
    "or": lambda w, x: w.no(w.least(w.call("mul", *[w.no(w.least(y)) for y in x]))),
}  # fmt: skip
_EXTREMA = ("llvm.smin", "llvm.smax", "llvm.umin", "llvm.umax")
_MOVES = ("extractelement", "insertelement", "shufflevector")


def rewritten(functions: Mapping[str, CodeFunction], phases: Sequence[tuple[str, int]], field: Field, cpu: str) -> str:
    """A module with `void kernel.NAME(ptr, i64, i64)` for each phase; its parameters are arrays, offset and task.

    Args:
        functions: functions of the kernel.
        phases: functions over tasks, and their numbers of tasks.
        field: source of constants and random functions.
        cpu: function attributes for the processor.

    Raises:
        Unread: a construct has no meaning in the field.
    """
    reached: set[str] = set()
    for name, _ in phases:
        reached |= _reached(name, functions)
        if [type_ for type_, _ in functions[name].parameters] != [Type("ptr", 0), Type("i64", 0)]:
            raise Unread(f"a phase {name} of other parameters")
    made = [_Rewriter(functions[name], functions, field).text() for name in sorted(reached)]
    text = "\n".join([library("\n".join(made), field), *made])
    return text.replace(" noinline {", " noinline #0 {") + f"\nattributes #0 = {{ {cpu} }}\n"


def _reached(name: str, functions: Mapping[str, CodeFunction], above: tuple[str, ...] = ()) -> set[str]:
    """A function and those that it calls, directly or indirectly; recursion is refused."""
    if name not in functions or name in above:
        raise Unread(f"{name}, which calls itself" if above else f"a phase {name} without a function")
    called = {i.op[1:] for block in functions[name].blocks.values() for i in block if i.op.startswith("@")}
    return {name}.union(*[_reached(other, functions, (*above, name)) for other in called & functions.keys()])


class _Rewriter:
    """The rewriting of one function."""

    def __init__(self, f: CodeFunction, functions: Mapping[str, CodeFunction], field: Field) -> None:
        self.f, self.functions, self.field = f, functions, field
        self.kinds: dict[str, CodeType] = {}
        self.types: dict[str, Type] = {}
        self.defined: dict[str, Instruction] = {}
        self.lines: list[str] = []
        self.heap: list[str] = []
        self.meant: dict[str, tuple[str | int, int, int]] = {}  # indices and places: see `_meant`
        self.numbers = itertools.count()
        self._memory = {"ret": self._return, "phi": self._phi, "alloca": self._room, "@aligned_alloc": self._room,
                        "getelementptr": self._address, "load": self._load, "store": self._store}  # fmt: skip

    def text(self) -> str:
        """The text of the rewritten function."""
        f = self.f
        named = [i for block in f.blocks.values() for i in block if i.name]
        self.defined = {i.name: i for i in named}
        if len(self.defined) < len(named):
            raise Unread(f"two values of one name in {f.name}")
        self.types = {name: type_ for type_, name in f.parameters} | {i.name: _result(i) for i in named}
        self.kinds = {name: _kind_of(type_) for name, type_ in self.types.items()}
        read = [i.name for i in named if i.op == "load" and i.type.element == "i32"]
        self.kinds |= dict.fromkeys(read, "index")
        self.meant = {name: (name, -(1 << 31), (1 << 31) - 1) for name in read}
        self._find_data()
        self.heap = sorted([i.name for i in named if i.op == "@aligned_alloc"])
        if f.returns != VOID and f.returns.element not in FLOATING:
            raise Unread(f"{f.name}, which returns {f.returns}")
        order = list(f.blocks)
        for label, block in f.blocks.items():
            if not block or block[-1].op not in ("br", "ret") or any(i.op in ("br", "ret") for i in block[:-1]):
                raise Unread(f"the block {label}")
            self.lines.append(f"{label}:")
            freed = sorted([i.operands[0].name for i in block if i.op == "@free"])
            last = block[len(block) - 1 - len(freed) : -1]
            if freed != (self.heap if block[-1].op == "ret" else []) or any(i.op != "@free" for i in last):
                raise Unread("memory that is not freed once and at the end")
            for i in block:
                self._one(i, order.index(label))
        pointers, typed = {name for type_, name in f.parameters if type_.element == "ptr"}, [x for _, x in f.parameters]
        typed = [f"ptr {x}.d, i64 {x}.o" if x in pointers else f"{self._held(x)} {x}" for x in typed]
        returns = "void" if f.returns == VOID else str(_word(f.returns))
        nothing = "ret void" if f.returns == VOID else f"ret {returns} zeroinitializer"
        head = f"define {returns} @kernel.{f.name}({', '.join(typed)}) noinline {{"
        return "\n".join([head, *self.lines, "out.of.fuel:", f"  {nothing}", "}"])

    def _find_data(self) -> None:
        """Propagate kinds: integers and conditions made of data become data or indices, addresses of indices places."""
        changed = True
        while changed:
            changed = False
            for i in self.defined.values():
                kinds, address = {self._kind(x) for x in i.operands}, i.op == "getelementptr"
                made: CodeType = "place" if address else "index" if "index" in kinds else "data"
                reasons = kinds & {"index", "place"} if address else i.op == "fcmp" or kinds & {"data", "index"}
                if reasons and self.kinds[i.name] == ("pointer" if address else "control"):
                    self.kinds[i.name], changed = made, True

    def _kind(self, x: Operand) -> CodeType:
        if not x.name:
            return _kind_of(x.type)
        if x.name not in self.kinds or self.types[x.name] != x.type:
            raise Unread(f"{x.name}, which is no value of type {x.type}")
        return self.kinds[x.name]

    def _held(self, name: str) -> Type:
        return _word(self.types[name]) if self.kinds[name] == "data" else self.types[name]

    # ---- operands

    def _control(self, x: Operand, moved: bool = False) -> str:
        """The text of an operand that must depend neither on data nor on poison."""
        if self._kind(x) != "control" or (not moved and self._open(x)):
            raise Unread(f"control that depends on data: {x.name or x.type}")
        return x.name or _constant(x.type, x.lanes)

    def _open(self, x: Operand) -> set[int]:
        """The lanes of an operand that are poison."""
        i = self.defined.get(x.name)
        if i is None or i.op not in _MOVES[1:]:
            return {j for j, value in enumerate(x.lanes) if value is None}
        if i.op == "insertelement":
            lane = {int(v or 0) for v in i.operands[2].lanes}
            return self._open(i.operands[0]) - lane | (lane if self._open(i.operands[1]) else set())
        both = self._open(i.operands[0]) | {j + i.operands[0].type.lanes for j in self._open(i.operands[1])}
        return {j for j, lane in enumerate(i.operands[2].lanes) if lane is None or lane in both}

    def _data(self, x: Operand, moved: bool = False) -> str:
        """An operand as elements of the field; computing with poison is reported in `@unwritten`."""
        if not moved and self._open(x):
            self.lines.append("  store i64 1, ptr @unwritten")
        if not x.name:
            if x.type.element in ("i16", "i32") and any(x.lanes):
                raise Unread("bits of a float that are a constant")
            return _constant(_word(x.type), [self.field.constant(None if v is None else float(v)) for v in x.lanes])
        if self._kind(x) == "data":
            return x.name
        if x.type.element != "i1":
            raise Unread(f"an integer {x.name} as a value")
        return self._number(x, self._words(x.type.lanes), False)

    def _pointer(self, x: Operand, read: bool = False) -> tuple[str, str]:
        if self._kind(x) not in ("pointer", "place" if read else "pointer") or not x.name:
            raise Unread("a pointer that is a constant, or made of integers in memory")
        return self._array(x.name), f"{x.name}.o"

    def _array(self, name: str) -> str:
        """The name of the description of the array that an address points into."""
        i = self.defined.get(name)
        return self._array(i.operands[0].name) if i is not None and i.op == "getelementptr" else f"{name}.d"

    def _value(self, text: str) -> str:
        return self._words(0).value(text)

    def _words(self, lanes: int) -> Words:
        return Words(lanes, self.field, (self.lines, self.numbers))  # one name after the other in the whole function

    def _is(self, name: str, type_: Type, value: str) -> None:
        """Give a value a name: rename the last instruction if it made the value, else emit a copy."""
        made = f"  {value} = "
        if value.startswith("%field-") and self.lines[-1].startswith(made):
            self.lines[-1] = self.lines[-1].replace(made, f"  {name} = ", 1)
        else:
            self.lines.append(f"  {name} = bitcast {type_} {value} to {type_}")

    # ---- instructions

    def _one(self, i: Instruction, block: int) -> None:
        kind = self.kinds.get(i.name)
        if i.op in _MOVES[:2] and (i.operands[-1].lanes or (None,))[0] not in range(i.operands[0].type.lanes):
            raise Unread("a lane that is not known")
        if i.op == "br":
            self._branch(i, block)
        elif i.op in self._memory:
            self._memory[i.op](i)
        elif i.op.startswith("@"):
            self._call(i)
        elif kind == "control":
            self._plain(i)
        elif kind == "data":
            self._in_field(i)
        elif kind == "index":
            self._integer(i)
        else:
            raise Unread(f"{i.op} of pointers")

    def _return(self, i: Instruction) -> None:
        self.lines += [f"  call void @free(ptr {name}.data)" for name in self.heap]
        self.lines.append(f"  ret {f'{_word(i.type)} {self._data(i.operands[0])}' if i.operands else 'void'}")

    def _store(self, i: Instruction) -> None:
        x, to = i.operands
        if x.type.element not in CODES or x.type.element == "ptr":
            raise Unread(f"a store of {x.type}")
        place = self._place(i, to, x.type, True)
        self.lines.append(f"  store {_word(x.type)} {self._data(x)}, ptr {place}, align 8")

    def _branch(self, i: Instruction, block: int) -> None:
        order = list(self.f.blocks)
        if any(label not in self.f.blocks for label in i.words):
            raise Unread("a branch to no block")
        if len(i.words) == 2:
            if any(order.index(x) <= block for x in i.words):
                raise Unread("a condition at the end of a loop")
            flag = self._control(i.operands[0])
            self.lines.append(f"  br i1 {flag}, label %{i.words[0]}, label %{i.words[1]}")
        elif order.index(i.words[0]) <= block:
            self.lines.append(f"  br i1 {self._value('call i1 @tick()')}, label %{i.words[0]}, label %out.of.fuel")
        else:
            self.lines.append(f"  br label %{i.words[0]}")

    def _phi(self, i: Instruction) -> None:
        if self.kinds[i.name] == "pointer":
            sides = [self._pointer(x) for x in i.operands]
            for part, type_ in enumerate(("ptr", "i64")):
                pairs = ", ".join([f"[ {s[part]}, %{b} ]" for s, b in zip(sides, i.words, strict=True)])
                self.lines.append(f"  {i.name}.{'do'[part]} = phi {type_} {pairs}")
            return
        data = self.kinds[i.name] == "data"
        if data and any(x.name and self._kind(x) != "data" for x in i.operands):
            raise Unread("control and data that meet")
        values = [self._data(x) if data else self._control(x) for x in i.operands]
        pairs = ", ".join([f"[ {v}, %{b} ]" for v, b in zip(values, i.words, strict=True)])
        self.lines.append(f"  {i.name} = phi {self._held(i.name)} {pairs}")

    def _room(self, i: Instruction) -> None:
        """Emit an array of the function on the stack or heap, filled with the word of unwritten memory."""
        d, data = f"{i.name}.d", f"{i.name}.data"
        self.lines.append(f"  {d} = alloca %array")
        if i.op == "alloca":
            count, code = int(i.words[0]), CODES.get(i.type.element, 0)
            if i.type.element not in FLOATING or i.type.lanes or 0 < i.align < BYTES[i.type.element]:
                raise Unread(f"an array of {i.type} on the stack")
            size = count * BYTES[i.type.element]
            self.lines.append(f"  {data} = alloca [{count} x i64]")
        else:  # the element type is unknown: as many words as bytes
            align, size = [int((x.lanes or (0,))[0] or 0) for x in i.operands]
            if align < BYTES["ptr"] or align & (align - 1) or size <= 0 or size % align:
                raise Unread("a size of memory")
            count, code = size, 0
            self.lines.append(f"  {data} = call ptr @malloc(i64 {8 * count})")
        self.lines.append(f"  call void @room(ptr {d}, ptr {data}, i64 {count}, i64 {size}, i64 {code})")
        self.lines.append(f"  {i.name}.o = add i64 0, 0")

    def _address(self, i: Instruction) -> None:
        base, at = i.operands
        _, o = self._pointer(base, True)
        index, place = self._kind(at) == "index", self._kind(base) == "place"
        step, size = "0" if index else self._control(at), BYTES.get(i.type.element, 0)
        lanes = max(base.type.lanes, at.type.lanes)
        wide = Type("i64", lanes)
        odd = not size or at.type.element not in ("i32", "i64")
        if odd or (lanes and (not at.type.lanes or index or place)):
            raise Unread("addresses of lanes moved by one number, made of integers in memory, or in bits")
        o = o if base.type.lanes else self._spread(o, wide)
        if index or place:
            word, low, high = self._meant(at) if index else (0, 0, 0)
            before, least, most = self._meant(base) if place else (0, 0, 0)
            w = self._words(0)
            self.meant[i.name] = (w("add", w("mul", word, size), before), least + size * low, most + size * high)
        if at.name and not index:
            if at.type.element != "i64":
                step = self._value(f"sext {at.type} {step} to {wide}")
            step = self._value(f"mul {wide} {step}, {_constant(wide, [size] * max(lanes, 1))}")
        else:
            step = _constant(wide, [size * int(x or 0) for x in at.lanes or [0]])
        self.lines.append(f"  {i.name}.o = add {wide} {o}, {step}")

    def _spread(self, x: str, wide: Type) -> str:
        """Broadcast a word to all lanes, if the type has lanes."""
        if not wide.lanes:
            return x
        one = self._value(f"insertelement {wide} poison, i64 {x}, i64 0")
        return self._value(f"shufflevector {wide} {one}, {wide} poison, <{wide.lanes} x i32> zeroinitializer")

    def _place(self, i: Instruction, at: Operand, type_: Type, writes: bool, end: str | int | None = None) -> str:
        """The address of an element, or of the first of a vector, after a check that it may be accessed."""
        d, o = self._pointer(at, end is not None)
        o = o if end is None else self._value(f"add i64 {o}, {end}")
        if at.type.lanes or not 0 < i.align <= BYTES[type_.element]:
            raise Unread("an address more aligned than its elements")
        return self._value(
            f"call ptr @place(ptr {d}, i64 {o}, i64 {max(type_.lanes, 1)}, i64 {CODES[type_.element]}, "
            f"i1 {'true' if writes else 'false'}, i64 {i.count + DOUBT * (end is not None)})"
        )

    def _load(self, i: Instruction) -> None:
        if i.type.element not in CODES:
            raise Unread(f"a load of {i.type}")
        if self._kind(i.operands[0]) == "place":
            return self._looked_up(i)
        place = self._place(i, i.operands[0], i.type, False)
        if i.type.element == "ptr":
            kind = self._value(f"getelementptr %array, ptr {self._pointer(i.operands[0])[0]}, i64 0, i32 5")
            pointers = self._value(f"icmp eq i64 {self._value(f'load i64, ptr {kind}')}, {POINTERS}")
            loaded = self._value(f"load ptr, ptr {place}")
            held = self._value(f"and i1 {pointers}, {self._value(f'icmp ne ptr {place}, @nowhere')}")
            self.lines.append(f"  {i.name}.d = select i1 {held}, ptr {loaded}, ptr @nobody")
            self.lines.append(f"  {i.name}.o = add i64 0, 0")
        else:
            self.lines.append(f"  {i.name} = load {_word(i.type)}, ptr {place}, align 8")

    def _plain(self, i: Instruction) -> None:
        """Copy an instruction on control values."""
        xs = [self._control(x, i.op in _MOVES[1:]) for x in i.operands]
        t = [x.type for x in i.operands]
        typed = ", ".join([f"{a} {x}" for a, x in zip(t, xs, strict=True)])
        if i.op in ("trunc", "sext", "zext"):
            typed = f"{typed} to {i.type}"
        elif i.op in ("icmp", "add", "sub", "mul", "and", "or", "xor") or (
            i.op in ("udiv", "urem") and i.operands[1].lanes and all(i.operands[1].lanes)
        ):
            typed = f"{t[0]} {xs[0]}, {xs[1]}"
        elif i.op not in ("select", *_MOVES):
            raise Unread(f"{i.op} of {i.type}")
        self.lines.append(f"  {i.name} = {' '.join([i.op, *i.words])} {typed}")

    def _in_field(self, i: Instruction) -> None:
        """Write an instruction on data as the same operation in the field."""
        op, xs = i.op, i.operands
        type_ = _word(i.type)
        w = self._words(i.type.lanes)
        if op in _MOVES:
            typed, moved = list[str](), op != _MOVES[0]
            for j, x in enumerate(xs):
                index = (op != "shufflevector" and j == len(xs) - 1) or (op == "shufflevector" and j == 2)
                typed.append(f"{x.type} {self._control(x)}" if index else f"{_word(x.type)} {self._data(x, moved)}")
            self.lines.append(f"  {i.name} = {op} {', '.join(typed)}")
            return
        if op == "select" and i.type.element not in ("i32", *_SHORT):
            self._is(i.name, type_, self._select(i, w))
            return
        if op in ("sitofp", "uitofp") and self._kind(xs[0]) == "control":
            self._is(i.name, type_, self._number(xs[0], w, op == "sitofp"))
            return
        if op == "fcmp":
            self._is(i.name, type_, self._compared(i, w))
            return
        kinds = {i.type.element, xs[-1].type.element}
        same = op in (*_SAME_VALUE, *_ROUNDED) or (op == "bitcast" and kinds == {*_SHORT})
        bits = {"i32", *_SHORT} & kinds and (op in _SAME_VALUE or not same)
        if bits or ((op == "icmp" or i.type.element == "i8") and not self._condition(i)):
            raise Unread(f"{op} of integers that are data")
        if i.type.element == "half" and op != "fptrunc":
            raise Unread(f"{op} of 16-bit floats")
        values = [self._data(x) for x in xs]
        if same or op in ("icmp", "zext") or (op == "uitofp" and xs[0].type.element == "i1"):
            made = values[0]
        elif op.startswith("scalar."):
            keys: list[str | int] = [self.field.key(op.removeprefix("scalar."))]
            made = w.call("hash" if len(values) == 1 else "pair", *keys, *values)
        elif op in _ARITHMETIC and (op[0] == "f" or i.type.element == "i1"):
            made = _ARITHMETIC[op](w, values)
        elif op == "xor" and i.type.element == "i1" and not xs[1].name and set(xs[1].lanes) == {1}:
            made = w.no(w.least(values[0]))
        else:
            raise Unread(f"{op} of {i.type}")
        self._is(i.name, type_, made)

    def _condition(self, i: Instruction) -> bool:
        """Whether an instruction converts a condition to a byte, or a byte that is 0 or 1 to a condition."""
        of, last = i.operands[0].type.element, i.operands[-1]
        compared = (i.op, of, i.words) == ("icmp", "i8", ("ne",)) and not last.name and not any(last.lanes)
        return of == "i1" if i.op == "zext" else compared

    def _number(self, x: Operand, w: Words, signed: bool) -> str:
        """A control integer as an element of the field."""
        text = self._control(x)
        if self.field.marks:
            return w.text(0)
        if x.type.element != "i64":
            text = self._value(f"{'sext' if signed else 'zext'} {x.type} {text} to {_word(x.type)}")
        rest = w("srem" if signed else "urem", text, P)
        return w.least(w("add", rest, P))

    def _compared(self, i: Instruction, w: Words) -> str:
        predicate, (a, b) = i.words[0], [self._data(x) for x in i.operands]
        if self.field.marks:
            return w("or", a, b)
        if predicate in ("uno", "ord"):  # values are finite
            return w.text(int(predicate == "ord"))
        of, limit = self.defined.get(i.operands[0].name), i.operands[1].lanes
        if predicate == "olt" and of is not None and of.op.startswith("@llvm.fabs.") and {*limit} == {_INFINITE}:
            return w.call("hash", self.field.key("is_finite"), self._data(of.operands[0]))
        name, swapped, denied = ORDERED.get(predicate[1:], ("", False, False))
        if not name or predicate[0] not in "ou":
            raise Unread(f"the comparison {predicate}")
        made = w.call(name, *((b, a) if swapped else (a, b)))
        return w.no(w.least(made)) if denied else made

    def _select(self, i: Instruction, w: Words) -> str:
        c, x, y = i.operands
        a, b = self._data(x), self._data(y)
        if self._kind(c) == "control":
            return self._value(f"select {c.type} {self._control(c)}, {_word(x.type)} {a}, {_word(y.type)} {b}")
        told = self.defined[c.name]
        if told.op == "fcmp" and told.words[0] == "uno" and not self.field.marks:
            return b
        if c.type.lanes != x.type.lanes:
            raise Unread("one condition for all lanes that depends on data")
        return w.call("choose", self._data(c), a, b)

    # ---- integers in memory

    def _meant(self, x: Operand) -> tuple[str | int, int, int]:
        """The word of an index, a constant or a place's offset, with its least and greatest possible value."""
        if self._kind(x) in ("index", "place") and x.name in self.meant:
            return self.meant[x.name]
        if x.name or len({*x.lanes}) != 1 or x.lanes[0] is None:
            raise Unread(f"integers in memory beside {x.name or x.type}")
        return int(x.lanes[0]), int(x.lanes[0]), int(x.lanes[0])

    def _integer(self, i: Instruction) -> None:
        """Rewrite an operation on integers from memory to a sum or multiple of their words, or to a token of them."""
        xs, sides, name = [self._meant(x) for x in i.operands], i.operands[1:], i.op
        told = self.defined.get(i.operands[0].name, i)
        (a, low, high), (b, least, most) = xs[-2:] if xs[1:] else (*xs, *xs)
        words = [a, b]
        if name == "select" and told.words == ("slt",) and {*sides} == {*told.operands}:
            name = "min" if sides == told.operands else "max"
            words.sort(key=lambda x: isinstance(x, int))
        elif name == "select":
            words = [xs[0][0], b, a]
        ends = {
            "sext": (low, high), "icmp slt": (0, 1), "add": (low + least, high + most),
            "mul": (low * least, high * least) if 0 <= least == most else None,
            "min": (min(low, least), min(high, most)), "max": (max(low, least), max(high, most)),
            "select": (min(low, least), max(high, most)),
        }.get(" ".join([name, *i.words]))  # fmt: skip
        w, bits = self._words(i.type.lanes), 31 if i.type.element == "i32" else 40
        inside = ends is not None and -1 << bits <= ends[0] and ends[1] < 1 << bits
        wraps = name == "add" and bits == 31  # a sum that may wrap is a token
        if ends is None or not (inside or wraps) or i.operands[-1].type.element not in ("i32", "i64"):
            raise Unread(f"{i.op} of integers in memory")
        if name in ("add", "mul") and inside:
            a = w(name, a, b)
        elif name != "sext":
            a = w.token({"icmp": "lt", "select": "select_n"}.get(name, name), *words)
        low, high = ends if inside else (-1 << bits, (1 << bits) - 1)
        self.meant[i.name] = a, low, high

    def _looked_up(self, i: Instruction) -> None:
        """Rewrite a load at a place made of integers in memory: the results are random functions of array and place."""
        (at,), w, wide = i.operands, self._words(i.type.lanes), _word(i.type)
        meant, *ends = self._meant(at)
        for end in ends:  # check both ends of the range of places
            self._place(i, at, i.type, False, self._value(f"add i64 {meant}, {end}") if self.field.marks else end)
        d, o = self._pointer(at, True)
        held = self._value(f"getelementptr %array, ptr {d}, i64 0, i32 6")
        table = self._spread(self._value(f"load i64, ptr {held}"), wide)
        first = self._spread(self._value(f"add i64 {o}, {meant}"), wide)
        word = self._value(f"add {wide} {first}, {_steps(i.type)}")
        made = w("lshr", w.token("", table, word), 33)
        self._is(i.name, wide, self._spread(str(meant), wide) if self.field.marks else made)

    # ---- calls

    def _call(self, i: Instruction) -> None:
        """Write a call: of another function of the code, or of an intrinsic in the field."""
        name = i.op[1:]
        if name in self.functions:
            self._own(i, self.functions[name])
            return
        stem = ".".join(name.split(".")[:2])
        w = self._words(i.type.lanes)
        if name == "free" or stem == "llvm.prefetch":  # heap arrays are freed only before a return
            return
        if stem == "llvm.fma":
            self._is(i.name, _word(i.type), w.call("fma", *[self._data(x) for x in i.operands]))
        elif stem in _FUNCTIONS:
            made = w.call("hash", self.field.key(_FUNCTIONS[stem]), self._data(i.operands[0]))
            self._is(i.name, _word(i.type), made)
        elif stem in _EXTREMA and self.kinds[i.name] == "control":
            typed = ", ".join([f"{i.type} {self._control(x)}" for x in i.operands])
            self.lines.append(f"  {i.name} = call {i.type} {i.op}({typed})")
        elif name.startswith("llvm.vector.reduce."):
            if self.kinds[i.name] != "data":
                raise Unread("a reduction of control")
            self._is(i.name, _word(i.type), self._reduced(name.split(".")[3], i))
        elif name.startswith(("llvm.masked.load.", "llvm.masked.gather.")):
            at, mask, other = i.operands
            self.lines.append(f"  {i.name} = {self._masked('gather', i, at, mask, other)}")
        elif name.startswith(("llvm.masked.store.", "llvm.masked.scatter.")):
            x, at, mask = i.operands
            self._value(self._masked("scatter", i, at, mask, x))
        else:
            raise Unread(f"a call of {name}")

    def _own(self, i: Instruction, f: CodeFunction) -> None:
        if [t for t, _ in f.parameters] != [x.type for x in i.operands] or f.returns != i.type:
            raise Unread(f"a call of {f.name} with other types")
        args: list[str] = []
        for x in i.operands:
            if x.type.element == "ptr":
                args.append("ptr {}, i64 {}".format(*self._pointer(x)))
            else:
                data = _kind_of(x.type) == "data"
                args.append(f"{_word(x.type)} {self._data(x)}" if data else f"{x.type} {self._control(x)}")
        returns = "void" if i.type == VOID else str(_word(i.type))
        self.lines.append(f"  {f'{i.name} = ' if i.name else ''}call {returns} @kernel.{f.name}({', '.join(args)})")

    def _reduced(self, monoid: str, i: Instruction) -> str:
        """Fold all lanes of a vector into one word, lane by lane; `or` is the negation of the product of negations."""
        x = i.operands[-1]
        some, flags = monoid == "or", monoid in ("and", "or") and x.type.element == "i1"
        if not flags and (x.type.element not in ("float", "double") or monoid not in ("fadd", "fmul")):
            raise Unread(f"a reduction {monoid} of {x.type}")
        w, whole = self._words(0), self._data(x)
        total = w.text(1) if flags else self._data(i.operands[0])
        for lane in range(x.type.lanes):
            one = self._value(f"extractelement {_word(x.type)} {whole}, i64 {lane}")
            one = w.no(w.least(one)) if some else one
            total = w.fold(w("add", total, one)) if monoid == "fadd" else w.call("mul", total, one)
        return w.no(w.least(total)) if some else total

    def _masked(self, way: str, i: Instruction, at: Operand, mask: Operand, x: Operand) -> str:
        """A masked access lane by lane; `x` is the value to store, or the result of lanes that are not loaded."""
        n, element = x.type.lanes, x.type.element
        if element not in {*CODES} - {"i32"} or i.align > BYTES[element] or not n or mask.type.lanes != n:
            raise Unread(f"a masked access of {x.type}")
        d, o = self._pointer(at)
        wide = Type("i64", n)
        if not at.type.lanes:
            o = self._value(f"add {wide} {self._spread(o, wide)}, {_steps(x.type)}")
        flags = self._value(f"zext {mask.type} {self._control(mask)} to {wide}")
        typed = ", ".join([f"{wide} {y}" for y in (o, flags, self._data(x))])
        return f"call {wide} @{way}.{n}(ptr {d}, {typed}, i64 {CODES[element]}, i64 {i.count})"


def _kind_of(type_: Type) -> CodeType:
    return "pointer" if type_.element == "ptr" else "data" if type_.element in DATA else "control"


def _result(i: Instruction) -> Type:
    if i.op in ("getelementptr", "alloca"):
        return Type("ptr", max([x.type.lanes for x in i.operands], default=0))
    return i.type


def _word(type_: Type) -> Type:
    return Type("i64", type_.lanes)


def _steps(type_: Type) -> str:
    """The offset of each lane in bytes from the address of a vector."""
    return _constant(_word(type_), [BYTES[type_.element] * j for j in range(max(type_.lanes, 1))])


def _constant(type_: Type, values: Sequence[float | int | None]) -> str:
    texts = [str(int(v or 0)) for v in values]
    if type_.element == "i1":
        texts = ["false" if x == "0" else "true" for x in texts]
    return f"<{', '.join([f'{type_.element} {x}' for x in texts])}>" if type_.lanes else texts[0]
