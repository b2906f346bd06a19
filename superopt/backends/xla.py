"""The XLA backend: a graph as a `jax.lax` program, and a program as a jitted executable.

`to_jax(graph)` is a plain JAX function of the graph's inputs (constants included), so it works under every JAX
transformation.  `build(program, frozen_values)` runs the prepare part once and jits the hot part.  Prepared tensors are
passed to it as arguments, never baked in, so that XLA neither folds them at compile time nor keeps copies of them. Many
small ones share a buffer (`superopt.backends.packing`).

Graphs with 64-bit types run with 64-bit types switched on, whatever the setting of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from costmodel.arrays import PerKernel
from costmodel.model.card import CardRoofline, card_of
from costmodel.model.objective import Objective
from superopt.arrays.placing import Later
from superopt.backends.lower import LOWER, array_bytes, dtype_of
from superopt.backends.options import Options, OptionValue, accepted, jit_with
from superopt.backends.packing import packing_of
from superopt.backends.preparing import pieces_of, run_pieces, taken
from superopt.backends.protocol import Backend, CompiledRegion, OptionalTrace, TimedCall, traced
from superopt.errors import ArgumentError, InputError
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.program import Program
from superopt.kernels.runtime.pages import enlarge
from superopt.machine.jitting import enabled_x64, jax_jit
from superopt.measure.kernels import XLA
from verifier.schedules import ScheduleVerdict
from verifier.schedules.ledger import ScheduleLedger
from verifier.verdict import PROVED

ArrayFunction = Callable[..., tuple[Any, ...]]

_WIDE = ("float64", "int64", "uint64", "complex128")


def to_jax(graph: Graph) -> ArrayFunction:
    """Return the graph as a JAX function: positional arrays in the order of `graph.inputs`, a tuple of arrays out.

    Raises:
        InputError: the graph holds an op without lowering (macros are expanded by `rewrites.build.expander`).
    """
    order = [node for node in graph.nodes() if node.op != "input"]
    steps = [(node, _lowering(node)) for node in order]
    wide = needs_x64(graph)

    def run(*arrays: Any) -> tuple[Any, ...]:
        if len(arrays) != len(graph.inputs):
            raise ArgumentError(f"the graph has {len(graph.inputs)} inputs, got {len(arrays)} arrays")
        with enabled_x64(wide):
            values: dict[Node, Any] = dict(zip(graph.inputs, arrays, strict=True))
            for node, lower in steps:
                values[node] = lower(node, *[values[x] for x in node.inputs])
            return tuple(_as_array(values[node]) for node in graph.outputs)

    return run


def build(
    program: Program,
    frozen_values: Mapping[str, Any] | Sequence[Any] = (),
    *,
    options: Options | None = None,
) -> XlaExecutable:
    """Build a program: run its prepare part once on the frozen values, jit its hot part.

    Args:
        program: the program to build.
        frozen_values: values of the frozen inputs that do not come with the program, by name or in order.
        options: options of the compiler for calls of the hot part; those that it refuses are left out.

    Raises:
        ArgumentError: a frozen value is missing or does not fit.
    """
    return XlaExecutable(program, frozen_values, options)


def card_model() -> CardRoofline | None:
    """Return the roofline that prices kernels where the default device is a GPU (no model ships for it); else None."""
    return CardRoofline(card_of(jax.devices()[0].device_kind)) if jax.default_backend() == "gpu" else None


def as_jitted(program: Program, frozen_values: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a program without a prepare part as `jax.jit` compiles the function: closed-over arrays are constants.

    Args:
        program: the program to build.
        frozen_values: values of the frozen arguments by name; they are passed at each call.

    Raises:
        ArgumentError: a frozen value is missing or does not fit.
    """
    executable = XlaExecutable(program, frozen_values)
    passed = () if program.prepare is None else program.prepare.outputs
    inside = executable.closed_over
    held = [np.asarray(x) if node in inside else None for node, x in zip(passed, executable.prepared, strict=True)]
    given = [x for node, x in zip(passed, executable.prepared, strict=True) if node not in inside]

    def run(*arrays: Any) -> tuple[Any, ...]:
        rest = iter(arrays[len(arrays) - len(given) :])
        return executable.run(*arrays[: len(arrays) - len(given)], *[next(rest) if x is None else x for x in held])

    jitted = executable.jit(run)
    return lambda *live: jitted(*live, *given)


class Xla(Backend):
    """The host XLA as a backend (`superopt.backends.protocol`): runs anything, and has nothing to prove.

    Args:
        objective: prices its kernels; without one they are not priced.
    """

    name = XLA

    def __init__(self, objective: Objective | None = None) -> None:
        self.objective = objective

    @property
    def version(self) -> str:
        """The version of the objective."""
        return "" if self.objective is None else self.objective.version

    def can_run(self, region: Graph) -> bool:
        """Return true: XLA runs any region."""
        return True

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of kernels by the objective; infinite without one."""
        return np.full(len(kernels), np.inf) if self.objective is None else self.objective.price(kernels)

    def default_traces(self, region: Graph) -> Iterator[tuple[Any, ...]]:
        """Yield the empty schedule, the only one."""
        yield ()

    def build(self, region: Graph, trace: OptionalTrace = None) -> CompiledRegion:
        """Return the region as a JAX function."""
        return traced(self.name, region, to_jax(region))

    def time(self, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> TimedCall:
        """Compile the graph with these options of the compiler, for timing."""
        call = jax_jit(to_jax(graph)).lower(*operands).compile(dict(options) or None)
        return call, operands, [i for i, node in enumerate(graph.inputs) if node["frozen"]]

    def prove(self, region: Graph, trace: OptionalTrace, ledger: ScheduleLedger | None = None) -> ScheduleVerdict:
        """Return proved: the region itself is what XLA compiles."""
        return ScheduleVerdict("region", "", PROVED, ())


class XlaExecutable:
    """A program built with XLA.

    Attributes:
        packed: the prepared tensors of the build in the form that calls pass.
        options: options of the compiler in use.
        refused: options that were asked for and are not in use, with the reason.
    """

    packed: tuple[Any, ...]
    options: dict[str, OptionValue]
    refused: dict[str, str]

    def __init__(
        self, program: Program, frozen_values: Mapping[str, Any] | Sequence[Any] = (), options: Options | None = None
    ) -> None:
        self.program = self._parts = program
        self.options, self.refused = accepted(options or {})
        self._wide = needs_x64(program.hot) or (program.prepare is not None and needs_x64(program.prepare))
        self._computed: tuple[Node, ...] = ()
        if program.prepare is not None:
            given = program.prepare
            self._computed = tuple(dict.fromkeys(node for node in given.outputs if node.op != "input"))
        self._pieces = pieces_of(self._computed)
        self._constants = self._constant_values()
        self.prepared = self.prepare(self._in_order(frozen_values))
        held = {id(x): x for x in self.prepared}
        self.frozen_bytes = program.frozen_bytes
        self.prepared_bytes = sum(map(array_bytes, held.values()))
        passed = () if program.prepare is None else program.prepare.outputs
        self._live = len(program.hot.inputs) - len(passed)
        # a program that prepares nothing is called with the user's own arrays, as the reference of comparisons must be
        apart = {x for node in program.hot.nodes() if node.op == "opaque" for x in node.inputs}
        self._packing = packing_of(program.hot.inputs[self._live :] if self._computed else (), apart)
        self.packed = self.pack(self.prepared)
        self.run_by(to_jax(program.hot))
        added = {id(x): x for node, x in zip(passed, self.prepared, strict=True) if node.op != "input"}
        self.added_bytes = sum(map(array_bytes, added.values()))
        for x in added.values():
            enlarge(x)

    def run_by(self, run: ArrayFunction) -> None:
        """Let calls run this function of the hot part's inputs."""
        self.run = run
        self._hot = jit_with(run, self.options)
        self._packed_hot = self._hot if not self._packing.buffers else jit_with(self.run_packed, self.options)

    @property
    def wide(self) -> bool:
        """Whether it runs with 64-bit types whatever the process has enabled."""
        return self._wide

    def compile(self, *live: Any) -> None:
        """Compile the hot part for such live inputs, and run nothing."""
        with enabled_x64(self._wide):
            self._packed_hot.lower(*live, *self.packed).compile()  # pyright: ignore[reportFunctionMemberAccess]

    def __call__(self, *live: Any) -> tuple[Any, ...]:
        """Return the results for these live inputs, with the prepared tensors of the build."""
        if not self._wide:  # nothing between the caller and jit: small programs run in microseconds
            return self._packed_hot(*live, *self.packed)
        with enabled_x64(True):
            return self._packed_hot(*live, *self.packed)

    @property
    def closed_over(self) -> frozenset[Node]:
        """Return the arrays that come with the program and that the prepare part passes on unchanged."""
        outputs = () if self._parts.prepare is None else self._parts.prepare.outputs
        return frozenset(x for x in outputs if x.op == "input" and x["name"] in self._constants)

    def prepare(self, frozen: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the prepared tensors for these frozen values (constants excluded), in the order of the hot inputs."""
        graph = self._parts.prepare
        if graph is None:
            return ()
        own = [node for node in graph.inputs if node["name"] not in self._constants]
        if len(own) != len(frozen):
            raise ArgumentError(f"the program has {len(own)} frozen inputs, got {len(frozen)} values")
        with enabled_x64(self._wide):
            values: dict[Node, Any] = {n: self._constants.get(n["name"]) for n in graph.inputs}
            values |= {node: _fitting(node, x) for node, x in zip(own, frozen, strict=True)}
            values |= {node: taken(values[node]) for node in graph.outputs if node.op == "input"}
            values |= run_pieces(self._pieces, values, to_jax)
        return tuple(values[node] for node in graph.outputs)

    def pack(self, prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Return prepared tensors in the form that `run_packed` takes: small ones in common buffers."""
        if not self._packing.buffers:
            return tuple(prepared)
        with enabled_x64(self._wide):
            return self._packing.pack(prepared)

    def run_packed(self, *arrays: Any) -> tuple[Any, ...]:
        """Evaluate the hot part as a JAX function of the live inputs and packed tensors."""
        if not self._packing.buffers:
            return self.run(*arrays)
        return self.run(*arrays[: self._live], *self._packing.unpack(arrays[self._live :]))

    def hot(self, live: Sequence[Any], prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results for these live inputs and prepared tensors."""
        with enabled_x64(self._wide):
            return self._hot(*live, *prepared)

    def jit(self, fn: Callable[..., Any], **given_away: Any) -> Callable[..., Any]:
        """Compile a function around `run` or `run_packed` with the settings of the hot part.

        Args:
            fn: the function.
            given_away: `donate_argnums` and `donate_argnames` of `jax.jit`.
        """
        jitted = jit_with(fn, self.options, **given_away)
        if not self._wide:
            return jitted

        def call(*args: Any, **kwargs: Any) -> Any:
            with enabled_x64(True):
                return jitted(*args, **kwargs)

        return call

    def lower(self) -> jax.stages.Lowered:
        """Lower the hot part for its declared types (for its HLO, its cost or ahead-of-time compilation)."""
        with enabled_x64(self._wide):
            return jax_jit(self.run, compiler_options=self.options or None).lower(
                *[jax.ShapeDtypeStruct(n.shape, dtype_of(n.dtype)) for n in self._parts.hot.inputs]  # pyright: ignore[reportArgumentType]
            )

    def _constant_values(self) -> Mapping[str, np.ndarray]:
        return {} if self._parts.prepare is None else self._parts.prepare.constants

    def _in_order(self, frozen_values: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        if not isinstance(frozen_values, Mapping):
            return list(frozen_values)
        graph = self._parts.prepare
        names = [] if graph is None else [node["name"] for node in graph.inputs if node["name"] not in graph.constants]
        missing = [name for name in names if name not in frozen_values]
        if missing:
            raise ArgumentError(f"no value for the frozen inputs {missing}")
        return [frozen_values[name] for name in names]


def needs_x64(graph: Graph) -> bool:
    """Whether the graph (or a body in it) holds 64-bit values."""
    kinds = {t.dtype for node in (*graph.inputs, *graph.nodes()) for t in node.types}
    return any(d in _WIDE for d in kinds) or any(needs_x64(body) for node in graph.nodes() for body in bodies_of(node))


def _as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x


def _fitting(node: Node, x: Any) -> Any:
    """Return the value of a frozen input unchanged where it has the exact type, else as a JAX array."""
    given = x if _has_type(x, node) else taken(x)
    if not _has_type(given, node):
        raise ArgumentError(f"the frozen input {node['name']!r} is {node.type}, got {given.dtype}{list(given.shape)}")
    return given


def _has_type(x: Any, node: Node) -> bool:
    kinds = (np.ndarray, jax.Array, Later)
    return isinstance(x, kinds) and tuple(x.shape) == node.shape and str(x.dtype) == node.dtype


def _lowering(node: Node) -> Callable[..., Any]:
    if node.op in LOWER:
        return LOWER[node.op]
    if node.op in _CONTROL:
        return _CONTROL[node.op](node)
    raise InputError(f"the XLA backend has no lowering for the op {node.op!r}")


def _packed(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _scan(node: Node) -> Callable[..., Any]:
    body = to_jax(node["body"])
    consts, carries = node["num_consts"], node["num_carry"]

    def run(node: Node, *xs: Any) -> Any:
        fixed = xs[:consts]

        def step(carry: tuple[Any, ...], x: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            results = body(*fixed, *carry, *x)
            return results[:carries], results[carries:]

        init = tuple(map(jnp.asarray, xs[consts : consts + carries]))
        carry, ys = lax.scan(
            step,
            init,
            tuple(xs[consts + carries :]),
            length=node["length"],
            reverse=node["reverse"],
            unroll=node["unroll"],
        )
        return _packed((*carry, *ys))

    return run


def _while(node: Node) -> Callable[..., Any]:
    cond, body = to_jax(node["cond"]), to_jax(node["body"])
    of_cond, of_body = node["cond_nconsts"], node["body_nconsts"]

    def run(node: Node, *xs: Any) -> Any:
        cond_consts, body_consts = xs[:of_cond], xs[of_cond : of_cond + of_body]

        def proceed(state: tuple[Any, ...]) -> Any:
            return cond(*cond_consts, *state)[0]

        def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
            return body(*body_consts, *state)

        return _packed(lax.while_loop(proceed, step, tuple(map(jnp.asarray, xs[of_cond + of_body :]))))

    return run


def _cond(node: Node) -> Callable[..., Any]:
    branches = [to_jax(branch) for branch in node["branches"]]

    def run(node: Node, index: Any, *xs: Any) -> Any:
        return _packed(lax.switch(lax.convert_element_type(index, np.int32), branches, *xs))

    return run


_CONTROL: dict[str, Callable[[Node], Callable[..., Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
