"""Programs some of whose regions are computed by kernels of other backends, called inside XLA.

Such a region is an opaque operation: the mixed program has opaque nodes in place of the chosen regions, and XLA builds
it like any other.  So a call is one jitted function without Python between kernels, and everything that holds for
programs of the XLA backend (64-bit types, prepared tensors, options of the compiler) holds here.  Where nothing is left
to XLA, several kernels and the loops around them are steps of one operation, without XLA between them
(`superopt.native`).

The packing of frozen operands moves into the prepare part and is done once, by kernels of its own.  Under `vmap` a
kernel that packs nothing is computed by XLA, batch and all; any other kernel runs once for each element.  Kernels have
no derivatives: those of an optimised function go through the original.

A region that its backend cannot build here is left to XLA; `refused` gives the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax

from superopt.arrays.bundles import random_values
from superopt.backends.options import Options
from superopt.backends.protocol import Backend, CompiledRegion, KernelCall, OptionalTrace, TimedCall, backend_of
from superopt.backends.xla import XlaExecutable, to_jax
from superopt.errors import InputError
from superopt.ir import opaque
from superopt.ir.graph import Graph, Node, bodies_of, make_input, mk, topological
from superopt.ir.program import Program, map_nodes, original_program, replace
from superopt.ir.types import TensorType
from superopt.kernels.choose.regions import Region, region_of
from superopt.kernels.choose.specs import KernelSpec, numbered, read_spec, regions_of, specs_of
from superopt.kernels.llvm.jit import CompileError
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Kernel
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.jitting import jax_jit
from superopt.native.lowered import Lowered
from superopt.native.lowering import LeftToXla, lower
from superopt.native.running import NativeProgram

PACKED = "packed"


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A program with kernels in it.

    Attributes:
        program: the program with opaque nodes in place of regions.
        kernels: the kernels in the order of the specs; None where a region is left to XLA.
        refused: number of the spec -> the reason why it is left to XLA.
    """

    program: Program
    kernels: tuple[CompiledRegion | None, ...]
    refused: Mapping[int, str] = field(default_factory=dict[int, str])


def build(
    program: Program,
    frozen_values: Mapping[str, Any] | Sequence[Any] = (),
    *,
    options: Options | None = None,
    kernels: Sequence[KernelSpec | Mapping[str, Any]] = (),
) -> XlaExecutable:
    """Build a program with some of its regions as kernels; with XLA alone where there are none.

    Args:
        program: the program to build.
        frozen_values: values of the frozen inputs that do not come with the program, by name or in order.
        options: compiler options for the part that XLA computes.
        kernels: the regions of the hot part, as specs or their JSON data; one whose data says `guarded` is first run
            alone, with bands around its buffers.

    Raises:
        ArgumentError: a frozen value is missing or does not fit.
        InputError: specs that do not fit the program.
        GuardError: a guarded kernel writes outside of its buffers.
    """
    if not kernels:
        return XlaExecutable(program, frozen_values, options)
    specs = [c if isinstance(c, KernelSpec) else read_spec(c) for c in kernels]
    mix = mixed(program, specs)
    for given, spec, kernel in zip(kernels, specs, mix.kernels, strict=True):
        if not isinstance(given, KernelSpec) and given.get("guarded") and kernel is not None:
            run_guarded(backend_of(spec.backend), kernel)
    return MixedExecutable(program, frozen_values, options, specs, mix)


def alone(backend: Backend, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> TimedCall:
    """Compile a graph as one kernel of a backend, called alone: see `Backend.time`."""
    program = original_program(graph)
    given = options.get("trace")
    whole = whole_kernel(program, graph, None if given is None else frozen_trace(given), backend.name)
    named = dict(zip((node["name"] for node in graph.inputs), operands, strict=True))
    executable = build(program, {n["name"]: named[n["name"]] for n in graph.inputs if n["frozen"]}, kernels=[whole])
    if executable.refused:
        raise InputError("; ".join(executable.refused.values()))
    live = [named[node["name"]] for node in program.live_inputs]
    passed = [*live, *executable.packed]
    call = jax_jit(executable.run_packed).lower(*passed).compile()
    return call, passed, range(len(live), len(passed))


def whole_kernel(program: Program, graph: Graph, steps: OptionalTrace, backend: str) -> KernelSpec:
    """Return the spec that makes all of `original_program(graph)` one kernel, as inside a larger program."""
    prepared = iter(program.prepared_inputs)
    reads = [next(prepared) if node["frozen"] else node for node in graph.inputs]
    return specs_of(program.hot, [(region_of(program.hot.outputs[0], reads), steps)], backend)[0]


class MixedExecutable(XlaExecutable):
    """An executable with kernels in it.

    Attributes:
        program: the program without kernels.
        specs: the regions that were requested as kernels.
        mix: the program with opaque nodes, its kernels, and the refused ones.
        prepared: prepared and packed tensors, in the form that the hot part of the mixed program takes.
    """

    specs: tuple[KernelSpec, ...]
    mix: Mixed

    def __init__(
        self,
        program: Program,
        frozen_values: Mapping[str, Any] | Sequence[Any],
        options: Options | None,
        specs: Sequence[KernelSpec],
        mix: Mixed,
    ) -> None:
        super().__init__(mix.program, frozen_values, options)
        self.program = program
        self.specs, self.mix = tuple(specs), mix
        self.refused |= {f"kernel of value {specs[i].root}": why for i, why in mix.refused.items()}
        made = [k.hot for k in mix.kernels if k is not None]
        self._lowered = lower(mix.program, [kernel for kernel in made if isinstance(kernel, Kernel)])
        whole = self.native if isinstance(self._lowered, Lowered) and self._lowered.several else None
        if isinstance(whole, NativeProgram):
            self.run_by(whole.inside)

    @functools.cached_property
    def native(self) -> NativeProgram | LeftToXla:
        """Return the program without XLA between its kernels, or the ops that are left to XLA."""
        lowered = self._lowered
        return lowered if isinstance(lowered, LeftToXla) else NativeProgram(lowered, self.prepared, self.run)


def mixed(program: Program, specs: Sequence[KernelSpec]) -> Mixed:
    """Return the program with the chosen regions computed by kernels.

    Raises:
        InputError: specs that do not fit the program.
    """
    regions = regions_of(program.hot, specs)
    built: list[CompiledRegion | None] = []
    refused: dict[int, str] = {}
    for i, (region, spec) in enumerate(zip(regions, specs, strict=True)):
        try:
            built.append(backend_of(spec.backend).build(region.graph, spec.trace))
        except (InputError, CompileError) as error:
            built.append(None)
            refused[i] = str(error.args[0])
    assembly = _Assembly(program, {r.root: (r, k) for r, k in zip(regions, built, strict=True) if k is not None})
    whole = assembly.program()
    refused |= {i: "it packs what is not known ahead" for i, r in enumerate(regions) if r.root in assembly.unpacked}
    return Mixed(whole, tuple(built), refused)


def run_guarded(backend: Backend, compiled: CompiledRegion, seed: int = 0) -> None:
    """Run the kernels of a region once on random values, watched by their backend.

    Raises:
        SuperoptError: something was written outside of a buffer, or they cannot be run.
    """
    backend.run(compiled, random_values({n["name"]: (n.shape, n.dtype) for n in compiled.graph.inputs}, seed))


def prepared_bytes(program: Program, specs: Sequence[KernelSpec]) -> int:
    """Return the bytes of the prepared tensors of a program with these kernels, packed ones included."""
    return mixed(program, specs).program.prepared_bytes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where nodes stand: in the program itself, or in a body of control flow.

    Attributes:
        source: input here that does not change from call to call -> the tensor of the prepare part that it is.
        packed: inputs of the mixed program with packed tensors that kernels here read.
    """

    source: Mapping[Node, Node]
    packed: dict[Node, None] = field(default_factory=dict[Node, None])

    def within(self, inputs: Sequence[Node], operands: Sequence[Node]) -> _Place:
        """Return the place of a body whose inputs stand for these operands, the same on each run of it."""
        pairs = zip(inputs, operands, strict=True)
        return _Place({x: self.source[operand] for x, operand in pairs if operand in self.source})


class _Assembly:
    """The parts of a mixed program while it is put together.

    A body gets the packed tensors that its kernels read as further inputs of the same names.
    """

    def __init__(self, program: Program, kernels: Mapping[Node, tuple[Region, CompiledRegion]]) -> None:
        self.plain, self.kernels = program, kernels
        given = () if program.prepare is None else program.prepare.outputs
        self.source = dict(zip(program.prepared_inputs, given, strict=True))
        taken = {str(node["name"]) for node in numbered(program.hot) if node.op == "input"}
        self.stem = PACKED
        while any(name.startswith(self.stem) for name in taken):
            self.stem += "_"
        self.packed: dict[Node, Node] = {}  # packed tensor of the prepare part -> input of the hot part
        self.unpacked: set[Node] = set()  # roots left to XLA where they read what cannot be packed ahead

    def program(self) -> Program:
        """Return the mixed program."""
        outputs = self._assembled(self.plain.hot.outputs, _Place(self.source))
        if self.plain.prepare is None:
            return Program(None, Graph(self.plain.hot.inputs, outputs))
        used = {node for node in topological(outputs) if node.op == "input"}
        kept = [node for node in self.plain.prepared_inputs if node in used]
        prepare = self.plain.prepare
        packed = {tensor: node for tensor, node in self.packed.items() if node in used}
        results = (*(self.source[node] for node in kept), *packed)
        inputs = (*self.plain.live_inputs, *kept, *packed.values())
        return Program(Graph(prepare.inputs, results, prepare.constants), Graph(inputs, outputs))

    def _assembled(self, outputs: Sequence[Node], place: _Place) -> tuple[Node, ...]:
        """Return the nodes with all regions below them, those in bodies included, computed by their kernels."""
        done: dict[Node, Node] = {}
        for node in topological(outputs):
            if node in self.kernels and self._packs(*self.kernels[node], place):
                done = map_nodes(self._operands(*self.kernels[node]), given=done)
                done[node] = self._call(*self.kernels[node], done, place)
            elif bodies_of(node):
                done = map_nodes(node.inputs, given=done)
                done[node] = self._control(node, [done[x] for x in node.inputs], place)
        return replace(outputs, done)

    def _packs(self, region: Region, kernel: CompiledRegion, place: _Place) -> bool:
        """Whether what a kernel reads packed is known ahead where it stands."""
        named = _named(region)
        packs = kernel.prepare is None or all(named[b.name] in place.source for b in kernel.prepare.operands)
        if not packs:
            self.unpacked.add(region.root)
        return packs

    def _control(self, node: Node, operands: Sequence[Node], place: _Place) -> Node:
        """Return control flow over these operands with its bodies assembled."""
        attrs = dict(node.attrs)
        if node.op == "scan":
            n = attrs["num_consts"]
            attrs["body"], fixed = self._body(attrs["body"], node.inputs[:n], operands[:n], place)
            attrs["num_consts"] = len(fixed)
            return mk(node.op, *fixed, *operands[n:], **attrs)
        if node.op == "while":
            n, end = attrs["cond_nconsts"], attrs["cond_nconsts"] + attrs["body_nconsts"]
            attrs["cond"], before = self._body(attrs["cond"], node.inputs[:n], operands[:n], place)
            attrs["body"], fixed = self._body(attrs["body"], node.inputs[n:end], operands[n:end], place)
            attrs |= {"cond_nconsts": len(before), "body_nconsts": len(fixed)}
            return mk(node.op, *before, *fixed, *operands[end:], **attrs)
        branches: list[Graph] = attrs["branches"]
        places = [place.within(branch.inputs, node.inputs[1:]) for branch in branches]
        outputs = [self._assembled(branch.outputs, inner) for branch, inner in zip(branches, places, strict=True)]
        packed = dict.fromkeys(x for inner in places for x in inner.packed)
        place.packed.update(packed)
        attrs["branches"] = tuple(
            Graph((*branch.inputs, *packed), results) for branch, results in zip(branches, outputs, strict=True)
        )
        return mk(node.op, *operands, *packed, **attrs)

    def _body(
        self, body: Graph, fixed: Sequence[Node], operands: Sequence[Node], place: _Place
    ) -> tuple[Graph, list[Node]]:
        """Return the assembled body of a loop, and the operands that are the same on each trip.

        Args:
            body: the body, whose first inputs stand for what is the same on each trip.
            fixed: what they stand for, in the program without kernels.
            operands: the same with kernels.
            place: of the loop.
        """
        inputs, others = body.inputs[: len(fixed)], body.inputs[len(fixed) :]
        inner = place.within(inputs, fixed)
        outputs = self._assembled(body.outputs, inner)
        place.packed.update(inner.packed)
        read = {x for x in topological(outputs) if x.op == "input"}  # not what is read packed alone
        kept = [(x, operand) for x, operand in zip(inputs, operands, strict=True) if x in read]
        given = (*(x for x, _ in kept), *inner.packed, *others)
        return Graph(given, outputs), [*(operand for _, operand in kept), *inner.packed]

    def _operands(self, region: Region, kernel: CompiledRegion) -> list[Node]:
        """Return the nodes that the call of a region reads, packed tensors left out."""
        named = _named(region)
        return [named[b.name] for b in kernel.hot.operands if b.name in named]

    def _call(self, region: Region, kernel: CompiledRegion, done: Mapping[Node, Node], place: _Place) -> Node:
        named = _named(region)
        operands = {name: done[x] for name, x in named.items() if x in done}
        if kernel.prepare is not None:
            sources = [place.source[named[b.name]] for b in kernel.prepare.operands]
            for b, tensor in zip(kernel.prepare.outputs, _call_nodes(kernel.prepare, sources, None), strict=True):
                known = self.packed.get(tensor)
                if known is None:
                    name = f"{self.stem}{len(self.packed)}"
                    known = self.packed[tensor] = make_input(name, b.shape, b.dtype, frozen=True)
                operands[b.name] = known
                place.packed[known] = None
        replaced = None if kernel.prepare is not None else kernel.graph
        (result,) = _call_nodes(kernel.hot, [operands[b.name] for b in kernel.hot.operands], replaced)
        return result


def _named(region: Region) -> dict[str, Node]:
    return {node["name"]: x for node, x in zip(region.graph.inputs, region.reads, strict=True)}


def _call_nodes(kernel: KernelCall, operands: Sequence[Node], graph: Graph | None) -> tuple[Node, ...]:
    """Return opaque nodes for the outputs of a kernel; `graph` is computed by XLA in its place under `vmap`."""
    types = tuple(_type(b) for b in kernel.outputs)
    identity = (kernel.digest, types, graph, tuple(b.name for b in kernel.operands))
    key = opaque.register("kernel", identity, _callable(kernel, graph))
    node = mk("opaque", *operands, primitive="kernel", params_key=key, result_types=types)
    return (node,) if len(types) == 1 else tuple(mk("result", node, index=i) for i in range(len(types)))


def _type(buffer: Buffer) -> TensorType:
    return TensorType(buffer.shape, buffer.dtype)


def _callable(kernel: KernelCall, graph: Graph | None) -> Callable[..., Sequence[Any]]:
    """Return the call of a kernel, with its `vmap` rule."""

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
