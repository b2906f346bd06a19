"""Numerical checks: a program's results against its original's, and the distance of both from a float64 evaluation.

Both checks run on the example inputs.  They also run on random inputs of the same spread where the program accepts any:
a loop need not end on inputs that its user would not give, and a callback may refuse them.  The reference interpreter
with every float widened to float64 supplies the reference values.  Programs with opaque operations or with loops of
unknown trip count, and those of very much work, are checked without it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.arrays.bundles import ON_DISK_BYTES
from superopt.arrays.placing import place_of, release
from superopt.backends import mixed
from superopt.backends.options import Options
from superopt.backends.xla import XlaExecutable, build
from superopt.candidates.evidence import NumericCheck
from superopt.errors import ProgramError
from superopt.ir import opaque
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph, Node, every_node
from superopt.ir.program import Program, original_program
from superopt.ir.types import FLOATS
from superopt.kernels.choose.specs import KernelSpec
from superopt.machine.background import BackgroundCall, TimeOverError
from superopt.machine.deadline import Deadline, Stopwatch, now_s
from superopt.machine.fallback import cause_of_run
from superopt.machine.jitting import jax_jit
from superopt.measure import ran
from superopt.measure.compare import LEFT_BEHIND, serialisable
from superopt.measure.conditioning import beyond_rounding
from superopt.measure.exact import LIMIT_LOOP_STEPS, exact_results, loop_steps, neighbours_of, prefix_steps
from superopt.measure.numerics import computed_in, output_errors
from superopt.workshop.job import Failure, JobWorker
from superopt.workshop.process import TIME_OVER, ProcessLimits

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped

    from superopt.frontends.jax.jaxpr import Imported

SHORT_NODES, SHORT_WORK, LIMIT_WINDOW = 200, 1e9, 1e3
_LONGEST = 300  # characters of a cause
_WAIT_S = 0.05  # between two looks at whether the calls of the original ended without results


class OriginalRuns:
    """The original of one run with its example inputs, and data that its checks share: executables and float64 results.

    Args:
        graph: the original.
        live: the example inputs.
        frozen: values of its frozen inputs.
        seed: seed of random inputs.
        exact: the function whose results must be matched in every bit; None where rounding may differ.
        worker: process in which the original is called, if it can be sent there and is not sure to be short.

    Attributes:
        end_s: instant (of a deadline) at which the original is ended, or left behind where it runs here.
        rest_s: how long calls of the original after the first are waited for, once somebody waits for its results.
        build_s: what the first call of the original took, the build included.
        call_s: what its last call took, or had taken when it was given up.
        given_up: a call after the first had not ended when it was not waited for any longer.
    """

    def __init__(
        self,
        graph: Graph,
        live: Sequence[Any],
        frozen: Mapping[str, Any],
        seed: int = 0,
        exact: Imported | None = None,
        worker: JobWorker | None = None,
    ) -> None:
        self.graph, self.live, self.frozen, self.seed, self.exact = graph, live, frozen, seed, exact
        self.worker = worker if serialisable(original_program(graph)) and not is_short(graph) else None
        self.end_s = self.rest_s = math.inf
        self.build_s = self.call_s = 0.0
        self._candidate: tuple[Any, ...] = (None,)
        self._lock = threading.Lock()
        self._calls: BackgroundCall[None] | None = None
        self._results: list[list[np.ndarray]] = []
        self._first, self._since, self.given_up = threading.Event(), Stopwatch(), False

    @classmethod
    def of(
        cls, imported: Imported, seed: int = 0, exact: bool = False, worker: JobWorker | None = None
    ) -> OriginalRuns:
        """The runs of an imported function."""
        return cls(
            imported.graph, imported.live_values, imported.frozen_values, seed, imported if exact else None, worker
        )  # fmt: skip

    @functools.cached_property
    def inputs(self) -> tuple[list[Any], ...]:
        """The example inputs, and random ones if the program accepts any and has floats to draw."""
        floats = any(str(np.asarray(x).dtype) in FLOATS for x in self.live)
        drawn = (_random_like(self.live, self.seed),) if floats and takes_any_input(self.graph) else ()
        return (list(self.live), *drawn)

    def begin(self) -> BackgroundCall[None]:
        """Start calling the original, unless that has begun; its time is `call_s` in the end."""
        with self._lock:
            if self._calls is None:
                if self.end_s == math.inf and self.worker is None and not is_short(self.graph):
                    self.end_s = now_s() + ProcessLimits().silence_s  # as in a process, where no budget ends it
                self._calls = BackgroundCall(self._called)
        return self._calls

    @property
    def wanted(self) -> tuple[tuple[list[Any], list[np.ndarray]], ...]:
        """The example inputs and random ones (if it takes any), each with the results of the original, computed once.

        Raises:
            ProgramError: it cannot be built, or called on the example inputs.
            OriginalLostError: its first call has not ended at `end_s`, or ended its process.
        """
        calls = self.begin()
        while not (calls.done or self._first.wait(min(_WAIT_S, Deadline(self.end_s).left_s))):
            if Deadline(self.end_s).is_over:
                break
        try:
            if not self.given_up:
                calls.result(Deadline(self.end_s).at_most(self.rest_s).end_s)
        except TimeOverError:
            if not self._results:
                here = f"; {LEFT_BEHIND}" if self.worker is None else ""
                raise OriginalLostError(f"a call of it had not ended when the time was over{here}") from None
            self._give_up()
        return tuple(zip(self.inputs, tuple(self._results), strict=False))

    def _give_up(self) -> None:
        """End the call of the original that goes on, or leave it behind: its results are not needed."""
        self.given_up = True
        self.call_s = self._since.elapsed_s
        if self.worker is not None:
            self.worker.close()

    @property
    def has_run(self) -> bool:
        """Whether the original has given results."""
        return bool(self._results)

    def _called(self) -> None:
        """Call the original on each list of inputs, and twice where there is only one list, if there is time.

        The first call includes the build: only another one tells how long a call takes.
        """
        inputs = self.inputs if len(self.inputs) > 1 else self.inputs * 2
        try:
            if self.worker is None:
                self._called_here(inputs)
            else:
                self._called_there(self.worker, inputs)
        finally:
            for x in (*self.graph.constants.values(), *self.frozen.values()):  # those that lie in a file
                release(x)

    def _called_here(self, inputs: Sequence[Sequence[Any]]) -> None:
        with of_the_program():
            original = build(original_program(self.graph), self.frozen)
            for given in inputs:
                watch = Stopwatch()
                results = _arrays(original(*given))
                if self.given_up:
                    return
                self._take(results, watch.elapsed_s)

    def _called_there(self, worker: JobWorker, inputs: Sequence[Sequence[Any]]) -> None:
        program = original_program(self.graph)
        found = ran(program, inputs, self.frozen, worker=worker, end_s=self.end_s, take=self._take)
        over = self.given_up or (found.lost is not None and found.lost.detail == TIME_OVER)
        if over and found.results:
            return
        if found.raised is not None and not found.results:
            raise ProgramError(f"{_CANNOT}: {cause_of_run(*found.raised, _LONGEST)}")
        if len(found.results) < len(self.inputs):
            why = found.lost or Failure("run", ": ".join(found.raised or ()))
            raise OriginalLostError(f"it gave no results to compare with ({why.cause}: {why.detail})")

    def _take(self, results: list[np.ndarray], seconds: float) -> None:
        self.build_s, self.call_s = max(self.build_s, seconds), seconds
        if len(self._results) < len(self.inputs):
            self._results.append(results)
        self._since = Stopwatch()
        self._first.set()

    def candidate(
        self, program: Program, options: Options | None = None, kernels: Sequence[KernelSpec] = ()
    ) -> XlaExecutable:
        """The program as built for its check, if that was the last program built; else built now."""
        key = (dict(options or {}), tuple(kernels))
        if self._candidate[0] is not program or self._candidate[1] != key:
            self._candidate = (program, key, mixed.build(program, self.frozen, options=options, kernels=kernels))
        return self._candidate[2]

    @functools.cached_property
    def truth(self) -> tuple[np.ndarray, ...] | None:
        """Results of the reference interpreter over float64, computed once; None where it has none."""
        return exact_results(self.graph, self.live, self.frozen)

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """The type whose rounding bounds the error of each output."""
        return computed_in(self.graph)

    @property
    def on_disk(self) -> bool:
        """Whether the weights are so large that they lie on disk, to be in memory only while they are read."""
        every = (*self.graph.constants.values(), *self.frozen.values())
        return sum(x.nbytes for x in every if place_of(x) is not None) >= ON_DISK_BYTES


def check(
    runs: OriginalRuns, program: Program, options: Options | None = None, kernels: Sequence[KernelSpec] = ()
) -> tuple[NumericCheck, str]:
    """Run a program, built with these options and kernels, and its original on the example and on random inputs.

    With `runs.exact`, results must agree with those of the original function in every bit.  They are compared on the
    example, on random inputs and on inputs with zeros of both signs, infinities, NaN, huge and tiny numbers.  Any NaN
    counts as any other.

    Returns:
        The differences, and why the program cannot be accepted (an empty string when it can).

    Raises:
        ProgramError: the original itself cannot be built or run.
    """
    yardstick = BackgroundCall(lambda: runs.truth, native=False)  # beside the program, as the original
    limited = runs.end_s < math.inf or is_short(runs.graph)
    runs.begin()
    if runs.on_disk or not limited:  # before the program: weights are released, or no end shows where it can be ended
        _ = runs.wanted, yardstick.by(runs.end_s)
    try:
        candidate = runs.candidate(program, options, kernels)
        candidate(*runs.live)
    finally:  # errors of the original take precedence over those of the program
        wanted, truth = runs.wanted, yardstick.by(runs.end_s)
    worst, cause, own = 0.0, "", list[np.ndarray]()
    for inputs, want in wanted:
        got = _arrays(candidate(*inputs))
        own = own or got
        errors = output_errors(want, got)
        cause = cause or _difference(runs, inputs, want, got)
        of_rounding = not cause  # where all that is left is rounding, it says nothing relative to the results
        worst = max([worst, *(e.normwise for e in errors if not of_rounding or math.isfinite(e.normwise))])
    if runs.exact is not None and not cause:
        cause = _bits(runs.exact, candidate, runs.live, runs.seed)
    drawn = len(wanted) > 1
    if truth is None:
        return NumericCheck(worst, drawn=drawn), cause
    apart: list[float] = []
    for found in (wanted[0][1], own):
        results = [r.astype(t.dtype) for r, t in zip(found, truth, strict=True)]
        far = (e.normwise for e in output_errors(truth, results))
        apart.append(max((x for x in far if cause or math.isfinite(x)), default=0.0))
    return NumericCheck(worst, apart[0], apart[1], drawn), cause


def _difference(
    runs: OriginalRuns, inputs: Sequence[Any], want: Sequence[np.ndarray], got: Sequence[np.ndarray]
) -> str:
    """The output that is farther from the original's than rounding explains, or an empty text."""
    near = neighbours_of(runs.graph, inputs, runs.frozen, runs.seed)
    beyond = beyond_rounding(near, runs.kinds, want, got)
    if beyond is None:
        return ""
    number, error = beyond
    if len(want) != len(got):
        return error.detail
    which = f"output {number}" if len(want) > 1 else "the output"
    if error.detail:
        return f"{which} differs from the original's: {error.detail}"
    a, b = want[number], got[number]
    wide = np.result_type(a, np.float64)
    gap, size = (float(np.max(np.abs(x))) for x in (b.astype(wide) - a.astype(wide), a.astype(wide)))
    return f"{which} differs from the original's by {gap:.1e} where that is up to {size:.1e}"


def differs_from_original(imported: Imported, program: Any, exact: bool = False) -> str:
    """Where a built program gives other results than the original on the example; an empty text where it agrees.

    For a program that was not made in this call.  Both are run once.  The original is built in half the usual time,
    since nobody times it, but as usual where its bits count.
    """
    live, frozen = imported.live_values, imported.frozen_values
    beside = BackgroundCall(lambda: _arrays(program(*live)))
    options = {} if exact else {"xla_backend_optimization_level": "0"}
    want = _arrays(build(original_program(imported.graph), frozen, options=options)(*live))
    got = beside.result()
    if exact and not all(same_bits(a, b).all() for a, b in zip(want, got, strict=False)):
        return "an output differs from the original's in its bits"
    return _difference(OriginalRuns.of(imported), live, want, got)


class OriginalLostError(Exception):
    """The original gave no results in the time; nothing can be compared with it, and so it is returned."""


_CANNOT = "the program cannot be built and run as it is"


@contextlib.contextmanager
def of_the_program() -> Iterator[None]:
    """Re-raise errors of the original itself as a `ProgramError`."""
    try:
        yield
    except Exception as error:  # any error of the compiler, its runtime or callbacks
        raise ProgramError(f"{_CANNOT}: {cause_of_run(type(error).__name__, str(error), _LONGEST)}") from error


def is_short(graph: Graph) -> bool:
    """Whether a call is sure to end, build included, in less time than a process takes to start for it."""
    nodes = list(every_node([graph]))
    if len(nodes) > SHORT_NODES or any(node.op in ("opaque", "while") or _is_wide(node) for node in nodes):
        return False
    cost = graph_cost(graph)
    work = cost.flops + 10.0 * cost.transcendentals + cost.read_bytes + cost.write_bytes
    return work + prefix_steps(graph) < SHORT_WORK and loop_steps(graph) < LIMIT_LOOP_STEPS


def _is_wide(node: Node) -> bool:
    """Whether a fold goes over windows that XLA walks through element by element for longer than others."""
    window = dict(node.attrs).get("window_dimensions") or ()
    return math.prod(map(int, window)) > LIMIT_WINDOW


def takes_any_input(graph: Graph) -> bool:
    """Whether a program may be called on inputs that its user has not given: it has no open loop and no callback."""
    nodes = list(every_node([graph]))
    opaque_keys = [node["params_key"] for node in nodes if node.op == "opaque"]
    return all(node.op != "while" for node in nodes) and all(map(_is_closed, opaque_keys))


def _is_closed(key: str) -> bool:
    """Whether an opaque operation has a module of its own with no open loop in it."""
    module = opaque.module_of(key)
    return bool(module) and b"while" not in module


def _bits(original: Imported, candidate: Any, live: Sequence[Any], seed: int) -> str:
    """Where the bits of a program's results differ from those of the function under `jax.jit`, or an empty text."""
    import jax  # late: only where programs run

    function, leaves = jax_jit(original.fn), list(original.examples)
    draws = range(_DRAWS if takes_any_input(original.graph) else 0)
    for draw, inputs in enumerate((live, *(_special(live, seed, kind) for kind in draws))):
        for i, x in zip(original.live, inputs, strict=True):
            leaves[i] = x
        args, kwargs = jax.tree_util.tree_unflatten(original.in_tree, leaves)
        want = jax.tree_util.tree_leaves(function(*args, **kwargs))
        for number, (a, b) in enumerate(zip(_arrays(want), _arrays(candidate(*inputs))[: len(want)], strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape or not same_bits(a, b).all():
                count = int((~same_bits(a, b)).sum()) if a.shape == b.shape else a.size
                return f"result {number} differs in the bits of {count} of {a.size} elements (inputs {draw})"
    return ""


def same_bits(a: Shaped[np.ndarray, "*shape"], b: Shaped[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
    """Where two arrays of one type agree bit by bit; NaN is NaN."""
    if str(a.dtype) not in FLOATS:
        return np.asarray(a == b)
    kind = f"u{a.dtype.itemsize}"
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return (np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)).reshape(a.shape) | nan


_DRAWS = 6
_SPECIAL: tuple[tuple[float, ...], ...] = (
    (),
    (0.0, -0.0),
    (-0.0,),
    (float("inf"), float("-inf")),
    (float("nan"), 0.0, -0.0),
    (1e30, -1e30, 1e-30, 1e-42),
)
"""Special values put into random inputs, draw by draw."""


def _special(live: Sequence[Any], seed: int, kind: int) -> list[Any]:
    """Random inputs with some entries replaced by special numbers: many zeros, few others."""
    rng = np.random.default_rng((seed, kind))
    out: list[Any] = []
    for x in _random_like(live, seed + kind + 1):
        array = np.array(x)
        values = _SPECIAL[kind]
        if str(array.dtype) in FLOATS and values and array.size:
            share = 0.5 if values[0] == 0.0 else min(0.1, 4.0 / array.size)
            chosen = rng.random(array.shape) < share
            with np.errstate(over="ignore"):
                array[chosen] = rng.choice(values, int(chosen.sum())).astype(array.dtype)
        out.append(array)
    return out


def _arrays(results: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in results]


def _random_like(live: Sequence[Any], seed: int) -> list[Any]:
    """Normal values of the examples' spread in place of floats; integers stay, since they may be indices."""
    rng = np.random.default_rng(seed)
    values: list[Any] = []
    for x in live:
        array = np.asarray(x)
        if str(array.dtype) in FLOATS:
            with np.errstate(all="ignore"):  # of infinities
                spread = float(np.std(array.astype(np.float64))) if array.size else 0.0
            scale = spread if 0.0 < spread < float("inf") else 1.0
            values.append((scale * rng.standard_normal(array.shape)).astype(array.dtype))
        else:
            values.append(x)
    return values
