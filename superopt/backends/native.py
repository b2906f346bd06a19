"""The native backend: programs whose regions are our own kernels, called inside XLA.

A kernel is an FFI call, and an FFI call is an opaque operation: the mixed program is the program with the values of the
chosen regions computed by opaque nodes, and XLA builds it like any other.  So a call is one jitted function without
Python between kernels, and whatever holds for programs of the XLA backend (64-bit types, prepared tensors, options of
the compiler) holds here.

What a kernel packs of frozen operands moves into the prepare part and is made once, by kernels of its own.  Under
`vmap` a kernel that packs nothing is computed by XLA, batch and all; another runs once for each element.  Kernels have
no derivatives: those of an optimised function go through the original.

A region that this machine cannot run as a kernel is left to XLA; `refused` says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax

from superopt.backends.made import find, keep, key_of
from superopt.backends.options import Options
from superopt.backends.xla import XlaExecutable, to_jax
from superopt.errors import InputError
from superopt.ir import opaque
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.program import Program, map_nodes, original_program, replace
from superopt.ir.scalar import DTYPE
from superopt.ir.types import FLOATS, TensorType
from superopt.kernels.choose import defaults
from superopt.kernels.choose.choice import Choice, choices_of, read_choice, regions_of
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.choose.regions import Region, region_of
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.llvm.jit import CompileError
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import Buffer, LoopProgram
from superopt.kernels.runtime.ffi import probe
from superopt.kernels.runtime.kernel import Kernel
from superopt.kernels.runtime.kernel import build as build_kernel
from superopt.kernels.schedule.trace import apply
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.facts import usable_cores

PACKED = "packed"
Trace = tuple[Any, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """A region as machine code.

    Attributes:
        hot: what a call runs; reads `x0`, `x1` ... and what `prepare` gives, by name.
        prepare: what packs frozen operands, or None.
        graph: the region.
    """

    hot: Kernel
    prepare: Kernel | None
    graph: Graph


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A program with kernels in it.

    Attributes:
        program: with opaque nodes in place of regions.
        kernels: in the order of the choices; None where a region is left to XLA.
        refused: number of the choice -> why it is left to XLA.
    """

    program: Program
    kernels: tuple[CompiledRegion | None, ...]
    refused: Mapping[int, str] = field(default_factory=dict[int, str])


def build(
    program: Program,
    frozen_values: Mapping[str, Any] | Sequence[Any] = (),
    *,
    options: Options | None = None,
    kernels: Sequence[Choice | Mapping[str, Any]] = (),
) -> XlaExecutable:
    """Build a program with some of its regions as kernels; with XLA alone where there are none.

    Args:
        program: what to build.
        frozen_values: values of the frozen inputs that do not come with the program, by name or in order.
        options: options of the compiler for what XLA computes.
        kernels: the regions of the hot part, as choices or their plain data; one whose data says `guarded` is first run
            alone, with bands around its buffers.

    Raises:
        ArgumentError: a frozen value is missing or does not fit.
        InputError: choices that do not fit the program.
        GuardError: a guarded kernel writes outside of its buffers.
    """
    if not kernels:
        return XlaExecutable(program, frozen_values, options)
    choices = [c if isinstance(c, Choice) else read_choice(c) for c in kernels]
    mix = mixed(program, choices)
    for given, kernel in zip(kernels, mix.kernels, strict=True):
        if not isinstance(given, Choice) and given.get("guarded") and kernel is not None:
            run_guarded(kernel)
    return NativeExecutable(program, frozen_values, options, choices, mix)


def alone(
    graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Sequence[int]]:
    """A graph as one kernel, called alone: the call, its operands, and which of them are made of frozen ones.

    Args:
        options: `trace`, the schedule; the default one where there is none.

    Raises:
        InputError: no kernel can be made of it.
    """
    program = original_program(graph)
    given = options.get("trace")
    whole = whole_kernel(program, graph, None if given is None else frozen_trace(given))
    named = dict(zip((node["name"] for node in graph.inputs), operands, strict=True))
    executable = build(program, {n["name"]: named[n["name"]] for n in graph.inputs if n["frozen"]}, kernels=[whole])
    if executable.refused:
        raise InputError("; ".join(executable.refused.values()))
    live = [named[node["name"]] for node in program.live_inputs]
    passed = [*live, *executable.packed]
    call = jax.jit(executable.run_packed).lower(*passed).compile()
    return call, passed, range(len(live), len(passed))


def whole_kernel(program: Program, graph: Graph, steps: Trace) -> Choice:
    """The choice that makes the whole of `original_program(graph)` one kernel, as it is within a larger program."""
    prepared = iter(program.prepared_inputs)
    reads = [next(prepared) if node["frozen"] else node for node in graph.inputs]
    return choices_of(program.hot, [(region_of(program.hot.outputs[0], reads), steps)])[0]


class NativeExecutable(XlaExecutable):
    """A program with kernels in it.

    Attributes:
        program: what was built, as it is without kernels.
        choices: the regions that were asked for.
        mix: how they were built.
        prepared: prepared and packed tensors, as the hot part of the mixed program takes them.
    """

    choices: tuple[Choice, ...]
    mix: Mixed

    def __init__(
        self,
        program: Program,
        frozen_values: Mapping[str, Any] | Sequence[Any],
        options: Options | None,
        choices: Sequence[Choice],
        mix: Mixed,
    ) -> None:
        super().__init__(mix.program, frozen_values, options)
        self.program = program
        self.choices, self.mix = tuple(choices), mix
        self.refused |= {f"kernel of value {choices[i].root}": why for i, why in mix.refused.items()}


def mixed(program: Program, choices: Sequence[Choice]) -> Mixed:
    """The program with the chosen regions computed by kernels.

    Raises:
        InputError: choices that do not fit the program.
    """
    regions = regions_of(program.hot, choices)
    built: list[CompiledRegion | None] = []
    refused: dict[int, str] = {}
    for i, (region, choice) in enumerate(zip(regions, choices, strict=True)):
        try:
            built.append(compiled(region.graph, choice.trace))
        except (InputError, CompileError) as error:
            built.append(None)
            refused[i] = str(error.args[0])
    pairs = {r.root: (r, k) for r, k in zip(regions, built, strict=True) if k is not None}
    return Mixed(_Assembly(program, pairs).program(), tuple(built), refused)


def run_guarded(compiled: CompiledRegion, seed: int = 0) -> None:
    """Run the kernels of a region once, with bands around all buffers.

    Raises:
        GuardError: something was written outside of a buffer.
    """
    rng = np.random.default_rng(seed)
    for kernel in (compiled.prepare, compiled.hot):
        if kernel is not None:
            arrays = {
                b.name: rng.standard_normal(b.shape).astype(DTYPE[b.dtype])
                if b.dtype in FLOATS
                else np.zeros(b.shape, DTYPE[b.dtype])  # an index, perhaps
                for b in kernel.operands
            }
            kernel.run(arrays, threads=1, guard=True)


def prepared_bytes(program: Program, choices: Sequence[Choice]) -> int:
    """Size of the prepared tensors of a program with these kernels, packed ones included."""
    return mixed(program, choices).program.prepared_bytes


@functools.cache
def unavailable() -> str:
    """Why this process runs no kernels; empty when it does."""
    if jax.default_backend() != "cpu":
        return f"they run on processors, programs here on {jax.default_backend()}"
    return probe() if supported() else f"none are made for {host().name}"


@functools.lru_cache(maxsize=1024)
def compiled(graph: Graph, trace: Trace = None) -> CompiledRegion:
    """A region as machine code; equal regions with equal schedules are built once.

    Raises:
        InputError: no kernel can be made of it here.
    """
    if trace is None:
        trace = default_trace(graph)
    key = key_of(graph, trace)
    parts = None if unavailable() or not key else find(key)
    if parts is None:
        early, hot = hoisted(scheduled_program(graph, trace))
        parts = build_kernel(generate(hot)), None if early is None else build_kernel(generate(early))
        if key:
            keep(key, parts)
    return CompiledRegion(*parts, graph)


def scheduled_program(graph: Graph, trace: Trace = None) -> LoopProgram:
    """The loop program of a region with its schedule, the default one of this machine where no trace is given.

    Raises:
        InputError: the schedule does not fit, or this machine runs no kernels.
    """
    reason = unavailable()
    if reason:
        raise InputError(reason)
    return apply(from_graph(graph.outputs), default_trace(graph) if trace is None else trace)


@functools.lru_cache(maxsize=1024)
def default_trace(graph: Graph) -> tuple[Any, ...]:
    """The default schedule of a region on this machine: the first of `default_traces`.

    Raises:
        InputError: no kernel can be made of it.
    """
    found = next(default_traces(graph), None)
    if found is None:
        raise InputError("no default schedule of the region has code")
    return found


def default_traces(graph: Graph) -> Iterator[tuple[Any, ...]]:
    """The default schedules of a region for which there is code, each plainer than the one before.

    One that is not proved, or whose kernel differs from XLA's values, is followed by one that asks for less.
    """
    program = from_graph(graph.outputs)
    for steps in defaults.traces(program, host(), usable_cores()):
        key = key_of(graph, steps)
        if not key or unavailable() or find(key) is None:
            try:
                defaults.require_code(apply(program, steps))
            except InputError:
                continue
        yield steps


class _Assembly:
    """The parts of a mixed program as they are put together."""

    def __init__(self, program: Program, kernels: Mapping[Node, tuple[Region, CompiledRegion]]) -> None:
        self.plain, self.kernels = program, kernels
        given = () if program.prepare is None else program.prepare.outputs
        self.source = dict(zip(program.prepared_inputs, given, strict=True))
        taken = {node["name"] for node in program.hot.inputs}
        self.stem = PACKED
        while any(name.startswith(self.stem) for name in taken):
            self.stem += "_"
        self.packed: dict[Node, Node] = {}  # packed tensor of the prepare part -> input of the hot part
        self.done: dict[Node, Node] = {}

    def program(self) -> Program:
        """The mixed program."""
        for root in topological(self.plain.hot.outputs):
            if root in self.kernels:
                self.done = map_nodes(self._operands(*self.kernels[root]), given=self.done)
                self.done[root] = self._call(*self.kernels[root])
        outputs = replace(self.plain.hot.outputs, self.done)
        if self.plain.prepare is None:
            return Program(None, Graph(self.plain.hot.inputs, outputs))
        used = {node for node in topological(outputs) if node.op == "input"}
        kept = [node for node in self.plain.prepared_inputs if node in used]
        prepare = self.plain.prepare
        packed = {tensor: node for tensor, node in self.packed.items() if node in used}
        results = (*(self.source[node] for node in kept), *packed)
        inputs = (*self.plain.live_inputs, *kept, *packed.values())
        return Program(Graph(prepare.inputs, results, prepare.constants), Graph(inputs, outputs))

    def _operands(self, region: Region, kernel: CompiledRegion) -> list[Node]:
        """What the call of a region reads, packed tensors left out."""
        named = _named(region)
        return [named[b.name] for b in kernel.hot.operands if b.name in named]

    def _call(self, region: Region, kernel: CompiledRegion) -> Node:
        named = _named(region)
        operands = {name: self.done[x] for name, x in named.items() if x in self.done}
        if kernel.prepare is not None:
            frozen = {name: self.source[x] for name, x in named.items() if x in self.source}
            sources = [frozen[b.name] for b in kernel.prepare.operands]
            for b, tensor in zip(kernel.prepare.outputs, _call_nodes(kernel.prepare, sources, None), strict=True):
                known = self.packed.get(tensor)
                if known is None:
                    name = f"{self.stem}{len(self.packed)}"
                    known = self.packed[tensor] = make_input(name, b.shape, b.dtype, frozen=True)
                operands[b.name] = known
        replaced = None if kernel.prepare is not None else kernel.graph
        (result,) = _call_nodes(kernel.hot, [operands[b.name] for b in kernel.hot.operands], replaced)
        return result


def _named(region: Region) -> dict[str, Node]:
    return {node["name"]: x for node, x in zip(region.graph.inputs, region.reads, strict=True)}


def _call_nodes(kernel: Kernel, operands: Sequence[Node], graph: Graph | None) -> tuple[Node, ...]:
    """Opaque nodes for the outputs of a kernel; `graph` is what XLA computes in its place under `vmap`."""
    types = tuple(_type(b) for b in kernel.outputs)
    identity = (kernel.digest, types, graph, tuple(b.name for b in kernel.operands))
    key = opaque.register("kernel", identity, _callable(kernel, graph))
    node = mk("opaque", *operands, primitive="kernel", params_key=key, result_types=types)
    return (node,) if len(types) == 1 else tuple(mk("result", node, index=i) for i in range(len(types)))


def _type(buffer: Buffer) -> TensorType:
    return TensorType(buffer.shape, buffer.dtype)


def _callable(kernel: Kernel, graph: Graph | None) -> Callable[..., Sequence[Any]]:
    """The call of a kernel, with what `vmap` makes of it."""

    @jax.custom_batching.custom_vmap
    def call(*arrays: Any) -> tuple[Any, ...]:
        return tuple(kernel.call(*arrays))

    @call.def_vmap
    def _(size: int, batched: Sequence[bool], *arrays: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        several = tuple(True for _ in kernel.outputs)
        if graph is not None:
            place = {b.name: i for i, b in enumerate(kernel.operands)}
            used = [node for node in graph.inputs if node["name"] in place]
            order = [place[node["name"]] for node in used]
            plain = to_jax(Graph(tuple(used), graph.outputs))
            axes = [0 if batched[i] else None for i in order]
            return jax.vmap(plain, axes, axis_size=size)(*[arrays[i] for i in order]), several
        moving = [x for x, b in zip(arrays, batched, strict=True) if b]

        def one(xs: Sequence[Any]) -> tuple[Any, ...]:
            rest = iter(xs)
            return call(*[next(rest) if b else x for x, b in zip(arrays, batched, strict=True)])

        return lax.map(one, moving), several

    return call
