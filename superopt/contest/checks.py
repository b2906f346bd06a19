"""Whether a program computes what its original does, and how far both are from a float64 evaluation.

Both run on the example inputs, and on random ones of the same spread where the program takes any: a loop need not end
on inputs that its user would not give, and a callback may refuse them.  The yardstick is the reference interpreter with
every float widened to float64; programs with opaque operations or loops without a number of steps, and those of very
much work, do without.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.arrays.bundles import ON_DISK_BYTES
from superopt.arrays.placing import place_of, release
from superopt.backends import mixed
from superopt.backends.options import Options
from superopt.backends.xla import XlaExecutable, build
from superopt.errors import InputError, ProgramError
from superopt.ir import opaque
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph, bodies_of, every_node
from superopt.ir.interp import evaluate
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.program import Program, original_program
from superopt.ir.types import DTYPES
from superopt.kernels.choose.choice import Choice
from superopt.machine.barrier import cause_of_run
from superopt.measure.numerics import Tolerance, output_errors
from superopt.report.data import NumericCheck

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped

    from superopt.frontends.jax.jaxpr import Imported

FLOATS = ("float16", "bfloat16", "float32", "float64")
LIMIT_FLOPS = 1e11
LIMIT_PREFIX_STEPS = 1e8
LIMIT_LOOP_STEPS = 1e5  # operations inside of loops, of 10 to 40 us each whatever their size
_LONGEST = 300  # characters of a cause


class Builds:
    """The original of one run with its example inputs, and what its checks share: what was built, and the yardstick.

    Args:
        graph: the original.
        live: the example inputs.
        frozen: values of its frozen inputs.
        seed: of random inputs.
        exact: the function with whose results those of a program must agree in every bit; None where rounding is free.
    """

    def __init__(
        self, graph: Graph, live: Sequence[Any], frozen: Mapping[str, Any], seed: int = 0, exact: Imported | None = None
    ) -> None:
        self.graph, self.live, self.frozen, self.seed, self.exact = graph, live, frozen, seed, exact
        self._candidate: tuple[Any, ...] = (None,)
        self._ran = False  # the original was called, and gave results

    @classmethod
    def of(cls, imported: Imported, seed: int = 0, exact: bool = False) -> Builds:
        """Those of an imported function."""
        return cls(
            imported.graph, imported.live_values, imported.frozen_values, seed, imported if exact else None
        )  # fmt: skip

    @functools.cached_property
    def original(self) -> XlaExecutable:
        """The original, built once."""
        return build(original_program(self.graph), self.frozen)

    @functools.cached_property
    def wanted(self) -> tuple[tuple[list[Any], list[np.ndarray]], ...]:
        """The example inputs and random ones (if it takes any), each with the results of the original, computed once.

        Raises:
            ProgramError: it cannot be built, or called on the example inputs.
        """
        pairs = [(list(self.live), self._results())]
        if takes_any_input(self.graph):
            drawn = _random_like(self.live, self.seed)
            pairs.append((drawn, _arrays(self.original(*drawn))))
        self._let_go()
        return tuple(pairs)

    def run(self) -> None:
        """Have the original built and called, if that was not done.

        Raises:
            ProgramError: it cannot be.
        """
        if not self._ran:
            self._results()
            self._let_go()

    def _results(self) -> list[np.ndarray]:
        with of_the_program():
            results = _arrays(self.original(*self.live))
        self._ran = True
        return results

    def _let_go(self) -> None:
        """Give back the memory of weights that lie in a file."""
        for x in (*self.graph.constants.values(), *self.frozen.values()):
            release(x)

    def candidate(
        self, program: Program, options: Options | None = None, kernels: Sequence[Choice] = ()
    ) -> XlaExecutable:
        """A program as built for its check, if that was the last one; else built now."""
        key = (dict(options or {}), tuple(kernels))
        if self._candidate[0] is not program or self._candidate[1] != key:
            self._candidate = (program, key, mixed.build(program, self.frozen, options=options, kernels=kernels))
        return self._candidate[2]

    @functools.cached_property
    def truth(self) -> tuple[np.ndarray, ...] | None:
        """Results of the reference interpreter over float64, computed once; None where there are none."""
        return _truth(self.graph, self.live, self.frozen)

    @property
    def on_disk(self) -> bool:
        """Are there so many weights that they lie on disk, to be in memory only while they are read?"""
        every = (*self.graph.constants.values(), *self.frozen.values())
        return sum(x.nbytes for x in every if place_of(x) is not None) >= ON_DISK_BYTES


def check(
    builds: Builds, program: Program, options: Options | None = None, kernels: Sequence[Choice] = ()
) -> tuple[NumericCheck, str]:
    """Run a program, built with these options and kernels, and its original on the example and on random inputs.

    Where they are to be exact, results must agree with those of the original function in every bit, on the example, on
    random inputs and on inputs with zeros of both signs, infinities, NaN, huge and tiny numbers.  Any NaN counts as any
    other.

    Returns:
        The differences, and why the program cannot be accepted (an empty string when it can).

    Raises:
        ProgramError: the original itself cannot be built or run.
    """
    with ThreadPoolExecutor(2) as pool:  # the original and the yardstick beside the program
        originals = pool.submit(lambda: builds.wanted)
        yardstick = pool.submit(lambda: builds.truth)
        if builds.on_disk:  # then before it: what both read is gone before the program's own is there
            wait([originals])
            wait([yardstick])
        try:
            candidate = builds.candidate(program, options, kernels)
            candidate(*builds.live)
        finally:  # what is wrong with the original comes before what is with the program
            wanted, truth = originals.result(), yardstick.result()
    worst, cause, own = 0.0, "", list[np.ndarray]()
    for inputs, want in wanted:
        got = _arrays(candidate(*inputs))
        own = own or got
        errors = output_errors(want, got)
        worst = max([worst, *(e.normwise for e in errors)])
        for error, array in zip(errors, want, strict=False):
            if not Tolerance().accepts(error, str(array.dtype)):
                cause = cause or f"an output differs from the original's by {error.normwise:.1e}"
    if builds.exact is not None and not cause:
        cause = _bits(builds.exact, candidate, builds.live, builds.seed)
    drawn = len(wanted) > 1
    if truth is None:
        return NumericCheck(worst, drawn=drawn), cause
    apart: list[float] = []
    for found in (wanted[0][1], own):
        results = [r.astype(t.dtype) for r, t in zip(found, truth, strict=True)]
        apart.append(max((e.normwise for e in output_errors(truth, results)), default=0.0))
    return NumericCheck(worst, apart[0], apart[1], drawn), cause


def differs_from_original(imported: Imported, program: Any, exact: bool = False) -> str:
    """Where a built program gives other results than the original on the example, or an empty text.

    For a program that was not made in this call.  Both are run once; the original is built in half the time, since
    nobody times it.
    """
    live, frozen = imported.live_values, imported.frozen_values
    with ThreadPoolExecutor(1) as beside:
        got = beside.submit(lambda: _arrays(program(*live)))
        want = _arrays(build(original_program(imported.graph), frozen, options=_QUICKLY_BUILT)(*live))
        errors = output_errors(want, got.result())
    if len(want) != len(got.result()):
        return errors[0].detail
    for error, a, b in zip(errors, want, got.result(), strict=True):
        if not Tolerance().accepts(error, str(a.dtype)):
            return error.detail or f"an output differs from the original's by {error.normwise:.1e}"
        if exact and not same_bits(a, b).all():
            return "an output differs from the original's in its bits"
    return ""


@contextlib.contextmanager
def of_the_program() -> Iterator[None]:
    """What goes wrong with the original itself, as an error of the program."""
    try:
        yield
    except Exception as error:  # what the compiler, its runtime and callbacks raise
        raise ProgramError(f"the program cannot be built and run as it is: {cause_of_run(error, _LONGEST)}") from error


def takes_any_input(graph: Graph) -> bool:
    """May a program be called on inputs that its user has not given: has it no open loop and no callback?"""
    nodes = list(every_node([graph]))
    opaque_keys = [node["params_key"] for node in nodes if node.op == "opaque"]
    return all(node.op != "while" for node in nodes) and all(map(_is_closed, opaque_keys))


def _is_closed(key: str) -> bool:
    """Has an opaque operation a module of its own, and no open loop in it?"""
    module = opaque.module_of(key)
    return bool(module) and b"while" not in module


def _bits(original: Imported, candidate: Any, live: Sequence[Any], seed: int) -> str:
    """Where the bits of a program's results differ from those of the function under `jax.jit`, or an empty text."""
    import jax  # late: only where programs run

    function, leaves = jax.jit(original.fn), list(original.examples)
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


_QUICKLY_BUILT = {"xla_backend_optimization_level": "0"}
_DRAWS = 6
_SPECIAL: tuple[tuple[float, ...], ...] = (
    (),
    (0.0, -0.0),
    (-0.0,),
    (float("inf"), float("-inf")),
    (float("nan"), 0.0, -0.0),
    (1e30, -1e30, 1e-30, 1e-42),
)
"""What is strewn into random inputs, draw by draw."""


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


def _truth(graph: Graph, live: Sequence[Any], frozen: Mapping[str, Any]) -> tuple[np.ndarray, ...] | None:
    """Results of the reference interpreter over float64, or None where there are none."""
    if graph_cost(graph).flops > LIMIT_FLOPS or _prefix_steps(graph) > LIMIT_PREFIX_STEPS:
        return None
    if _loop_steps(graph) > LIMIT_LOOP_STEPS:
        return None
    if any(node.dtype not in DTYPES for node in graph.inputs) or any(n.op == "while" for n in every_node([graph])):
        return None
    arguments = [node for node in graph.inputs if not node["frozen"]]
    values = {node["name"]: np.asarray(x).astype(node.dtype) for node, x in zip(arguments, live, strict=True)}
    try:
        return evaluate(graph, _Widened({**graph.constants, **frozen, **values}), wide=True)
    except InputError:  # an opaque operation, perhaps inside a body, has no value here
        return None


class _Widened(Mapping[str, np.ndarray]):
    """Values that are made float64 when they are asked for; of those that lie in a file, the memory is given back."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> np.ndarray:
        array = np.asarray(self._values[name])
        if str(array.dtype) not in FLOATS:
            return array
        wide = array.astype(np.float64)
        release(array)
        return wide

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _prefix_steps(graph: Graph) -> float:
    """Steps of the interpreter through prefix folds: it forms each result by definition, from the start of its axis."""
    steps = 0.0
    for node in graph.nodes():
        if node.op in CUMULATIVE:
            sizes: list[int] = [int(n) for n in node.shape]  # pyright: ignore[reportArgumentType] (sizes are concrete here)
            steps += float(math.prod(sizes)) * sizes[node["axis"]]
    return steps


def _loop_steps(graph: Graph) -> float:
    """Operations of the interpreter inside of loops and other bodies."""
    steps = 0.0
    for node in graph.nodes():
        for body in bodies_of(node):
            turns = node["length"] if node.op == "scan" else 1
            steps += turns * (len(list(body.nodes())) + _loop_steps(body))
    return steps


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
