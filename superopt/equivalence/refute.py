"""Inputs on which two programs differ by more than rounding explains.

Both programs are evaluated as they are, and as a referee with every float in float64.  A difference counts where it is
larger in float64 than the effect of rounding on either program.  It must also exceed the effect of rounding the stored
tensors that only one of them has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from superopt.backends.xla import to_jax
from superopt.equivalence.sharing import Shared, arguments
from superopt.errors import ProverDefectError, SuperoptError
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import CONTROL
from superopt.ir.types import FLOATS, INTEGERS, UNIT_ROUNDOFF, TensorType, range_of
from superopt.machine.jitting import jit_quickly
from superopt.measure.conditioning import in_last_place
from verifier.rules.nonvacuity import Observations, leaves_numbers
from verifier.rules.process import processor_s
from verifier.rules.referee import RefereeProgram, UnansweredError, exported, referee
from verifier.rules.refute import samples, strewn
from verifier.statements.draws import literals

SCALES = (1.0, 1e-3, 30.0)
"""Scales of the random inputs: ordinary, so small that a small constant shows, so large that functions saturate."""
_CHOOSE = ("gather", "dynamic_slice", "dynamic_update_slice")  # ops that select by integers behind the first operand
MARGIN = 8.0  # factor above the rounding seen on these inputs, which are a sample and give no bound
EQUAL = 1e-11  # relative to the largest: difference of equal values in float64
KEPT = 64  # units in the last place: rounding inside operations kept verbatim, which float64 does not show
REPORT = "please report both programs; nothing that this prover says of them can be believed"
Gap: TypeAlias = "tuple[tuple[int, ...], tuple[Any, Any], float, float]"
"""Index of a difference, the values of both programs there, their distance, and the distance that rounding explains."""


@dataclass(frozen=True, slots=True)
class PairDifference:
    """Inputs on which two programs differ.

    Attributes:
        output: number of the result.
        seed, scale: of the inputs, see `inputs`.
        place: index of the largest difference.
        values: the values of both programs there.
        apart, rounding: the largest difference in float64, and the difference that rounding explains.
        numbers: arguments that are integers of any size, see `inputs`.
        kind, told: parameters of the inputs, see `inputs`.
    """

    output: int
    seed: int
    scale: float
    place: tuple[int, ...]
    values: tuple[Any, Any]
    apart: float
    rounding: float
    numbers: tuple[int, ...] = ()
    kind: str = ""
    told: tuple[float, ...] = ()


def inputs(
    types: Sequence[tuple[tuple[int, ...], str]],
    seed: int,
    scale: float,
    numbers: Sequence[int] = (),
    kind: str = "",
    told: Sequence[float] = (),
) -> list[np.ndarray]:
    """Random arrays of some shapes and dtypes: normal floats times the scale, integers 0 and 1.

    Args:
        types: shapes and dtypes.
        seed: seed of the generator.
        scale: factor of floats.
        numbers: positions of integer arrays with other values than 0 and 1: small ones of both signs, and the ends of
            the type where the scale is above 1.
        kind: makes floats `negative`, `halves` (and the first rows of integers 0), or close to given numbers
            (`beside`).
        told: these numbers.
    """
    rng, made = np.random.default_rng(seed), list[np.ndarray]()
    for i, (shape, dtype) in enumerate(types):
        x: Any = rng.standard_normal(shape) * scale if dtype in FLOATS else rng.integers(0, 2, shape)
        if dtype in FLOATS and kind:
            x = _of_kind(x, kind, told, rng)
        elif kind == "halves" and shape:
            x[:1] = 0
        if i in numbers:
            low, high = range_of(dtype)
            ends = [low, high, high // 2] if scale > 1.0 else []
            few = [n for n in (*range(-3, 8), -100, 100) if low <= n <= high]
            x = rng.choice(np.array([*few, *ends], dtype), shape)
        made.append(np.asarray(x).astype(dtype))
    return made


def _of_kind(x: np.ndarray, kind: str, told: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Ordinary random numbers changed to a kind of `inputs`."""
    if kind == "negative":
        return -np.abs(x) - 0.25
    if kind == "halves":
        return np.rint(4 * x) / 2
    near = np.array([sign * n for n in told for sign in (1, -1)])
    beside = rng.choice(near, x.shape) * rng.choice(np.array([1.0, 1.0, 1.5]), x.shape) + np.rint(2 * x) / 2
    return np.where(rng.random(x.shape) < 0.8, beside, x)


def plain_integers(graphs: Sequence[Graph]) -> tuple[int, ...]:
    """Positions of integer arguments that neither select positions nor are read by loops, which may count by them."""
    read: list[Node] = []
    for node in (n for graph in graphs for n in graph.nodes()):
        read += node.inputs if node.op in CONTROL else node.inputs[1:] if node.op in _CHOOSE else ()
    live, kept = arguments(graphs[0]), set(topological(read))
    return tuple(i for i, n in enumerate(live) if n.dtype in INTEGERS and not n["frozen"] and n not in kept)


def widened(graph: Graph) -> Graph:
    """The graph with every float in float64; operations kept verbatim compute in the types that they have.

    Raises:
        SuperoptError: an operation does not accept float64.
    """
    done: dict[Node, Node] = {}
    for node in (*graph.inputs, *graph.nodes()):
        if node in done:
            continue
        xs = [done[x] for x in node.inputs]
        if node.op == "opaque":
            xs = [_of_type(x, old.dtype) for x, old in zip(xs, node.inputs, strict=True)]
            made = mk(node.op, *xs, **dict(node.attrs))
            done[node] = _of_type(made, _wide(node.dtype)) if len(node.types) == 1 else made
        elif node.op == "result" and node.inputs[0].op == "opaque":
            done[node] = _of_type(mk(node.op, *xs, **dict(node.attrs)), _wide(node.dtype))
        else:
            done[node] = mk(node.op, *xs, **{k: _wide(v) for k, v in node.attrs})
    return Graph(tuple(done[n] for n in graph.inputs), tuple(done[n] for n in graph.outputs))


def _wide(value: Any) -> Any:
    """An attribute with float64 in the place of other floats."""
    if isinstance(value, str):
        return "float64" if value in FLOATS else value
    if isinstance(value, TensorType):
        return TensorType(value.shape, _wide(value.dtype))
    if isinstance(value, Graph):
        return widened(value)
    return tuple(map(_wide, value)) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _of_type(x: Node, dtype: str) -> Node:
    return x if x.dtype == dtype else mk("convert_element_type", x, new_dtype=dtype)


class UnevaluatedError(SuperoptError):
    """A program has no value here: XLA refuses it, or it ended its process."""


_SMALL_BYTES = 1 << 20
"""Size of all arrays of a program that the referee's process runs; larger programs run where their arrays are."""


class Evaluation:
    """Both programs, compiled on first use."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.types = [
            (tuple(int(str(d)) for d in n.shape), n.dtype) for n in arguments(shared.first) if not n["frozen"]
        ]
        self.numbers = plain_integers((shared.first, shared.second))
        self.kept = any(n.op == "opaque" for g in (shared.first, shared.second) for n in g.nodes())
        self._known: dict[tuple[int, bool], Callable[..., Any] | RefereeProgram] = {}
        self._watched: dict[int, tuple[Graph, list[Node], Callable[..., Any]]] = {}

    def run(
        self, side: int, live: Sequence[np.ndarray], wide: bool = False, noise: int | None = None
    ) -> list[np.ndarray]:
        """Results of one program; `noise` seeds a disturbance, by one unit in the last place, of its own tensors."""
        graph = (self.shared.first, self.shared.second)[side]
        stored = self.shared.arrays
        rng = np.random.default_rng(noise)
        arrays: list[Any] = list(live)
        for node in graph.inputs[len(live) :]:
            array = stored[node["name"]]
            if wide and node.dtype in FLOATS:
                array = array.astype(np.float64)
                if noise is not None and not all(self.shared.names[node["name"]]):
                    array = in_last_place(array, node.dtype, rng)
            arrays.append(array)
        if wide:
            arrays = [np.asarray(x, np.float64) if np.asarray(x).dtype.name in FLOATS else x for x in arrays]
        try:
            return self._given(side, wide, arrays)
        except UnansweredError as error:
            raise UnevaluatedError(str(error)) from error

    def _given(self, side: int, wide: bool, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Results of one program.

        Raises:
            UnansweredError: the program has no results.
        """
        made = self._known.get((side, wide))
        if made is None:
            graph = (self.shared.first, self.shared.second)[side]
            call = to_jax(widened(graph) if wide else graph)
            try:
                if sum(np.asarray(x).nbytes for x in arrays) > _SMALL_BYTES:
                    raise UnansweredError("callback")
                made = exported(call, [np.asarray(x) for x in arrays], x64=True)
            except UnansweredError as error:
                if "callback" not in str(error):
                    raise
                with jax.enable_x64(True):
                    made = jit_quickly(call)
            self._known[side, wide] = made
        if isinstance(made, RefereeProgram):
            return referee().run(made, arrays)
        try:
            with jax.enable_x64(True):
                return [np.asarray(x) for x in made(*arrays)]
        except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            raise UnansweredError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error

    def leaving(self, live: Sequence[np.ndarray], outputs: Collection[int]) -> set[int]:
        """Those outputs that depend on an op whose operands are finite and whose result is not, in float64."""
        leaving = set[int]()
        for side in (0, 1) if outputs else ():
            graph, kinds = self._kinds(side, live)
            leaving |= {i for i in outputs if leaves_numbers(topological([graph.outputs[i]]), kinds)}
        return leaving

    def _kinds(self, side: int, live: Sequence[np.ndarray]) -> tuple[Graph, dict[Node, tuple[bool, bool]]]:
        """One program in float64, and for each of its values whether it has NaN and whether it has infinities."""
        if side not in self._watched:
            graph = widened((self.shared.first, self.shared.second)[side])
            nodes = [n for n in graph.nodes() if len(n.types) == 1 and n.dtype in FLOATS]
            program = to_jax(Graph(graph.inputs, tuple(nodes)))

            def kinds(*given: Any) -> Any:
                return [(jnp.isnan(x).any(), jnp.isinf(x).any()) for x in program(*given)]

            self._watched[side] = graph, nodes, jit_quickly(kinds)
        graph, nodes, watched = self._watched[side]
        arrays = map(np.asarray, (*live, *(self.shared.arrays[n["name"]] for n in graph.inputs[len(live) :])))
        with jax.enable_x64(True):
            watched_kinds = watched(*(x.astype(np.float64) if x.dtype.name in FLOATS else x for x in arrays))
        return graph, {n: (bool(a), bool(b)) for n, (a, b) in zip(nodes, watched_kinds, strict=True)}


class Look:
    """Both programs on the same inputs, evaluated when results are first requested."""

    def __init__(self, both: Evaluation, live: Sequence[np.ndarray], noise: int) -> None:
        self.both, self.live, self.noise = both, live, noise

    @functools.cached_property
    def plain(self) -> list[list[np.ndarray]]:
        """Results of both programs in their own dtypes."""
        return [self.both.run(side, self.live) for side in (0, 1)]

    @functools.cached_property
    def wide(self) -> list[list[np.ndarray]]:
        """Results of both programs in float64.

        Raises:
            SuperoptError: an operation does not accept float64.
        """
        return [self.both.run(side, self.live, True) for side in (0, 1)]

    @functools.cached_property
    def shaken(self) -> list[list[np.ndarray]]:
        """Results in float64 with the tensors that only one of the programs stores disturbed."""
        return [self.both.run(side, self.live, True, self.noise) for side in (0, 1)]

    def valued(self, outputs: Iterable[int]) -> set[int]:
        """Those outputs with an entry that is a number in both programs, or without entries."""
        try:
            one, two = self.plain
        except UnevaluatedError:
            return set()
        return {i for i in outputs if not one[i].size or (_finite(one[i]) & _finite(two[i])).any()}

    def differing(self, outputs: Iterable[int]) -> dict[int, Gap]:
        """Those outputs that differ by more than rounding explains, with the difference."""
        gaps: dict[int, Gap] = {}
        try:
            one, two = self.plain
        except UnevaluatedError:
            return {}
        suspect = [i for i in outputs if _apart(one[i], two[i]) > 0.0]
        try:
            wide = self.wide if suspect else []
        except SuperoptError:
            return {}  # without a referee nothing is refuted
        for i in suspect:
            rounding = sum(_apart(w[i], x[i]) for w, x in zip(wide, (one, two), strict=True))
            apart = _apart(wide[0][i], wide[1][i])
            if str(one[i].dtype) in FLOATS:
                most = max(float(np.max(np.abs(w[i]), initial=0.0, where=_finite(w[i]))) for w in wide)
                rounding += (KEPT * UNIT_ROUNDOFF[str(one[i].dtype)] if self.both.kept else EQUAL) * most
            if apart <= MARGIN * rounding or not np.isfinite(apart):
                continue
            rounding += sum(_apart(w[i], x[i]) for w, x in zip(wide, self.shaken, strict=True))
            if apart <= MARGIN * rounding:
                continue
            gap = np.abs(np.nan_to_num(wide[0][i].astype(np.float64) - wide[1][i].astype(np.float64)))
            place = tuple(int(k) for k in np.unravel_index(int(np.argmax(gap)), gap.shape))
            gaps[i] = place, (one[i][place].item(), two[i][place].item()), apart, rounding
        return gaps


def vacuous(both: Evaluation, proved: Sequence[int], strict: Collection[int], seed: int, end_s: float) -> Observations:
    """Nonvacuity of proved outputs; `left` are those never seen finite, of which class real and range claim nothing.

    Args:
        both: the programs.
        proved: numbers of the outputs.
        strict: outputs that differ where an intermediate value is not finite; their values there do not count.
        seed: seed of the inputs.
        end_s: processor time after which all other outputs than `strict` ones are given up.

    Raises:
        ProverDefectError: outputs differ where all intermediate values are finite.
    """
    sides = both.shared.first.outputs, both.shared.second.outputs
    seen = Observations([i for i in proved if sides[0][i] is not sides[1][i]])  # one program needs no proof
    for number, live in enumerate(_many(both, seed)):
        late = number > 0 and processor_s() >= end_s
        left = [i for i in seen.left if i in strict or not late]
        if not left:
            break
        look = Look(both, live, seed)
        apart: Mapping[int, Gap] = look.differing(left) if number else {}  # `differences` had the first ones
        beyond = both.leaving(live, [i for i in left if i in apart or (number and i in strict)])
        for i in apart.keys() - beyond:
            place, values, *_ = apart[i]
            raise defect(str(i), f"at {list(place)} it is {values[0]!r} and {values[1]!r}")
        try:
            one, two = look.wide if number else look.plain
        except SuperoptError:  # an operation does not take float64
            try:
                one, two = look.plain
            except UnevaluatedError:
                break
        beyond |= set() if number else set(strict)
        seen.see({i: one[i] for i in left}, {i: two[i] for i in left}, beyond)
    return seen


def defect(name: str, told: object) -> ProverDefectError:
    """The error of a prover defect: the output of that name was proved, and this difference refutes it."""
    return ProverDefectError(f"output {name} was proved, and evaluation refutes it: {told}", hint=REPORT)


def _many(both: Evaluation, seed: int) -> Iterator[list[np.ndarray]]:
    """The first inputs of `differences`, then inputs of many magnitudes and signs, each with other integers."""
    first = inputs(both.types, seed, SCALES[0], both.numbers)
    yield first
    for number, drawn in enumerate(samples({str(i): x for i, x in enumerate(first)})):
        others = inputs(both.types, seed + number, SCALES[0], both.numbers if number % 2 else ())
        yield [x if x.dtype.name in FLOATS else y for x, y in zip(drawn.values(), others, strict=True)]


def differences(both: Evaluation, seed: int, wanted: Mapping[int, bool]) -> dict[int, PairDifference]:
    """For outputs, inputs on which the programs differ.

    Args:
        both: the programs.
        seed: seed of the inputs.
        wanted: numbers of outputs -> whether they are claimed equal (then one look at numbers suffices).
    """
    by_output: dict[int, PairDifference] = {}
    valued = set[int]()
    told = literals((both.shared.first, both.shared.second))
    kinds = [(scale, "") for scale in SCALES] + [(1.0, kind) for kind in ("negative", "halves")]
    kinds += [(1.0, "beside")] if told else []
    for number, (scale, kind) in enumerate(kinds):
        left = [i for i in wanted if i not in by_output and not (wanted[i] and i in valued)]
        for numbers in dict.fromkeys((both.numbers, ())):  # masks are 0 and 1, and others may leave no numbers
            if not left:
                break
            given = kind, told if kind == "beside" else ()
            look = Look(both, inputs(both.types, seed + number, scale, numbers, *given), seed + number)
            for i, gap in look.differing(left).items():
                by_output[i] = PairDifference(i, seed + number, scale, *gap, numbers, *given)
            now = look.valued(left)
            valued |= now
            left = [i for i in left if i not in by_output and i not in now]
    return by_output


def contradiction(both: Evaluation, proved: Sequence[int], exactness: str, seed: int) -> str:
    """Where outputs proved equal differ by more than rounding explains, in words; empty where they do not.

    Integers include the ends of their types.  Where the proof claims every bit, floats include NaN, infinities and
    zeros of both signs.  XLA evaluates both programs, and so does the interpreter where they are small.
    """
    nodes = (*both.shared.first.nodes(), *both.shared.second.nodes())
    floats = any(dtype in FLOATS for node in nodes for dtype in _dtypes(node))
    if floats and exactness != "exact":  # `differences` has tried inputs on which rounding is no explanation
        return ""
    for attempt, kind in enumerate(_KINDS if floats else _KINDS[:1]):
        live = _strewn(both.types, seed + attempt, kind)
        for who, results in (("XLA", _by_xla(both, live)), ("the interpreter", _small(both, live))):
            for i in proved if results else ():
                a, b = results[0][i], results[1][i]
                if not floats and not np.array_equal(a, b):
                    return f"output {i} on integers at the ends of their types, by {who}"
                if floats and not _same_kinds(a, b):
                    return f"output {i} where inputs are {kind or 'ordinary'}, by {who}"
    return ""


_KINDS = ("", "nan", "inf", "-inf")
_SMALL = 1 << 16
"""Limit on the elements of all values of a program for the interpreter to evaluate it as well."""


def _dtypes(node: Node) -> list[str]:
    return [t.dtype for t in node.types]


def _strewn(types: Sequence[tuple[tuple[int, ...], str]], seed: int, kind: str) -> list[np.ndarray]:
    """Inputs that include the ends of integer types, and have every other float replaced by special values in turn."""
    rng, out = np.random.default_rng(seed), list[np.ndarray]()
    for number, (x, (shape, dtype)) in enumerate(zip(inputs(types, seed, 1.0), types, strict=True)):
        if dtype in INTEGERS:
            low, high = range_of(dtype)
            x = rng.choice(np.array([low, high, 0, 1, 2], dtype), shape)
        elif dtype in FLOATS and kind:
            x = strewn(x, [float(kind)], number)
        out.append(x)
    return out


def _by_xla(both: Evaluation, live: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Results by XLA; empty where it has none."""
    try:
        return [both.run(side, live) for side in (0, 1)]
    except UnevaluatedError:
        return []


def _small(both: Evaluation, live: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Results by the interpreter; empty where a program is too large or contains ops that it does not evaluate."""
    results: list[list[np.ndarray]] = []
    for graph in (both.shared.first, both.shared.second):
        if sum(math.prod(map(int, map(str, t.shape))) for node in graph.nodes() for t in node.types) > _SMALL:
            return []
        values = dict(zip((n["name"] for n in graph.inputs), live, strict=False)) | dict(both.shared.arrays)
        try:
            results.append([np.asarray(x) for x in evaluate(graph, values)])
        except SuperoptError:
            return []
    return results


def _same_kinds(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two results have NaN and infinities in the same places, and close numbers elsewhere."""
    if str(a.dtype) not in FLOATS:
        return True  # rounding may have decided it
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(np.isinf(x), np.isinf(y)):
        return False
    finite = np.isfinite(x)
    near = (
        64 * UNIT_ROUNDOFF[str(a.dtype)] * max(1.0, math.sqrt(x.size)) * (1.0 + np.max(np.abs(x[finite]), initial=0.0))
    )
    return bool(np.all(np.abs(x[finite] - y[finite]) <= near)) and np.array_equal(x[np.isinf(x)], y[np.isinf(y)])


def _finite(a: np.ndarray) -> np.ndarray:
    return np.isfinite(a.astype(np.float64))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of finite entries; infinite where only one of two entries is finite."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return np.inf
    finite = np.isfinite(x)
    return float(np.max(np.abs(x[finite] - y[finite]), initial=0.0))


__all__ = [
    "EQUAL",
    "MARGIN",
    "REPORT",
    "SCALES",
    "Evaluation",
    "Look",
    "PairDifference",
    "contradiction",
    "defect",
    "differences",
    "inputs",
    "vacuous",
    "widened",
]
