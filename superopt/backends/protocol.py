"""What a backend is, by name: all that the pipeline knows of those who compute kernels.

    can_run     is there code for such a region: asked of all that the search prices
    price       seconds of regions, before anything is timed
    build       a region with a schedule as code
    time        a graph as a call of its own, to be timed
    prove       does a schedule compute its region, and touch nothing else
    validate    does the machine code of a region compute it, whatever its schedule says
    recorded    what validation said of it earlier

XLA is the host: it builds every program, and calls what others compute (`superopt.backends.mixed`).  Which other one
makes kernels follows from the device that programs run on (`for_device`).  Between processes and in files a backend is
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
from superopt.kernels.choose.choice import NATIVE
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import Buffer, Scope
from superopt.kernels.schedule.trace import apply
from superopt.machine.jitting import jax_jit
from superopt.measure.kernels import XLA
from superopt.measure.session import resolve
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
Trace = tuple[Any, ...] | None
Timed = tuple[Callable[..., Any], Sequence[Any], Sequence[int]]


class KernelCall(Protocol):
    """Code that is called inside of a program.

    Attributes:
        operands: what it reads, by name, in the order of the arguments.
        outputs: what it gives.
        digest: identifies the code.
    """

    @property
    def digest(self) -> str: ...
    @property
    def operands(self) -> tuple[Buffer, ...]: ...
    @property
    def outputs(self) -> tuple[Buffer, ...]: ...

    def call(self, *arrays: Any) -> Sequence[Any]:
        """The outputs as JAX arrays, inside `jax.jit`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TracedCall:
    """Code that is a JAX function, and becomes a part of the program that calls it: see `KernelCall`."""

    digest: str
    operands: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    function: Callable[..., Sequence[Any]]

    def call(self, *arrays: Any) -> Sequence[Any]:
        """The outputs."""
        return self.function(*arrays)


def traced(by: str, region: Graph, function: Callable[..., Sequence[Any]]) -> CompiledRegion:
    """A region as a JAX function of its inputs.

    Args:
        by: says what the function is, beside the region.
        region: what it computes.
        function: takes an array for each input, in order.
    """

    def buffer(name: str, node: Node, scope: Scope) -> Buffer:
        return Buffer(name, tuple(map(int, node.shape)), node.dtype, scope)  # pyright: ignore[reportArgumentType] (concrete)

    reads = tuple(buffer(n["name"], n, "frozen" if n["frozen"] else "input") for n in region.inputs)
    gives = tuple(buffer(f"out{i}", n, "output") for i, n in enumerate(region.outputs))
    digest = hashlib.blake2b(f"{by}\n{print_graph(region)}".encode(), digest_size=16).hexdigest()
    return CompiledRegion(TracedCall(digest, reads, gives, function), None, region)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """A region as code.

    Attributes:
        hot: what a call runs; reads `x0`, `x1` ... and what `prepare` gives, by name.
        prepare: what packs frozen operands, or None.
        graph: the region.
    """

    hot: KernelCall
    prepare: KernelCall | None
    graph: Graph


class Backend(Priced, Protocol):
    """Computes regions; what is written out here holds for one that keeps and searches nothing.

    Attributes:
        searches: can schedules be searched on the machine at hand?
    """

    searches: bool = False

    @property
    def boundary(self) -> Boundary:
        """What lies between its kernels in a program: nothing that is known."""
        return NOTHING

    def unavailable(self) -> str:
        """Why this process runs no kernels of it; empty when it does."""
        return ""

    def default_traces(self, region: Graph) -> Iterator[tuple[Any, ...]]:
        """The schedules that a region gets without search, each plainer than the one before; none where it has none.

        Raises:
            InputError: no kernel can be made of it.
        """
        ...

    def build(self, region: Graph, trace: Trace = None) -> CompiledRegion:
        """A region as code, with its default schedule where no trace is given.

        Raises:
            InputError: no kernel can be made of it here.
        """
        ...

    def key(self, region: Graph, trace: Trace = None) -> str:
        """Identifies the code of a region on this machine, to keep what is known of it; empty where nothing is kept.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return ""

    def run(self, kernel: CompiledRegion, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What a kernel gives for these values of the region's inputs, run alone and watched as closely as can be.

        Raises:
            SuperoptError: it wrote outside of its buffers, or cannot be run.
        """
        call = jax_jit(kernel.hot.call)
        return [np.asarray(x) for x in call(*[values[b.name] for b in kernel.hot.operands])]

    def time(self, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> Timed:
        """A graph as a call of its own: the call, its operands, and which of these are made of frozen ones.

        Args:
            graph: what to call.
            operands: one for each input.
            options: of XLA's compiler, or `trace`: the schedule in place of the default one.

        Raises:
            InputError: no kernel can be made of it here.
        """
        ...

    def prove(self, region: Graph, trace: Trace, ledger: ScheduleLedger | None = None) -> ScheduleVerdict:
        """The verdict on the schedule of a region as this machine builds it, on record or anew.

        Raises:
            InputError: the trace does not fit the region, or no kernels run here.
        """
        if reason := self.unavailable():
            raise InputError(reason)
        program = from_graph(region.outputs)
        steps = default_trace(self, region) if trace is None else trace
        return (ledger or ScheduleLedger()).check(program, apply(program, steps))

    def validate(self, region: Graph, trace: Trace = None) -> KernelVerdict:
        """Does the machine code of a region compute it; unknown where nothing here reads the code of the backend.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return KernelVerdict(UNKNOWN, "nothing here reads the code of this backend", 0.0)

    def recorded(self, region: Graph, trace: Trace = None) -> KernelVerdict | None:
        """What `validate` said of this very code earlier, unless that is not known.

        Raises:
            InputError: no kernel can be made of it here.
        """
        return None


def backend_of(name: str) -> Backend:
    """The backend of a name, which knows nothing of earlier calls.

    Raises:
        InputError: there is none.
    """
    if name not in _MAKERS:
        raise InputError(f"there is no backend {name!r}")
    return resolve(_MAKERS[name])()


def for_device() -> Backend:
    """The backend that makes kernels for the default device of JAX; it may say that it is unavailable."""
    return backend_of(_BY_DEVICE.get(jax.default_backend(), NATIVE))


def default_trace(backend: Backend, region: Graph) -> tuple[Any, ...]:
    """The schedule that a region gets without search: the first of `Backend.default_traces`.

    Raises:
        InputError: no kernel can be made of it.
    """
    found = next(backend.default_traces(region), None)
    if found is None:
        raise InputError("no default schedule of the region has code")
    return found
