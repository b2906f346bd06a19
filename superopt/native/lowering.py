"""Lowering of a program with kernels to a static plan.

Every kernel becomes a step, in the order of the program.  What moves no bytes is the slot of its operand.  A kernel
writes its results straight into outputs.  An output that is an argument, a weight, a literal or another output is a
copy.  Where anything else is left to XLA there is no plan, and the ops say why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.ir import opaque
from superopt.ir.graph import Node
from superopt.ir.program import Program
from superopt.ir.scalar import DTYPE
from superopt.ir.types import ITEMSIZE_BYTES, TensorType
from superopt.kernels.choose.regions import is_empty, is_same_bytes
from superopt.kernels.runtime.entry import size_bytes
from superopt.kernels.runtime.kernel import Kernel
from superopt.native.plan import ARENA, ARGUMENT, COPY, OUTPUT, WEIGHT, NativePlan, PlanSlot, PlanStep
from superopt.native.planner import Lifetime, offsets


@dataclass(frozen=True, slots=True)
class LeftToXla:
    """The reason why a program has no plan.

    Attributes:
        ops: op that no kernel computes -> its number of nodes.
    """

    ops: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join([f"{count} x {op}" for op, count in sorted(self.ops.items())])


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program as a plan.

    Attributes:
        plan: its weights are the prepared tensors, then the literals.
        kernels: digest -> kernel.
        literals: values of the literals that steps read.
        lives: lifetimes of the values in the arena.
    """

    plan: NativePlan
    kernels: Mapping[str, Kernel]
    literals: tuple[np.ndarray, ...]
    lives: tuple[Lifetime, ...]

    @property
    def several(self) -> bool:
        """Whether it has several steps: one step alone is a single call inside XLA as well."""
        return len(self.plan.steps) > 1


def lower(program: Program, kernels: Iterable[Kernel]) -> Lowered | LeftToXla:
    """Return the plan of a program whose opaque nodes are calls of these kernels, or the ops that have no step."""
    called = {kernel.digest: kernel for kernel in kernels}
    left = Counter(_left(program, called))
    if left:
        return LeftToXla(left)
    draft = _Drafted(program, called)
    for node in program.hot.nodes():
        if node.op == "opaque":
            draft.call(node)
    draft.copy_outputs()
    return draft.lowered()


def _left(program: Program, kernels: Mapping[str, Kernel]) -> Iterator[str]:
    """Yield the ops that have no step, each as often as it stands in the program."""
    for node in dict.fromkeys((*program.hot.inputs, *program.hot.nodes())):
        strange = [t.dtype for t in node.types if t.dtype not in ITEMSIZE_BYTES]
        if node.op == "opaque" and _kernel_of(node) not in kernels:
            yield f"opaque {node['primitive']}"
        elif strange:
            yield f"{node.op} of {strange[0]}"
        elif node.op not in ("input", "literal", "result", "opaque") and not (is_empty(node) or is_same_bytes(node)):
            yield node.op


def _kernel_of(node: Node) -> str:
    """Return the digest of the kernel that an opaque node calls; empty where it is no kernel."""
    operation = opaque.resolve(node["params_key"])
    return str(operation.identity[0]) if operation.primitive == "kernel" else ""  # pyright: ignore[reportIndexIssue]


def _source(node: Node) -> tuple[Node, int]:
    """Return the node that made the bytes of a node, and the number of the result."""
    number = 0
    while node.op not in ("input", "literal", "opaque") and not is_empty(node):
        number = node["index"] if node.op == "result" else number
        node = node.inputs[0]
    return node, number


@dataclass(slots=True)
class _Drafted:
    """A plan in the making.

    Attributes:
        slots: those in the arena have no offset yet.
        places: maker of bytes, and number of the result -> slot.
        outputs: the same -> number of the output that the kernel writes it to.
    """

    program: Program
    kernels: Mapping[str, Kernel]
    slots: list[PlanSlot] = field(default_factory=list[PlanSlot])
    steps: list[PlanStep] = field(default_factory=list[PlanStep])
    literals: list[np.ndarray] = field(default_factory=list[np.ndarray])
    places: dict[tuple[Node, int], int] = field(default_factory=dict[tuple[Node, int], int])
    outputs: dict[tuple[Node, int], int] = field(default_factory=dict[tuple[Node, int], int])

    def __post_init__(self) -> None:
        program = self.program
        for kind, nodes in ((WEIGHT, program.prepared_inputs), (ARGUMENT, program.live_inputs)):
            for at, node in enumerate(nodes):
                self.places[node, 0] = self._slot(kind, at, node.type)
        for number, node in enumerate(program.hot.outputs):
            if _source(node)[0].op == "opaque":
                self.outputs.setdefault(_source(node), number)

    def _slot(self, kind: str, at: int, type: TensorType) -> int:
        self.slots.append(PlanSlot(kind, at, type))
        return len(self.slots) - 1

    def _place(self, node: Node) -> int:
        """Return the slot of a value; a literal, or a value without elements, gets one when it is first read."""
        source = _source(node)
        if source not in self.places:
            maker = source[0]
            assert maker.op == "literal" or is_empty(maker), maker
            self.places[source] = self._slot(WEIGHT, len(self.program.prepared_inputs) + len(self.literals), maker.type)
            value = maker["value"] if maker.op == "literal" else np.zeros(maker.shape)  # pyright: ignore[reportArgumentType, reportCallIssue] (concrete)
            self.literals.append(np.asarray(value, DTYPE[maker.dtype]))
        return self.places[source]

    def call(self, node: Node) -> None:
        """Add the step of a kernel."""
        kernel = self.kernels[_kernel_of(node)]
        writes: list[int] = []
        for number, type in enumerate(node.types):
            output = self.outputs.get((node, number))
            if output is None:
                slot = self._slot(ARENA, 0, type)
            else:
                slot = self._slot(OUTPUT, output, self.program.hot.outputs[output].type)
            self.places[node, number] = slot
            writes.append(slot)
        scratch = [self._slot(ARENA, 0, TensorType(b.shape, b.dtype)) for b in kernel.scratch]
        reads = [self._place(x) for x in node.inputs]
        self.steps.append(PlanStep(kernel.digest, tuple(reads), tuple(writes), tuple(scratch)))

    def copy_outputs(self) -> None:
        """Add copies for outputs that no kernel writes."""
        for number, node in enumerate(self.program.hot.outputs):
            if self.outputs.get(_source(node)) != number:
                read = self._place(node)
                self.steps.append(PlanStep(COPY, (read,), (self._slot(OUTPUT, number, node.type),)))

    def lowered(self) -> Lowered:
        """Return the plan with offsets in the arena."""
        used: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            for slot in step.slots:
                used.setdefault(slot, []).append(number)
        inner = [i for i, slot in enumerate(self.slots) if slot.kind == ARENA]
        lives = [Lifetime(self.slots[i].size_bytes, used[i][0], used[i][-1]) for i in inner]
        at, arena_bytes = offsets(lives)
        for i, offset in zip(inner, at, strict=True):
            self.slots[i] = PlanSlot(ARENA, offset, self.slots[i].type)
        plan = NativePlan(tuple(self.slots), tuple(self.steps), arena_bytes)
        called = {step.kernel: self.kernels[step.kernel] for step in self.steps if step.kernel != COPY}
        return Lowered(plan, called, tuple(self.literals), tuple(lives))


def buffers_of(kernels: Mapping[str, Kernel]) -> dict[str, Sequence[tuple[str, int]]]:
    """Return what `verifier.memory` reads of kernels: digest -> scope and bytes of each buffer, in their order."""
    return {digest: [(b.scope, size_bytes(b)) for b in kernel.pointers] for digest, kernel in kernels.items()}
