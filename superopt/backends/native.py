"""The native backend: regions as our own machine code for CPUs.

A kernel is an FFI call.  Frozen operands are packed by a kernel of its own.  Objects are cached on disk, keyed by
region and schedule (`superopt.backends.made`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from costmodel.arrays import KernelMask, PerKernel
from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.joint import NativeModel
from costmodel.model.load import load_native
from costmodel.model.objective import outside_of, uncertainty_of
from superopt.backends import made, protocol
from superopt.backends.made import find, keep, key_of
from superopt.backends.mixed import alone
from superopt.backends.protocol import Backend, CompiledRegion, OptionalTrace, TimedCall
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.kernels.choose import defaults
from superopt.kernels.choose.regions import has_kernel
from superopt.kernels.choose.specs import NATIVE
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.program import from_graph
from superopt.kernels.runtime.ffi import probe
from superopt.kernels.runtime.kernel import Code, Kernel
from superopt.kernels.runtime.kernel import build as build_kernel
from superopt.kernels.schedule.trace import apply
from superopt.machine.facts import usable_cores
from verifier.kernels.check import KernelPart, KernelVerdict, validate, version
from verifier.kernels.scalars import known
from verifier.verdict import REFUTED


class Native(Backend):
    """Kernels of our own for the processor at hand (`superopt.backends.protocol`)."""

    name = NATIVE
    tuner = "superopt.schedules.tune:tune"

    @functools.cached_property
    def _known(self) -> NativeModel | None:
        return load_native()

    @property
    def version(self) -> str:
        """The version of the model that ships; empty where it is unusable."""
        return "" if self._known is None else self._known.version

    @property
    def boundary(self) -> Boundary:
        """The model of the cost between kernels."""
        return NOTHING if self._known is None else self._known.boundary

    def can_run(self, region: Graph) -> bool:
        """Whether all of the region is of types and ops that have code."""
        return all(node.op == "input" or has_kernel(node) for node in region.nodes())

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of regions predicted by the model that ships; infinite without one."""
        return np.full(len(kernels), np.inf) if self._known is None else self._known.regions.price(kernels)

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price."""
        return np.ones(len(kernels)) if self._known is None else uncertainty_of(self._known.regions, kernels)

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Return, for each kernel, whether it is outside the model's training domain."""
        return None if self._known is None else outside_of(self._known.regions, kernels)

    def unavailable(self) -> str:
        """Return the reason why this process runs no kernels; empty when it does."""
        return unavailable()

    def default_traces(self, region: Graph) -> Iterator[tuple[Any, ...]]:
        """Yield the default schedules; see `default_traces`."""
        return default_traces(region)

    def build(self, region: Graph, trace: OptionalTrace = None) -> CompiledRegion:
        """Build a region; see `compiled`."""
        return compiled(region, trace)

    def key(self, region: Graph, trace: OptionalTrace = None) -> str:
        """Return the name of its object on disk."""
        return key_of(region, default_trace(region) if trace is None else trace)

    def run(self, kernel: CompiledRegion, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run once on one thread, with bands around all buffers.

        Raises:
            GuardError: something was written outside of a buffer.
        """
        arrays = dict(values)
        if kernel.prepare is not None:
            assert isinstance(kernel.prepare, Kernel)
            arrays |= kernel.prepare.run(arrays, threads=1, guard=True)
        assert isinstance(kernel.hot, Kernel)
        results = kernel.hot.run(arrays, threads=1, guard=True)
        return [results[b.name] for b in kernel.hot.outputs]

    def machine(
        self, region: Graph, trace: OptionalTrace = None
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """Return a region's machine code as a function from input arrays by name to results by name."""
        kernel = self.build(region, trace)

        def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {b.name: x for b, x in zip(kernel.hot.outputs, self.run(kernel, values), strict=True)}

        return run

    def validate(self, region: Graph, trace: OptionalTrace = None) -> KernelVerdict:
        """Validate the machine code of a region: its values, its memory accesses, and that no two tasks conflict.

        The code is generated anew; the digest of the cached object shows that it was compiled from that very text.
        Unless the code is refuted, the verdict is stored beside that object.

        Raises:
            InputError: no kernel can be made of it here.
        """
        trace = default_trace(region) if trace is None else trace
        runs = _runs(region, trace)
        if [k.digest for k in runs] != [build_kernel(code).digest for code in _written(region, trace) if code]:
            return KernelVerdict(REFUTED, "the object that is kept for it is not made of its code", 0.0)
        before = from_graph(region.outputs)
        verdict = validate(before, parts_of(region, trace), known(), 0, 1, self.machine(region, trace))
        key = key_of(region, trace)
        if key and version() and verdict.status != REFUTED:
            made.keep_verdict(key, version(), made.objects(*runs), verdict.status, verdict.cause)
        return verdict

    def recorded(self, region: Graph, trace: OptionalTrace = None) -> KernelVerdict | None:
        """Return the stored verdict of this validation version on the objects that run; None where there is none.

        Nothing is built where there is none: `validate` writes the code right before it reads it.
        """
        trace = default_trace(region) if trace is None else trace
        key = key_of(region, trace)
        known = bool(key and version()) and made.has_verdict(key, version())
        said = made.verdict(key, version(), made.objects(*_runs(region, trace))) if known else None
        return None if said is None else KernelVerdict(*said, 0.0)

    def time(self, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> TimedCall:
        """Compile a program that is this kernel alone, for timing."""
        return alone(self, graph, operands, options)


@functools.cache
def unavailable() -> str:
    """Return the reason why this process runs no kernels; empty when it does."""
    if jax.default_backend() != "cpu":
        return f"they run on processors, programs here on {jax.default_backend()}"
    return probe() if supported() else f"none are made for {host().name}"


@functools.lru_cache(maxsize=1024)
def compiled(graph: Graph, trace: OptionalTrace = None) -> CompiledRegion:
    """Build a region as machine code; equal regions with equal schedules are built once.

    Raises:
        InputError: no kernel can be made of it here.
    """
    if trace is None:
        trace = default_trace(graph)
    key = key_of(graph, trace)
    parts = None if unavailable() or not key else find(key)
    if parts is None:
        if reason := unavailable():
            raise InputError(reason)
        hot, early = _written(graph, trace)
        parts = build_kernel(hot), None if early is None else build_kernel(early)
        if key:
            keep(key, parts)
    return CompiledRegion(*parts, graph)


def parts_of(region: Graph, trace: OptionalTrace = None) -> list[KernelPart]:
    """Return the code of a region for validation: the packing of its frozen operands, if any, and every call's code.

    Raises:
        InputError: no kernel can be made of it here.
    """
    hot, early = _written(region, default_trace(region) if trace is None else trace)
    made = [code for code in (early, hot) if code is not None]
    return [KernelPart(code.module.text(), [(p.symbol, p.tasks) for p in code.phases], code.pointers) for code in made]


def _runs(region: Graph, trace: tuple[Any, ...]) -> list[Kernel]:
    """Return the kernels that run for a region."""
    runs = compiled(region, trace)
    return [kernel for kernel in (runs.hot, runs.prepare) if isinstance(kernel, Kernel)]


@functools.lru_cache(maxsize=4)  # whether a default schedule has code is asked right before it is built
def _written(graph: Graph, trace: tuple[Any, ...]) -> tuple[Code, Code | None]:
    return defaults.written(apply(from_graph(graph.outputs), trace))


@functools.lru_cache(maxsize=1024)
def default_trace(graph: Graph) -> tuple[Any, ...]:
    """Return the default schedule of a region on this machine: the first of `default_traces`.

    Raises:
        InputError: no kernel can be made of it.
    """
    return protocol.default_trace(Native(), graph)


def default_traces(graph: Graph) -> Iterator[tuple[Any, ...]]:
    """Yield the default schedules of a region for which there is code, each plainer than the one before.

    A schedule that is not proved, or whose kernel differs from XLA's values, is followed by a plainer one.
    """
    program = from_graph(graph.outputs)
    for steps in defaults.traces(program, host(), usable_cores()):
        key = key_of(graph, steps)
        if not key or unavailable() or find(key) is None:
            try:
                _written(graph, steps)
            except InputError:
                continue
        yield steps
