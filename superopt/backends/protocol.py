"""The protocol of backends, and their table by name: all that the pipeline knows about makers of kernels.

    can_run     whether there is code for a region: asked of all that the search prices.
    price       seconds of regions, before anything is timed.
    build       compile a region with a schedule.
    time        compile a graph as a call of its own, to be timed.
    prove       prove that a schedule computes its region, and accesses nothing else.
    validate    validate that the machine code of a region computes it, whatever its schedule claims.
    recorded    the earlier verdict of `validate`.

XLA is the host: it builds every program, and calls the kernels of others (`superopt.backends.mixed`).  The device that
programs run on decides which other backend makes kernels (`for_device`).  Between processes and in files a backend is
its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.joint import Priced
from superopt.errors import InputError
from superopt.ir.graph import Graph, Node
from superopt.ir.text import print_graph
from superopt.kernels.choose.specs import NATIVE
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import Buffer, BufferScope
from superopt.kernels.schedule.trace import apply
from superopt.machine.jitting import jax_jit
from superopt.measure.kernels import XLA
from superopt.workshop.job import resolve
from verifier.kernels.check import KernelVerdict
from verifier.schedules import ScheduleVerdict
from verifier.schedules.ledger import ScheduleLedger
from verifier.verdict import UNKNOWN

PALLAS, INTERPRETED = "pallas", "pallas interpreted"
_MAKERS = {
    XLA: "superopt.backends.xla:Xla",
    NATIVE: "superopt.backends.native:Native",
    PALLAS: "superopt.backends.pallas:Pallas",
    INTERPRETED: "superopt.backends.pallas:interpreted",
}
_BY_DEVICE = {"gpu": PALLAS}  # platform of JAX -> whose kernels run there; elsewhere there may be native ones
OptionalTrace = tuple[Any, ...] | None
TimedCall = tuple[Callable[..., Any], Sequence[Any], Sequence[int]]


class KernelCall(Protocol):
    """Code that is called inside of a program.

    Attributes:
        operands: buffers that it reads, by name, in the order of the arguments.
        outputs: buffers that it returns.
        digest: identifies the code.
    """

    @property
    def digest(self) -> str: ...
    @property
    def operands(self) -> tuple[Buffer, ...]: ...
    @property
    def outputs(self) -> tuple[Buffer, ...]: ...

    def call(self, *arrays: Any) -> Sequence[Any]:
        """Return the outputs as JAX arrays, inside `jax.jit`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TracedCall:
    """A kernel call that is a JAX function, traced into the program that calls it: see `KernelCall`."""

    digest: str
    operands: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    function: Callable[..., Sequence[Any]]

    def call(self, *arrays: Any) -> Sequence[Any]:
        """Return the outputs."""
        return self.function(*arrays)


def traced(by: str, region: Graph, function: Callable[..., Sequence[Any]]) -> CompiledRegion:
    """Wrap a JAX function of a region's inputs as its code.

    Args:
        by: identifies the function, beside the region.
        region: the region that it computes.
        function: takes an array for each input, in order.
    """

    def buffer(name: str, node: Node, scope: BufferScope) -> Buffer:
        return Buffer(name, tuple(map(int, node.shape)), node.dtype, scope)  # pyright: ignore[reportArgumentType] (concrete)

    reads = tuple(buffer(n["name"], n, "frozen" if n["frozen"] else "input") for n in region.inputs)
    gives = tuple(buffer(f"out{i}", n, "output") for i, n in enumerate(region.outputs))
    digest = hashlib.blake2b(f"{by}\n{print_graph(region)}".encode(), digest_size=16).hexdigest()
    return CompiledRegion(TracedCall(digest, reads, gives, function), None, region)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """A region as code.

    Attributes:
        hot: the call; reads `x0`, `x1` ... and the results of `prepare`, by name.
        prepare: the call that packs frozen operands, or None.
        graph: the region.
    """

    hot: KernelCall
    prepare: KernelCall | None
    graph: Graph


class Backend(Priced, Protocol):
    """A maker of kernels for regions.

    The default methods suit a backend that caches nothing and searches nothing.

    Attributes:
        tuner: the function that searches a region's schedules on the machine at hand, as `module:name`; empty where
            there is none. It is called as `superopt.schedules.tune.tune` is.
    """

    tuner: str = ""

    @property
    def boundary(self) -> Boundary:
        """The model of the cost between its kernels in a program; unknown by default."""
        return NOTHING

    def unavailable(self) -> str:
        """Return the reason why this process runs no kernels of it; empty when it does."""
        return ""

    def default_traces(self, region: Graph) -> Iterator[tuple[Any, ...]]:
        """Yield the schedules that a region gets without search, if any, each plainer than the one before.

        Raises:
            InputError: no kernel can be made of it.
        """
        ...

    def build(self, region: Graph, trace: OptionalTrace = None) -> CompiledRegion:
        """Build a region as code, with its default schedule where no trace is given.

        Raises:
            InputError: no kernel can be made of it here.
        """
        ...

    def key(self, region: Graph, trace: OptionalTrace = None) -> str:
        """Return a cache key of a region's code on this machine, for facts about it; empty where nothing is cached.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return ""

    def run(self, kernel: CompiledRegion, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run a kernel alone on these values of the region's inputs, with all checks of memory accesses there are.

        Raises:
            SuperoptError: it wrote outside of its buffers, or cannot be run.
        """
        call = jax_jit(kernel.hot.call)
        return [np.asarray(x) for x in call(*[values[b.name] for b in kernel.hot.operands])]

    def time(self, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> TimedCall:
        """Return a graph as a call of its own, its operands, and which of these are made of frozen ones.

        Args:
            graph: the graph to call.
            operands: one for each input.
            options: options of XLA's compiler, or `trace`: the schedule in place of the default one.

        Raises:
            InputError: no kernel can be made of it here.
        """
        ...

    def prove(self, region: Graph, trace: OptionalTrace, ledger: ScheduleLedger | None = None) -> ScheduleVerdict:
        """Return the verdict on a region's schedule as this machine builds it, from the ledger or proved anew.

        Raises:
            InputError: the trace does not fit the region, or no kernels run here.
        """
        if reason := self.unavailable():
            raise InputError(reason)
        program = from_graph(region.outputs)
        steps = default_trace(self, region) if trace is None else trace
        return (ledger or ScheduleLedger()).check(program, apply(program, steps))

    def validate(self, region: Graph, trace: OptionalTrace = None) -> KernelVerdict:
        """Validate the machine code of a region; unknown where no validator reads the code of this backend.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return KernelVerdict(UNKNOWN, "nothing here reads the code of this backend", 0.0)

    def recorded(self, region: Graph, trace: OptionalTrace = None) -> KernelVerdict | None:
        """Return the earlier verdict of `validate` on this very code; None where there is none.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return None


def backend_of(name: str) -> Backend:
    """Return a new backend of this name, which keeps no state of earlier calls.

    Raises:
        InputError: there is none.
    """
    if name not in _MAKERS:
        raise InputError(f"there is no backend {name!r}")
    return resolve(_MAKERS[name])()


def for_device() -> Backend:
    """Return the backend that makes kernels for the default device of JAX; it may be unavailable."""
    return backend_of(_BY_DEVICE.get(jax.default_backend(), NATIVE))


def default_trace(backend: Backend, region: Graph) -> tuple[Any, ...]:
    """Return the schedule that a region gets without search: the first of `Backend.default_traces`.

    Raises:
        InputError: no kernel can be made of it.
    """
    trace = next(backend.default_traces(region), None)
    if trace is None:
        raise InputError("no default schedule of the region has code")
    return trace
