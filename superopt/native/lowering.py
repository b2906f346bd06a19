"""Lowering of a program with kernels to a static plan.

Every kernel becomes a step, in the order of the program.  What moves no bytes is the slot of its operand, or a view of
it.  A kernel writes its results straight into outputs.  An output that is an argument, a weight, a literal or another
output is a copy.  Where anything else is left to XLA there is no plan, and the ops say why.

A loop is a step around those of its body.  What is the same on each trip is the slot from outside, a row of a stack is
a view that moves.  The last value of a carry is written where the program wants it.  A carry that is a row of a result
as well is written there alone.  One that is read no more when the next value is written has a single slot, any other
has two by turns.

A choice is a step around those of its branches.  Its results are the slots of those of the branch that runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.ir import opaque
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.loops import LoopParts
from superopt.ir.program import Program, type_bytes
from superopt.ir.scalar import DTYPE
from superopt.ir.types import ITEMSIZE_BYTES, TensorType
from superopt.ir.views import begins_at, needs_memory, repeated
from superopt.kernels.choose.partition import STEPPED, has_step
from superopt.kernels.runtime.kernel import Kernel
from superopt.native.lowered import Lowered
from superopt.native.plan import (
    ARENA,
    ARGUMENT,
    COPY,
    MOVING,
    OUTPUT,
    WEIGHT,
    AnyStep,
    NativePlan,
    PlanBranch,
    PlanCarry,
    PlanChoice,
    PlanLoop,
    PlanSlot,
    PlanStep,
    PlanView,
)
from superopt.native.planner import offsets
from superopt.native.spans import spans

_WRITERS = frozenset(("opaque", "scan", "while"))  # ops that write their results; those of a choice lie elsewhere
_Made = tuple[Node, int]
"""A value: the node that makes it, and the number of the result."""


@dataclass(frozen=True, slots=True)
class LeftToXla:
    """The reason why a program has no plan.

    Attributes:
        ops: op that no kernel computes -> its number of nodes.
    """

    ops: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join([f"{count} x {op}" for op, count in sorted(self.ops.items())])


def lower(program: Program, kernels: Iterable[Kernel]) -> Lowered | LeftToXla:
    """Return the plan of a program whose opaque nodes are calls of these kernels, or the ops that have no step."""
    called = {kernel.digest: kernel for kernel in kernels}
    left = Counter(_left(program.hot, called))
    if left:
        return LeftToXla(left)
    return _Drafted(program, called).lowered()


def _left(graph: Graph, kernels: Mapping[str, Kernel]) -> Iterator[str]:
    """Yield the ops that have no step, each as often as it stands in the graph and in its bodies."""
    for node in dict.fromkeys((*graph.inputs, *graph.nodes())):
        strange = [t.dtype for t in node.types if t.dtype not in ITEMSIZE_BYTES]
        if node.op == "opaque" and _kernel_of(node) not in kernels:
            yield f"opaque {node['primitive']}"
        elif strange:
            yield f"{node.op} of {strange[0]}"
        elif has_step(node):
            yield from (op for body in bodies_of(node) for op in _left(body, kernels))
        elif node.op not in ("input", "result", "opaque") and needs_memory(node):
            yield node.op


def _kernel_of(node: Node) -> str:
    """Return the digest of the kernel that an opaque node calls; empty where it is no kernel."""
    operation = opaque.resolve(node["params_key"])
    return str(operation.identity[0]) if operation.primitive == "kernel" else ""  # pyright: ignore[reportIndexIssue]


def _source(node: Node) -> tuple[_Made, int]:
    """Return the value in whose bytes a node lies, and the offset."""
    number, offset = 0, 0
    while node.op not in ("input", "opaque", *STEPPED) and repeated(node) is None:
        if node.op == "result":
            number = node["index"]
        else:
            start = begins_at(node)
            assert start is not None, node
            offset += start * ITEMSIZE_BYTES[node.dtype]
        node = node.inputs[0]
    return (node, number), offset


@dataclass(slots=True)
class _Scoped:
    """The values of a graph: of the program, or of the body of a loop.

    Attributes:
        places: value -> slot.
        wanted: value -> the slot that its maker is to write.
        steps: the steps that compute them.
    """

    places: dict[_Made, int] = field(default_factory=dict["_Made", int])
    wanted: dict[_Made, int] = field(default_factory=dict["_Made", int])
    steps: list[AnyStep] = field(default_factory=list[AnyStep])


@dataclass(slots=True)
class _Drafted:
    """A plan in the making.

    Attributes:
        slots: those in the arena have no offset yet.
        constants: literal or value that repeats one -> slot.
    """

    program: Program
    kernels: Mapping[str, Kernel]
    slots: list[PlanSlot] = field(default_factory=list[PlanSlot])
    literals: list[np.ndarray] = field(default_factory=list[np.ndarray])
    constants: dict[Node, int] = field(default_factory=dict[Node, int])
    moving: int = 0

    def _slot(self, kind: str, at: int, type: TensorType) -> int:
        self.slots.append(PlanSlot(kind, at, type))
        return len(self.slots) - 1

    def _moving(self, type: TensorType) -> int:
        self.moving += 1
        return self._slot(MOVING, self.moving - 1, type)

    def _view(self, values: _Scoped, of: int, type: TensorType, at: int, stride: int = 0) -> int:
        """Return a new slot that lies in another one."""
        slot = self._moving(type)
        values.steps.append(PlanView(slot, of, at, stride))
        return slot

    def _place(self, values: _Scoped, node: Node) -> int:
        """Return the slot of a value; a literal, or a part of another value, gets one when it is first read."""
        (maker, number), offset = _source(node)
        if repeated(maker) is not None:
            return self._constant(maker)
        whole = values.places[maker, number]
        if type_bytes(node.type) == self.slots[whole].size_bytes:
            return whole
        return self._view(values, whole, node.type, offset)

    def _constant(self, node: Node) -> int:
        if node not in self.constants:
            at = len(self.program.prepared_inputs) + len(self.literals)
            self.constants[node] = self._slot(WEIGHT, at, node.type)
            shape: tuple[int, ...] = node.shape  # pyright: ignore[reportAssignmentType] (sizes are concrete here)
            self.literals.append(np.full(shape, repeated(node), DTYPE[node.dtype]))
        return self.constants[node]

    def _result(self, values: _Scoped, made: _Made, type: TensorType) -> int:
        """Return the slot that the maker of a value writes."""
        slot = values.wanted.get(made)
        values.places[made] = self._slot(ARENA, 0, type) if slot is None else slot
        return values.places[made]

    def run(self, values: _Scoped, graph: Graph) -> None:
        """Add the steps of a graph."""
        for node in graph.nodes():
            if node.op == "opaque":
                self._call(values, node)
            elif node.op == "scan":
                self._scan(values, node)
            elif node.op == "while":
                self._while(values, node)
            elif node.op == "cond":
                self._choice(values, node)

    def _call(self, values: _Scoped, node: Node) -> None:
        kernel = self.kernels[_kernel_of(node)]
        reads = [self._place(values, x) for x in node.inputs]
        writes = [self._result(values, (node, number), type) for number, type in enumerate(node.types)]
        scratch = [self._slot(ARENA, 0, TensorType(b.shape, b.dtype)) for b in kernel.scratch]
        values.steps.append(PlanStep(kernel.digest, tuple(reads), tuple(writes), tuple(scratch)))

    def _copy(self, values: _Scoped, node: Node, to: int) -> None:
        values.steps.append(PlanStep(COPY, (self._place(values, node),), (to,)))

    def _scan(self, values: _Scoped, node: Node) -> None:
        body, inner, count = node["body"], _Scoped(), int(node["num_carry"])
        fixed, carries, rows = LoopParts(node).given
        inner.places = {(x, 0): self._place(values, operand) for x, operand in fixed}
        for x, operand in rows:
            inner.places[x, 0] = self._row(inner, self._place(values, operand), x.type, node)
        late: list[tuple[Node, int]] = []
        for number, row in enumerate(body.outputs[count:], count):
            slot = self._row(inner, self._result(values, (node, number), node.types[number]), row.type, node)
            if _is_written_here(row) and _source(row)[0] not in inner.wanted:
                inner.wanted[_source(row)[0]] = slot
            else:
                late.append((row, slot))
        self._loop(values, inner, node, carries, late)

    def _row(self, inner: _Scoped, stack: int, type: TensorType, loop: Node) -> int:
        """Return the slot of the row of a trip."""
        size, last = type_bytes(type), int(loop["length"]) - 1
        return self._view(inner, stack, type, last * size if loop["reverse"] else 0, -size if loop["reverse"] else size)

    def _while(self, values: _Scoped, node: Node) -> None:
        of_cond, inner = node["cond_nconsts"], _Scoped()
        end = of_cond + node["body_nconsts"]
        inputs = node["body"].inputs
        fixed = zip(inputs[: end - of_cond], node.inputs[of_cond:end], strict=True)
        inner.places = {(x, 0): self._place(values, operand) for x, operand in fixed}
        self._loop(values, inner, node, list(zip(inputs[end - of_cond :], node.inputs[end:], strict=True)), [])

    def _choice(self, values: _Scoped, node: Node) -> None:
        index, *given = [self._place(values, x) for x in node.inputs]
        branches: list[PlanBranch] = []
        for branch in node["branches"]:
            inner = _Scoped({(x, 0): slot for x, slot in zip(branch.inputs, given, strict=True)})
            self.run(inner, branch)
            results = tuple([self._place(inner, x) for x in branch.outputs])
            branches.append(PlanBranch(tuple(inner.steps), results))
        slots = tuple([self._moving(type) for type in node.types])
        values.places |= {(node, number): slot for number, slot in enumerate(slots)}
        values.steps.append(PlanChoice(index, slots, tuple(branches)))

    def _loop(
        self,
        values: _Scoped,
        inner: _Scoped,
        node: Node,
        carries: Sequence[tuple[Node, Node]],
        late: list[tuple[Node, int]],
    ) -> None:
        """Add a loop.

        Args:
            values: those of the graph that it stands in.
            inner: those of its body, without the carries.
            node: the loop.
            carries: inputs of the body that are carried, and their values before the loop.
            late: results of a trip that no step writes where they belong, and their slots.
        """
        body, trips = node["body"], int(node["length"]) if node.op == "scan" else 0
        order = _BodyOrder(body)
        for value, _ in late:
            order.copied(value)
        rows, written = dict(inner.wanted), dict[int, int]()
        firsts = [self._place(values, operand) for _, operand in carries]
        changing = [i for i, (x, _) in enumerate(carries) if body.outputs[i] is not x]
        for i, (x, _) in enumerate(carries):
            inner.places[x, 0] = values.places[node, i] = self._moving(x.type) if i in changing else firsts[i]
            source, here = _source(body.outputs[i])[0], _is_written_here(body.outputs[i])
            if i in changing and not (here and source in rows):
                fresh = here and source not in inner.wanted
                inner.wanted |= {source: -1} if fresh else {}  # its slot is known further on
                written[i] = order.made(source[0]) if fresh else order.copied(body.outputs[i])
        made: list[PlanCarry] = []
        for i in changing:
            x, source = carries[i][0], _source(body.outputs[i])[0]
            slot, turns = inner.places[x, 0], tuple[int, ...]()
            if i not in written:
                made.append(PlanCarry(slot, firsts[i], rows[source]))
                continue
            last = self._result(values, (node, i), x.type) if trips else self._slot(ARENA, 0, x.type)
            following = last
            if order.last_read(x) >= written[i]:
                following, other = self._moving(x.type), self._slot(ARENA, 0, x.type)
                turns = (last, other) if trips % 2 else (other, last)
            made.append(PlanCarry(slot, firsts[i], following, turns))
            if inner.wanted.get(source) == -1 and order.made(source[0]) == written[i]:
                inner.wanted[source] = following
            else:
                late.append((body.outputs[i], following))
        self.run(inner, body)
        for value, slot in late:
            self._copy(inner, value, slot)
        before, goes_on = _Scoped(), 0
        if node.op == "while":
            goes_on = self._condition(values, before, node, [inner.places[x, 0] for x, _ in carries])
        steps, first = (tuple(inner.steps), tuple(before.steps))
        values.steps.append(PlanLoop(trips, tuple(made), steps, first, goes_on))
        for i in range(len(carries)):
            wanted, place = values.wanted.get((node, i)), values.places[node, i]
            if wanted is not None and wanted != place:
                values.steps.append(PlanStep(COPY, (place,), (wanted,)))
                values.places[node, i] = wanted

    def _condition(self, values: _Scoped, before: _Scoped, node: Node, carried: Sequence[int]) -> int:
        """Add the steps of the condition of a loop, and return the slot of its result."""
        cond, count = node["cond"], node["cond_nconsts"]
        fixed = [self._place(values, operand) for operand in node.inputs[:count]]
        before.places = {(x, 0): slot for x, slot in zip(cond.inputs, (*fixed, *carried), strict=True)}
        self.run(before, cond)
        return self._place(before, cond.outputs[0])

    def lowered(self) -> Lowered:
        """Return the plan with offsets in the arena."""
        program, values = self.program, _Scoped()
        for kind, nodes in ((WEIGHT, program.prepared_inputs), (ARGUMENT, program.live_inputs)):
            for at, node in enumerate(nodes):
                values.places[node, 0] = self._slot(kind, at, node.type)
        outputs = [self._slot(OUTPUT, number, node.type) for number, node in enumerate(program.hot.outputs)]
        for slot, node in zip(outputs, program.hot.outputs, strict=True):
            if _is_written_here(node):
                values.wanted.setdefault(_source(node)[0], slot)
        self.run(values, program.hot)
        for slot, node in zip(outputs, program.hot.outputs, strict=True):
            if values.wanted.get(_source(node)[0]) != slot:
                self._copy(values, node, slot)
        lives = spans(self.slots, values.steps)
        inner = [i for i, slot in enumerate(self.slots) if slot.kind == ARENA]
        at, arena_bytes = offsets([lives[i] for i in inner])
        for i, offset in zip(inner, at, strict=True):
            self.slots[i] = PlanSlot(ARENA, offset, self.slots[i].type)
        plan = NativePlan(tuple(self.slots), tuple(values.steps), arena_bytes)
        called = {step.kernel: self.kernels[step.kernel] for step in plan.every_step() if step.kernel != COPY}
        return Lowered(plan, called, tuple(self.literals), tuple([lives[i] for i in inner]))


def _is_written_here(node: Node) -> bool:
    """Whether a step can write a value where it is wanted: all of what a kernel or a loop of its graph makes."""
    (maker, number), offset = _source(node)
    return maker.op in _WRITERS and not offset and type_bytes(node.type) == type_bytes(maker.types[number])


class _BodyOrder:
    """The steps of a body and the copies behind them, in their order, and what they read of its inputs."""

    def __init__(self, body: Graph) -> None:
        self._made: dict[Node, int] = {}
        self._last: dict[Node, int] = {}
        self._count = 0
        for node in body.nodes():
            if node.op in ("opaque", *STEPPED):
                self._made[node] = self._count
                self._read(node.inputs)

    def _read(self, nodes: Iterable[Node]) -> None:
        self._last |= {x: self._count for node in nodes for x in _origins(node)}
        self._count += 1

    def copied(self, value: Node) -> int:
        """Add a copy of a value, and return its number."""
        self._read((value,))
        return self._count - 1

    def made(self, maker: Node) -> int:
        """Return the number of the step that makes a value."""
        return self._made[maker]

    def last_read(self, x: Node) -> int:
        """Return the number of the last step that reads an input of the body."""
        return self._last.get(x, -1)


def _origins(node: Node) -> Iterator[Node]:
    """Yield the inputs in whose bytes a value may lie: loops and branches may hand on what they were given."""
    (maker, number), _ = _source(node)
    if maker.op == "input":
        yield maker
    elif maker.op == "while":
        yield from _origins(maker.inputs[maker["cond_nconsts"] + maker["body_nconsts"] + number])
    elif maker.op == "scan" and number < maker["num_carry"]:
        yield from _origins(maker.inputs[maker["num_consts"] + number])
    elif maker.op == "cond":
        for branch in maker["branches"]:
            given = dict(zip(branch.inputs, maker.inputs[1:], strict=True))
            yield from (y for x in _origins(branch.outputs[number]) for y in _origins(given[x]))
