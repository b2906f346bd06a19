"""The Pallas backend: regions as GPU kernels, which Triton compiles inside of the program.

Under the name `pallas interpreted` XLA interprets the same kernels on any device: slowly, and priced as if a GPU ran
them.  That is how the whole pipeline is tested without a GPU.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from costmodel.arrays import PerKernel
from costmodel.model.card import UNKNOWN, CardRoofline
from superopt.backends.mixed import alone
from superopt.backends.protocol import (
    INTERPRETED,
    PALLAS,
    Backend,
    CompiledRegion,
    OptionalTrace,
    TimedCall,
    default_trace,
    traced,
)
from superopt.backends.xla import card_model
from superopt.errors import InputError, UnsupportedKernel
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.ops.table import CONVOLUTIONS, PREFIXES, PRODUCTS
from superopt.ir.scalar import SCALARS
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.choose.regions import is_inside
from superopt.kernels.loops.program import from_graph
from superopt.kernels.pallas import space
from superopt.kernels.pallas.lower import lower
from superopt.kernels.pallas.scalars import has_code
from superopt.kernels.schedule.trace import apply
from superopt.machine.jitting import jax_jit

_COPIED = 3.0  # time of `tf32` and int8 products over XLA's (docs/kernels.md): Triton copies operands by element
_DEFAULTS = 3  # schedules that are tried for a region: where a third is not proved either, XLA computes it
_FAULTS = (NotImplementedError, ValueError, TypeError, jax.errors.JaxRuntimeError)  # errors of Pallas and Triton


class Pallas(Backend):
    """The backend of Pallas kernels (`superopt.backends.protocol`).

    Args:
        interpret: have XLA interpret them, on whatever device there is.
    """

    def __init__(self, interpret: bool = False) -> None:
        self.interpret, self.name = interpret, INTERPRETED if interpret else PALLAS

    @functools.cached_property
    def _model(self) -> CardRoofline:
        return card_model() or CardRoofline(UNKNOWN)

    @property
    def version(self) -> str:
        """The version of the GPU's model."""
        return self._model.version

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of regions by a roofline from the GPU's data sheet."""
        return self._model.price(kernels) * [_COPIED if _is_copied(kernel) else 1.0 for kernel in kernels]

    def can_run(self, region: Graph) -> bool:
        """Whether all ops of the region have code, at most 32 bits, and no prefixes, which would be quadratic."""
        return all(node.op == "input" or _runs(node) for node in region.nodes())

    def unavailable(self) -> str:
        """Return the reason why this process runs no kernels; empty when it does.

        The reason is another device, or that Triton failed on the first kernel.
        """
        return "" if self.interpret else _unavailable()

    def default_traces(self, region: Graph) -> Iterator[tuple[Any, ...]]:
        """Yield the first guesses of `superopt.kernels.pallas.space`, those of all stages in step."""
        yield from _default_traces(region)

    def build(self, region: Graph, trace: OptionalTrace = None) -> CompiledRegion:
        """Build the region as a JAX function made of Pallas calls.

        Raises:
            InputError: it has no such kernel, or none runs here.
        """
        if reason := self.unavailable():
            raise InputError(reason)
        return _compiled(self.name, self.interpret, region, default_trace(self, region) if trace is None else trace)

    def run(self, kernel: CompiledRegion, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the kernel; memory accesses on a GPU are not watched, but masks keep them in its buffers."""
        try:
            return super().run(kernel, values)
        except _FAULTS as fault:
            raise UnsupportedKernel(f"{type(fault).__name__}: {fault}"[:300]) from fault

    def time(self, graph: Graph, operands: Sequence[Any], options: Mapping[str, Any]) -> TimedCall:
        """Compile a program that is this kernel alone, for timing."""
        return alone(self, graph, operands, options)


interpreted = functools.partial(Pallas, interpret=True)


@functools.lru_cache(maxsize=1024)
def _default_traces(region: Graph) -> tuple[tuple[Any, ...], ...]:
    program, precision = from_graph(region.outputs), _precision(region)
    stages = [space.candidates(program, stage.buffer, precision)[:_DEFAULTS] for stage in program.stages]
    count = max(map(len, stages))
    return tuple(tuple(itertools.chain(*(some[min(i, len(some) - 1)] for some in stages))) for i in range(count))


def _precision(region: Graph) -> str:
    """Return the precision in which XLA multiplies float32 on a GPU as the region asks for it, or a higher one.

    Products that ask for none are `tf32` there.
    """
    asked = {node["precision"] for node in region.nodes() if node.op in CONVOLUTIONS | PRODUCTS}
    if not asked or "highest" in asked:
        return "ieee"
    return "tf32x3" if "high" in asked else "tf32"


def _is_copied(region: Graph) -> bool:
    """Whether a region has products on matrix units of other than 16 bits."""
    kinds = {x.dtype for node in region.nodes() if node.op in CONVOLUTIONS | PRODUCTS for x in node.inputs}
    return "int8" in kinds or ("float32" in kinds and _precision(region) != "ieee")


@functools.lru_cache(maxsize=1024)
def _compiled(name: str, interpret: bool, region: Graph, steps: tuple[Any, ...]) -> CompiledRegion:
    """Build a region once per schedule: equal regions are one function, which a program traces once."""
    program = apply(from_graph(region.outputs), steps)
    function = lower(program, interpret)
    names = [node["name"] for node in region.inputs]
    order = [names.index(b.name) for b in program.buffers if b.scope in ("input", "frozen")]
    return traced(f"{name} {steps}", region, jax_jit(lambda *arrays: function(*[arrays[i] for i in order])))


def _runs(node: Node) -> bool:
    wide = any(ITEMSIZE_BYTES.get(t.dtype) == 8 for x in (node, *node.inputs) for t in x.types)
    return is_inside(node) and not wide and node.op not in PREFIXES and (node.op not in SCALARS or has_code(node.op))


@functools.cache
def _unavailable() -> str:
    if jax.default_backend() != "gpu":
        return f"they run on graphics cards, programs here on {jax.default_backend()}"
    x = make_input("x", (33, 47))
    value = np.linspace(-3.0, 3.0, 33 * 47, dtype=np.float32).reshape(33, 47)
    try:
        (got,) = jax_jit(lower(space.scheduled(from_graph((mk("exp", x),))), interpret=False))(value)
        return "" if np.allclose(got, np.exp(value), rtol=1e-5) else "the first kernel gave wrong values"
    except Exception as fault:  # whatever Triton lacks here, programs go on without its kernels
        return f"the first kernel failed: {type(fault).__name__}: {fault}"[:200]
