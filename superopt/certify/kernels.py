"""Checks of a program's kernels: schedules are proved, machine code is validated, saved kernels are compared with XLA.

The loop program of a region is its denotation; its schedule is checked against that (`verifier.schedules`): layouts,
bounds, completeness, order of tasks, values.  Code generation is not part of that check.  The code itself is compared
with the denotation (`verifier.kernels`), which runs every kernel once in a finite field.  This is done for the returned
program and for a loaded one, as far as their time allows, and for each kernel once on a machine: the verdict is stored
beside its object.

A schedule in a file may be legal and proved, and its code still be wrong on a machine that it was not tried on: another
processor, another version of LLVM.  Every kernel of a loaded program is therefore run on random arrays between bands of
memory, once on a machine; one that writes outside of them or differs is left to XLA.  An agreement is recorded beside
its code.

The arrays have the shapes of the program, which a small file may state freely.  Loading compares kernels within a few
seconds and the size of the file (`too_large`); the rest waits for the first call, whose arrays are as large.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.arrays.bundles import random_values
from superopt.backends import made
from superopt.backends.protocol import Backend, CompiledRegion, backend_of
from superopt.backends.xla import build
from superopt.certify.beside import CodeCase, validated_beside
from superopt.errors import SuperoptError
from superopt.ir.counters import graph_cost
from superopt.ir.expr import subexpressions
from superopt.ir.graph import Graph, Node
from superopt.ir.index import bounds
from superopt.ir.program import original_program
from superopt.ir.scalar import SCALARS
from superopt.kernels.choose.specs import KernelSpec, regions_of
from superopt.kernels.loops.program import from_graph
from superopt.machine.deadline import Deadline
from superopt.machine.facts import own
from superopt.machine.fallback import in_one_line
from superopt.machine.rates import NOMINAL
from superopt.measure.conditioning import beyond_rounding
from superopt.measure.exact import neighbours_of_kernel
from superopt.measure.numerics import computed_in
from superopt.measure.rates import measured
from verifier.kernels.check import KernelVerdict, version
from verifier.schedules import ScheduleVerdict
from verifier.schedules.ledger import ScheduleLedger
from verifier.verdict import PROVED, REFUTED, UNKNOWN

MOST_ELEMENTS = 1 << 23  # values of a kernel: random arrays, results and their float64 take about 30 bytes each
MOST_VALIDATION_S = 60.0  # for the machine code of all kernels of a file, or of a call without a clock
MOST_IN_FIELD = 1 << 26  # elements in the buffers of a kernel whose code is validated, and
_FIELD_BYTES, _PART_OF_MEMORY = 40, 4  # bytes of an element there (19 to 35); the part of memory it may fill
MOST_SECONDS = 3.0  # for all kernels of a file together, beside the rest of loading
_FLOPS_PER_S = 5e9  # of one core of the nominal processor, by the kernel and by XLA, where neither is good at it
_TRANSCENDENTALS_PER_S = 2e8  # the same, of exponentials and their like
# kernels of ResNet-50, of Inception v1 (plain) and 12 of Winograd take 8.9, 12.6, 14.0 s; said are 11.0, 11.6, 13.7
_ITERATIONS_PER_S = 9e8  # of code in the field; 2e8 on a slower machine
_VALUES_PER_S = 4e7  # of a loop program in the field: sums and products
_FUNCTIONS_PER_S = 4e6  # transcendental functions in the field
_FUNCTIONS = frozenset(name for name, fn in SCALARS.items() if fn.transcendental)
_CODE_S = 0.018  # per operation, to write the code of a kernel, to read it, and to compile its rewritten form
_TOO_LONG = "no time was left for it"
_TOO_MUCH = "it would take too much memory"
_ELEMENTS_PER_S = 1.5e7  # made at random, computed twice, compared in float64


def too_large(hot: Graph, specs: Sequence[KernelSpec], live: int) -> dict[int, str]:
    """Return the specs whose kernels are not yet compared and would need too much time or memory, with reasons.

    Args:
        hot: the program.
        specs: its kernels.
        live: how many of the inputs are arguments; the others are in the file, and allow as many elements more.
    """
    given = sum(_size(n) for n in hot.inputs[live:])
    reasons: dict[int, str] = {}
    known: dict[tuple[Graph, tuple[Any, ...] | None, str], str] = {}
    left = MOST_SECONDS + given / _ELEMENTS_PER_S
    for number, (region, spec) in enumerate(zip(regions_of(hot, specs), specs, strict=True)):
        case = (region.graph, spec.trace, spec.backend)
        if case not in known:
            known[case] = ""
            if not _known(*case):
                elements, takes = _elements(case[0]), _seconds(case[0])
                if elements > MOST_ELEMENTS + given or takes > left:
                    known[case] = f"it works on {elements} elements, for about {takes:.1f} s"
                else:
                    left -= takes
        if known[case]:
            reasons[number] = known[case]
    return reasons


def _elements(graph: Graph) -> int:
    """Count the elements of a region's inputs and outputs, and of the largest value between."""
    nodes = {*graph.nodes(), *graph.inputs}
    ends = {*graph.inputs, *graph.outputs}
    return sum(_size(n) for n in ends) + max((_size(n) for n in nodes - ends), default=0)


def _size(node: Node) -> int:
    return sum(math.prod([int(n) for n in t.shape]) for t in node.types)  # pyright: ignore[reportArgumentType] (concrete here)


def _seconds(graph: Graph) -> float:
    cost = graph_cost(graph)
    compute = cost.flops / _FLOPS_PER_S + cost.transcendentals / _TRANSCENDENTALS_PER_S
    return _here_s(compute + _elements(graph) / _ELEMENTS_PER_S)


def _here_s(nominal_s: float) -> float:
    """Return the seconds on this processor of work that takes the nominal one so long."""
    return nominal_s * NOMINAL.hertz / measured().hertz


def _known(graph: Graph, trace: tuple[Any, ...] | None, backend: str) -> bool:
    """Whether the kernel was validated on this machine, or found to agree with XLA; no kernel is loaded to know."""
    try:
        key = backend_of(backend).key(graph, trace)
    except SuperoptError:  # the build says so
        return True
    return bool(key) and (made.has_verdict(key, version(), PROVED) or made.agrees(key))


def disagreeing(hot: Graph, specs: Sequence[KernelSpec]) -> dict[int, str]:
    """Return the specs whose kernels do not give XLA's values, by number, with reasons.

    Those without a kernel are not run, nor those whose code is proved: they were near float64 on floats as well.
    """
    cases = [(r.graph, c.trace, c.backend) for r, c in zip(regions_of(hot, specs), specs, strict=True)]
    known: dict[CodeCase, str] = {}
    for case in dict.fromkeys(cases):
        known[case] = ""
        try:
            backend = backend_of(case[2])
            kernel = backend.build(*case[:2])
            key = backend.key(*case[:2])
        except SuperoptError:  # the build says so
            continue
        said, of = _recorded(case), made.objects(kernel.hot, kernel.prepare)
        if (said is not None and said.proved) or (key and made.agrees(key, of)):
            continue
        known[case] = difference_from_xla(backend, kernel)
        if key and not known[case]:
            made.agree(key, of)
    return {number: known[case] for number, case in enumerate(cases) if known[case]}


def difference_from_xla(backend: Backend, kernel: CompiledRegion) -> str:
    """Return how a region's kernel differs from XLA's version on random arrays; empty where it does not."""
    values = random_values({n["name"]: (n.shape, n.dtype) for n in kernel.graph.inputs}, 0)
    expected = _of_xla(kernel.graph, values)
    if not all(np.isfinite(x.astype(np.float64)).all() for x in expected if x.dtype.kind not in "biu"):
        values = {n: x if x.dtype.kind in "biu" else np.abs(x) for n, x in values.items()}
        expected = _of_xla(kernel.graph, values)
    try:
        got = backend.run(kernel, values)
    except SuperoptError as error:
        return str(error.args[0])
    near = neighbours_of_kernel(kernel.graph, values)
    beyond = beyond_rounding(near, computed_in(kernel.graph), expected, got)
    if beyond is None:
        return ""
    _, error = beyond
    sizes = f"normwise {error.normwise:.1e}, elementwise {error.elementwise:.1e}"
    return f"it differs from XLA's values: {error.detail or sizes}"


def _of_xla(graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    program = original_program(graph)
    frozen = {n["name"]: values[n["name"]] for n in graph.inputs if n["frozen"]}
    return [np.asarray(x) for x in build(program, frozen)(*[values[n["name"]] for n in program.live_inputs])]


def prove_kernels(
    hot: Graph,
    specs: Sequence[KernelSpec],
    ledger: ScheduleLedger | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int, str]:
    """Return the number of proved distinct schedules, and why the first other one is not (empty when all are).

    Raises:
        InputError: specs that do not fit the program.
    """
    proved: dict[tuple[Graph, object, str], ScheduleVerdict] = {}
    for region, spec in zip(regions_of(hot, specs), specs, strict=True):
        key = (region.graph, spec.trace, spec.backend)
        if key in proved:
            continue
        verdict = proved[key] = backend_of(spec.backend).prove(region.graph, spec.trace, ledger)
        say(f"{region}: {verdict.status} in {1e3 * verdict.seconds:.0f} ms")
        if not verdict.proved:
            return len(proved) - 1, f"the schedule of the kernel {region} is {verdict.status}: {verdict.cause}"
    return len(proved), ""


@dataclass(frozen=True, slots=True)
class Refutation:
    """A kernel whose machine code does not compute what its schedule says.

    Attributes:
        kernel: the name of its region.
        cause: the difference.
    """

    kernel: str
    cause: str

    def __str__(self) -> str:
        return f"the code of the kernel {self.kernel} is wrong: {self.cause}"


@dataclass(frozen=True, slots=True)
class ValidatedCode:
    """The verdicts of validation on the machine code of a program's kernels, equal ones counted once.

    Attributes:
        proved: number of kernels that compute their regions.
        unknown: reasons why the others are undecided, each with its number of kernels.
        refuted: spec whose kernel is wrong, by number -> the kernel and its fault; equal kernels are listed each.
        untried: numbers of the specs for which no time was left.
    """

    proved: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict[str, int])
    refuted: Mapping[int, Refutation] = field(default_factory=dict[int, Refutation])
    untried: frozenset[int] = field(default=frozenset(), compare=False)

    @property
    def count(self) -> int:
        """The number of all kernels."""
        return self.proved + sum(self.unknown.values()) + len(set(self.refuted.values()))

    def figures(self) -> dict[str, Any]:
        """Return the figures for the report."""
        return {"validated": self.proved, "unknown": dict(self.unknown), "refuted": len(set(self.refuted.values()))}


def validate_code(
    hot: Graph,
    specs: Sequence[KernelSpec],
    most_s: float = math.inf,
    most_elements: int = MOST_IN_FIELD,
    halted: Callable[[], bool] = lambda: False,
    *,
    beside: bool = False,
) -> ValidatedCode:
    """Validate the machine code of a program's kernels: those not on record anew, the short ones first.

    Args:
        most_s: seconds that all may take; kernels that are likely to take longer are unknown.
        most_elements: most elements in the buffers of a kernel; larger ones are unknown.
        halted: no further validation begins once it returns true.
        beside: use further processes where that takes less time.

    Raises:
        InputError: specs that do not fit the program.
    """
    cases = _cases(hot, specs)
    verdicts = {case: _recorded(case) for case in cases}
    seconds = {case: _field_s(case[0]) for case, said in verdicts.items() if said is None}
    deadline, waiting = Deadline.within(most_s), sorted(seconds, key=lambda case: seconds[case])
    shared = beside and sum(seconds.values()) > MOST_SECONDS  # a worker is ready after 2 s of a core
    with validated_beside([case for case in waiting[::-1] if shared and _fits(case[0], most_elements)]) as done:
        for case in waiting:
            verdicts[case] = KernelVerdict(UNKNOWN, _TOO_LONG, 0.0)
            if not halted() and seconds[case] <= deadline.left_s:
                said = _recorded(case) if done(case) else None
                verdicts[case] = said or validated(backend_of(case[2]), case[0], case[1], most_elements)
    unknown, refuted, untried = Counter[str](), dict[int, Refutation](), set[int]()
    for case, verdict in verdicts.items():
        assert verdict is not None
        if verdict.status == REFUTED:
            region = regions_of(hot, [specs[cases[case][0]]])[0]
            refuted |= dict.fromkeys(cases[case], Refutation(str(region), verdict.cause))
        elif not verdict.proved:
            unknown[verdict.cause] += 1
            untried.update(cases[case] if verdict.cause == _TOO_LONG else ())
    proved = sum(v is not None and v.proved for v in verdicts.values())
    return ValidatedCode(proved, unknown, refuted, frozenset(untried))


def validated(
    backend: Backend, graph: Graph, trace: tuple[Any, ...] | None, most_elements: int = MOST_IN_FIELD
) -> KernelVerdict:
    """Return the verdict on a region's machine code; unknown where validation fails or takes too much memory."""
    if _fits(graph, most_elements):
        try:
            return backend.validate(graph, trace)
        except MemoryError:
            pass
        except Exception as error:  # unforeseen text: the program must not be lost with it
            return KernelVerdict(UNKNOWN, f"validation failed: {in_one_line(error)}", 0.0)
    return KernelVerdict(UNKNOWN, _TOO_MUCH, 0.0)


def _fits(graph: Graph, most_elements: int) -> bool:
    """Whether the buffers of a region have no more elements than this, and than memory has room for in the field."""
    most_elements = min(most_elements, own().memory_bytes // (_PART_OF_MEMORY * _FIELD_BYTES) or most_elements)
    return sum(math.prod(buffer.shape) for buffer in from_graph(graph.outputs).buffers) <= most_elements


def code_s(hot: Graph, specs: Sequence[KernelSpec]) -> float:
    """Estimate the seconds that `validate_code` takes for kernels not on record; no kernel is loaded to know."""
    total_s = 0.0
    for graph, trace, backend in _cases(hot, specs):
        total_s += 0.0 if was_validated(backend_of(backend), graph, trace) else _field_s(graph)
    return total_s


def was_validated(backend: Backend, graph: Graph, trace: tuple[Any, ...] | None) -> bool:
    """Whether any verdict on a region's machine code is on record on this machine; no kernel is loaded to know."""
    key = backend.key(graph, trace)
    return bool(key) and made.has_verdict(key, version())


def _recorded(case: CodeCase) -> KernelVerdict | None:
    try:
        return backend_of(case[2]).recorded(case[0], case[1])
    except SuperoptError as error:  # then XLA computes it
        return KernelVerdict(UNKNOWN, f"it cannot be made here: {error.args[0]}", 0.0)


def _cases(hot: Graph, specs: Sequence[KernelSpec]) -> dict[CodeCase, list[int]]:
    """Return the distinct kernels of a program, each with the numbers of its specs."""
    groups: dict[CodeCase, list[int]] = {}
    for number, (region, spec) in enumerate(zip(regions_of(hot, specs), specs, strict=True)):
        groups.setdefault((region.graph, spec.trace, spec.backend), []).append(number)
    return groups


def _field_s(graph: Graph) -> float:
    """Estimate the seconds to run a region's loop program and its code in the finite field.

    A value is computed once for each point of the iterators that it depends on.  Summed products, those under the guard
    of a padding too, are matrix products there, of which only the code's iterations are counted.
    """
    values, functions, iterations = 0, 0, 0
    for stage in from_graph(graph.outputs).stages:
        every = subexpressions(stage.value)
        summed = {e.args[2] for e in every if e.kind == "reduce"}
        summed |= {e.args[1] for e in summed if e.kind == "where"}
        products = {e for e in summed if e.kind == "op" and e.args[0] == "mul"}
        points = {e: math.prod([int(bounds(s.extent)[1]) for s in e.symbols]) for e in every}
        values += sum([points[e] for e in every if e.kind == "op" and e not in products])
        functions += sum([points[e] for e in every if e.kind == "op" and e.args[0] in _FUNCTIONS])
        iterations += max(points.values())
    ops = sum([node.op not in ("input", "literal") for node in graph.nodes()])
    seconds = values / _VALUES_PER_S + functions / _FUNCTIONS_PER_S + iterations / _ITERATIONS_PER_S
    return _here_s(_CODE_S * ops + seconds)
