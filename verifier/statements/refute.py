"""Refutation of statements: both functions at tiny sizes, on small integers.

The functions are traced once more at concrete sizes and evaluated by the reference interpreter with floats in float64
(by JAX itself, where they contain operations that the op table lacks).  No part of the prover is involved.  The results
are also compared with those of the graphs at symbolic sizes: a function whose Python code takes another branch at some
size does not have the graph that a proof would be about.

Where a proof fails and the solver has a model, its sizes and entries of inputs are tried as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from superopt.errors import ArgumentError, SuperoptError
from superopt.frontends.symbolic.graphs import Traced, UntracedError, trace_concrete
from superopt.frontends.symbolic.specs import Specs
from superopt.ir.graph import Graph, Node
from superopt.ir.index import Form, Poly, Symbol
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import POLES
from superopt.ir.resize import resize
from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import DTYPES, FLOATS, INTEGERS, UNSIGNED
from verifier.rules.nonvacuity import leaves_finite
from verifier.rules.referee import RefereeProgram, UnansweredError, exported, referee, wide_types
from verifier.rules.refute import clearest, epsilon, first_difference, sizes_of
from verifier.rules.shrink import CLEAR, simplest
from verifier.rules.snippet import SHOWN
from verifier.statements.conversions import converts, with_conversions
from verifier.statements.draws import further_values, literals, magnitudes
from verifier.statements.prove import unsupported_ops
from verifier.verdict import LEFT, RIGHT

TOLERANCE, CONSTANTS_TOLERANCE, JAX_TOLERANCE = 1e-9, 3e-7, 1e-4
ROUNDINGS = 16
"""Units in the last place that count as rounding where float64 is not available: each side rounds a few operations."""
ATTEMPTS, FURTHER = 5, 2
"""Kinds of inputs at every size, and number of sizes with further ones (`draws.further_values`)."""
MANY = 120
"""Number of tiny sizes of which the largest is used to compare conversions."""
TIES = (257, 2049, (1 << 24) + 1)
"""Integers midway between two neighbouring floats: of bfloat16, float16, float32."""
TOLD, LARGEST = 4, 1 << 13
"""Most integers of a statement near which sizes are tried, and most elements of all inputs there."""
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class StatementDifference:
    """Sizes and inputs at which two functions differ.

    Attributes:
        sizes: size name -> value.
        graphs: both functions there; None for the one that fails.
        values: input name -> array.
        output: which output differs.
        index: the first index at which it does, None where a whole side failed.
        results: both results of that output.
        cause: how a side failed, as the predicate of a sentence about it.
        undefined: whether the right side is NaN there.
        infinite: whether an intermediate value of a side is not finite there.
        tolerance: relative difference beyond which results count as different.
    """

    sizes: Sizes
    graphs: tuple[Graph | None, Graph | None]
    values: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    output: int = 0
    index: tuple[int, ...] | None = None
    results: tuple[Any, Any] = (None, None)
    cause: str = ""
    undefined: bool = False
    infinite: bool = False
    tolerance: float = SHOWN

    @property
    def failed(self) -> str:
        """The side that failed as a whole; empty where both have results."""
        return "" if self.index is not None else LEFT if self.graphs[0] is None else RIGHT

    @property
    def unclear(self) -> int:
        """Rank of the difference: 0 where numbers differ that come from finite ones, more the less conclusive."""
        return 2 * self.undefined + self.infinite


class OtherGraph(Exception):
    """Raised where a function has another graph at some size than at symbolic ones; the message says where."""


class Unevaluated(Exception):
    """Raised where a function cannot be evaluated on some inputs; the message says why."""


@dataclass(slots=True)
class Pairing:
    """Two functions over one list of arguments, and their graphs at symbolic sizes where these exist.

    `refuses_empty` is set where one of them was seen to refuse empty arrays.
    """

    left: Callable[..., Any]
    right: Callable[..., Any]
    specs: Specs
    traced: tuple[Traced, Traced] | None = None
    lowest: int = 0
    tried: int = 0
    drawn: int = 0
    refuses_empty: bool = False
    programs: dict[Any, RefereeProgram] = field(default_factory=dict[Any, RefereeProgram])
    graphs: dict[Any, Traced] = field(default_factory=dict[Any, Traced])

    def side_at(self, fn: Callable[..., Any], sizes: Sizes) -> Traced:
        """One of the functions traced at some sizes, once for each.

        Raises:
            ArgumentError: it does not accept arguments of these sizes.
        """
        key = (fn, *sorted(sizes.items()))
        if key not in self.graphs:
            self.graphs[key] = trace_concrete(fn, self.specs, sizes)
        return self.graphs[key]

    def sides_at(self, sizes: Sizes) -> list[Traced]:
        """Both functions traced at some sizes; see `side_at`."""
        return [self.side_at(fn, sizes) for fn in (self.left, self.right)]

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Number of elements of all inputs at some sizes."""
        return sum(math.prod(shape) for shape in self.specs.shapes(sizes))


def tiny_sizes(specs: Specs, lowest: int) -> Iterator[Sizes]:
    """Yield sizes that meet the constraints, first those that separate the most functions."""
    names, seen = specs.sizes, set[tuple[int, ...]]()
    count = len(names)
    first: list[tuple[int, ...]] = [
        (2,) * count,
        tuple(2 + i % 3 for i in range(count)),
        (1,) * count,
        (0,) * count,
        tuple(1 + i % 2 for i in range(count)),
        tuple(3 - i % 3 for i in range(count)),
        *(tuple(0 if i == j else 2 for i in range(count)) for j in range(count)),
        *(tuple(1 if i == j else 3 for i in range(count)) for j in range(count)),
    ]
    largest = 9 if count <= 2 else 5 if count <= 4 else 2
    everything = sorted(itertools.product(range(largest + 1), repeat=min(count, 7)), key=sum)
    for values in itertools.chain(first, everything if count <= 7 else ()):
        at = dict(zip(names, values, strict=True))
        if values not in seen and all(v >= lowest for v in values) and specs.admits(at):
            seen.add(values)
            yield at


def telling_sizes(pair: Pairing) -> Iterator[Sizes]:
    """Yield sizes at which a guard may change: near integers of constraints, of comparisons of sizes, and literals."""
    told: dict[int, None] = {}
    for premise in pair.specs.premises:
        told |= dict.fromkeys(_integers(premise))
    for traced in pair.traced or ():
        for question in traced.comparisons:
            told |= dict.fromkeys(_integers(question.zero))
        told |= {
            node["value"]: None
            for node in traced.graph.nodes()
            if node.op == "literal" and type(node["value"]) is int and node["value"] > 2
        }
    tried = set[tuple[int, ...]]()
    for n in sorted(told)[:TOLD]:
        for name, value in itertools.product(pair.specs.sizes, (n, n + 2, n - 1, n + 1)):
            at = {**dict.fromkeys(pair.specs.sizes, 2), name: value}
            key = tuple(at.values())
            if key in tried or value < pair.lowest or not pair.specs.admits(at):
                continue
            tried.add(key)
            if pair.elements(at) <= LARGEST:
                yield at


def _integers(x: Any) -> Iterator[int]:
    """Yield the magnitudes of the integers above 2 in a size expression."""
    if isinstance(x, int):
        if abs(x) > 2:
            yield abs(x)
    elif isinstance(x, Poly):
        for mono, k in x.terms:
            yield from _integers(k)
            for atom in mono:
                if isinstance(atom, Form):
                    for arg in atom.args:
                        yield from _integers(arg)


def differ_at(pair: Pairing, sizes: Sizes) -> StatementDifference | None:
    """Compare the two functions at some sizes.

    Raises:
        OtherGraph: one of them has another graph there than at symbolic sizes.
    """
    left, right = (_traced(pair, fn, sizes) for fn in (pair.left, pair.right))
    if isinstance(left, ArgumentError) or isinstance(right, ArgumentError):
        return _refusal(pair, sizes, left, right)
    pair.tried += 1
    whole = _mismatch(left, right)
    if whole:
        return StatementDifference(sizes, (left.graph, right.graph), cause=whole)
    return clearest(_attempts(pair, left, right, sizes))


def _refusal(
    pair: Pairing, sizes: Sizes, left: Traced | ArgumentError, right: Traced | ArgumentError
) -> StatementDifference | None:
    """The difference that one of two functions does not accept some sizes; None where neither does.

    A function that refuses empty arrays restricts the sizes of the statement and refutes nothing.
    """
    graphs = tuple(None if isinstance(x, ArgumentError) else x.graph for x in (left, right))
    if any(isinstance(x, UntracedError) for x in (left, right)) or not any(graphs):
        return None  # one may have results all the same, or neither has
    if 0 in sizes.values():
        pair.refuses_empty = True
        return None
    refused = left if isinstance(left, ArgumentError) else right
    assert isinstance(refused, ArgumentError)
    return StatementDifference(sizes, (graphs[0], graphs[1]), cause=failure(refused))


def _traced(pair: Pairing, fn: Callable[..., Any], sizes: Sizes) -> Traced | ArgumentError:
    """The graph of a function at some sizes, or the error of its trace."""
    try:
        return pair.side_at(fn, sizes)
    except ArgumentError as error:
        return error


def failure(error: ArgumentError) -> str:
    """The error of a trace as the predicate of a sentence about a side: `cannot be traced: ...`."""
    return str(error.args[0]).removeprefix("the function ")


def _attempts(pair: Pairing, left: Traced, right: Traced, sizes: Sizes) -> Iterator[StatementDifference | None]:
    """Yield the difference on one kind of inputs after another, or None; ends where a function cannot be evaluated."""
    alone = any(by_jax_alone(t.graph) for t in (left, right))
    for attempt, values in enumerate(_inputs(pair, left, right)):
        try:
            results = by_jax(pair, values) if alone else _by_interpreter(left, right, values)
        except Unevaluated:
            return
        gap = _compare(left, right, sizes, values, results)
        yield None if gap is not None and alone and _is_rounding(pair, gap, left, right) else gap
        if attempt == 0 and pair.traced is not None and not alone:
            _same_graphs(pair, sizes, values, results)
        if not any(x.size for x in values.values()):
            return


def _inputs(pair: Pairing, left: Traced, right: Traced) -> Iterator[dict[str, np.ndarray]]:
    """Yield one kind of inputs after another, with further ones at the first sizes that have elements."""
    for attempt in range(ATTEMPTS):
        yield make_values(left.graph.inputs, pair.specs.names, attempt)
    inputs = left.graph.inputs[: len(pair.specs.names)]
    if pair.drawn < FURTHER and any(math.prod(sizes_of(x)) for x in inputs):
        pair.drawn += 1
        yield from further_values(inputs, literals((left.graph, right.graph)))


def differ_on(pair: Pairing, sizes: Sizes, entries: Mapping[str, Sequence[Any]]) -> StatementDifference | None:
    """Compare the two functions at some sizes on inputs with given entries, in row-major order, as far as they fit.

    Machine integers are given as unsigned.

    Raises:
        OtherGraph: one of them has another graph there than at symbolic sizes.
    """
    if any(n < pair.lowest for n in sizes.values()) or not pair.specs.admits(sizes):
        return None
    try:
        left, right = pair.sides_at(sizes)
    except ArgumentError:
        return None
    if _mismatch(left, right) or any(by_jax_alone(t.graph) for t in (left, right)):
        return None
    pair.tried += 1
    values = make_values(left.graph.inputs, pair.specs.names, 0)
    for name, given in entries.items():
        if name in values and len(given) == values[name].size:
            values[name] = _as_type(given, values[name])
    return _compare(left, right, sizes, values, _by_interpreter(left, right, values))


def differ_by_conversions(pair: Pairing) -> StatementDifference | None:
    """Compare results after explicit conversions to fewer bits; both float64 and JAX must see the difference.

    A difference counts only if it exceeds the rounding of a few operations in the type of the result.
    """
    if pair.traced is None or not converts(t.graph for t in pair.traced):
        return None
    sizes = max(
        itertools.islice(tiny_sizes(pair.specs, pair.lowest), MANY), key=pair.elements, default=dict[str, int]()
    )
    try:
        left, right = pair.sides_at(sizes)
    except ArgumentError:
        return None
    graphs = (left.graph, right.graph)
    if _mismatch(left, right) or any(map(by_jax_alone, graphs)) or not converts(graphs):
        return None
    pair.tried += 1
    inputs = left.graph.inputs[: len(pair.specs.names)]
    draws = [make_values(inputs, pair.specs.names, attempt) for attempt in range(ATTEMPTS)]
    for values in [*draws, *(magnitudes(inputs, attempt) for attempt in range(FURTHER))]:
        kept = [with_conversions(graph, values) for graph in graphs]
        for output, (a, b) in enumerate(zip(*kept, strict=True)):
            kind = graphs[0].outputs[output].dtype
            tolerance = ROUNDINGS * epsilon(kind) if kind in FLOATS else 0.0
            at = first_difference(a, b, False, tolerance)
            if at is None or not (np.isfinite(a[at]) and np.isfinite(b[at])):
                continue
            try:
                found = [results[output] for results in by_jax(pair, values)]
            except Unevaluated:
                return None
            one, two = (np.asarray(x)[at][None] for x in found)
            wide = [x.astype(np.float64) if kind in FLOATS else x for x in (one, two)]
            if first_difference(wide[0], wide[1], False, tolerance) is not None:
                results = (found[0], found[1])
                return StatementDifference(sizes, graphs, values, output, at, results, tolerance=tolerance)
    return None


def _as_type(given: Sequence[Any], like: np.ndarray) -> np.ndarray:
    if str(like.dtype) in INTEGERS:
        whole = [int(x) % (1 << 8 * like.dtype.itemsize) for x in given]
        return np.array(whole, np.uint64).astype(f"uint{8 * like.dtype.itemsize}").view(like.dtype).reshape(like.shape)
    return np.array(given, np.float64).astype(like.dtype).reshape(like.shape)


def _mismatch(left: Traced, right: Traced) -> str:
    """The message that two functions differ in structure, dtype or shape; empty where they agree."""
    if left.tree != right.tree:
        return f"has the structure {right.tree}, not {left.tree}"
    for n, (a, b) in enumerate(zip(left.graph.outputs, right.graph.outputs, strict=True)):
        which = f" in output {n}" if len(left.graph.outputs) > 1 else ""
        if a.dtype != b.dtype:
            return f"has the dtype {b.dtype}, not {a.dtype}{which}"
        if a.shape != b.shape:
            return f"has the shape {list(b.shape)}, not {list(a.shape)}{which}"
    return ""


def _by_interpreter(left: Traced, right: Traced, values: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    return [[np.asarray(x) for x in evaluate(t.graph, values, wide=True)] for t in (left, right)]


def by_jax(pair: Pairing, values: Mapping[str, np.ndarray], x64: bool = False) -> list[list[np.ndarray]]:
    """Evaluate both sides by JAX; mixing it with the interpreter would compare rounded results with unrounded ones.

    The referee's process runs them, unless they call back into this one.

    Raises:
        Unevaluated: XLA lacks an operation here, or a callback fails.
    """
    return next(all_by_jax(pair, [values], x64))


def all_by_jax(
    pair: Pairing, draws: Sequence[Mapping[str, np.ndarray]], x64: bool = False
) -> Iterator[list[list[np.ndarray]]]:
    """Evaluate both sides by JAX on each draw of inputs of the same types; see `by_jax`."""
    x64 = x64 or pair.specs.wide
    given = [[values[name] for name in pair.specs.names] for values in draws]
    sides = [_side_by_jax(pair, fn, given, x64) for fn in (pair.left, pair.right)]
    return (list(results) for results in zip(*sides, strict=True))


def _side_by_jax(
    pair: Pairing, fn: Callable[..., Any], given: Sequence[Sequence[np.ndarray]], x64: bool
) -> list[list[np.ndarray]]:
    key = (fn, x64, *((x.shape, str(x.dtype)) for x in given[0]))
    try:
        if key not in pair.programs:
            pair.programs[key] = exported(flat(pair, fn), given[0], x64=x64)
        return referee().run_all(pair.programs[key], given)
    except UnansweredError as error:
        if "callback" not in str(error):
            raise Unevaluated(str(error)) from error
    put: Callable[[Any], Any] = jax.device_put  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:  # a callback stays in its process
        with wide_types(x64):
            return [[np.asarray(x) for x in flat(pair, fn)(*[put(x) for x in draw])] for draw in given]
    except Exception as error:
        raise Unevaluated(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error


def flat(pair: Pairing, fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The function with flat arguments and flat results."""

    def made(*leaves: Any) -> list[Any]:
        args, kwargs = pair.specs.unflatten(list(leaves))
        return jax.tree.leaves(fn(*args, **kwargs))

    return made


def _is_rounding(pair: Pairing, found: StatementDifference, left: Traced, right: Traced) -> bool:
    """Whether a difference seen by JAX's own arithmetic is one of rounding.

    It is if there is none where JAX computes in float64.  Where that fails, since the functions name dtypes themselves,
    it is if the difference is small for the narrowest of these.
    """
    values = {name: x.astype(np.float64) if str(x.dtype) in FLOATS else x for name, x in found.values.items()}
    floor = 0.0
    try:
        results = by_jax(pair, values, x64=True)
    except Unevaluated:
        kinds = {x.dtype for t in (left, right) for node in t.graph.nodes() for x in node.types} & set(FLOATS)
        values, floor = found.values, ROUNDINGS * max(map(epsilon, kinds), default=0.0)
        results = by_jax(pair, values)
    same = all(a.shape == b.shape for a, b in zip(*results, strict=True))
    return same and _compare(left, right, found.sizes, values, results, floor) is None


def _same_graphs(
    pair: Pairing, sizes: Sizes, values: Mapping[str, np.ndarray], results: Sequence[Sequence[np.ndarray]]
) -> None:
    assert pair.traced is not None
    at = {Symbol(name, pair.lowest): n for name, n in sizes.items()}
    for side, traced, outputs in zip(("left", "right"), pair.traced, results, strict=True):
        if by_jax_alone(traced.graph):
            continue
        try:
            wanted = evaluate(resize(traced.graph, at), values, wide=True)
        except SuperoptError as error:
            raise OtherGraph(f"the {side} side cannot be evaluated at {show_sizes(sizes)}: {error.args[0]}") from error
        for a, b in zip(wanted, outputs, strict=True):
            if a.shape != b.shape or first_difference(a, b, False, TOLERANCE) is not None:
                raise OtherGraph(
                    f"the {side} side is another function at {show_sizes(sizes)}: its code depends on sizes"
                )


def show_sizes(sizes: Mapping[str, int]) -> str:
    """Sizes for a message."""
    return ", ".join(f"{k} = {v}" for k, v in sizes.items()) or "these types"


def make_values(inputs: Sequence[Node], names: Sequence[str], attempt: int) -> dict[str, np.ndarray]:
    """Inputs by name, of a kind that depends on the attempt.

    The kinds are small integers, positive ones, fractions, ends of integer types and ties with halves, and many zeros.
    """
    rng = np.random.default_rng((attempt, len(names)))
    out: dict[str, np.ndarray] = {}
    for node in inputs[: len(names)]:
        shape = sizes_of(node)
        if node.dtype == "bool":
            out[node["name"]] = rng.random(shape) > 0.5
            continue
        if node.dtype in INTEGERS:
            info = np.iinfo(node.dtype)
            low = 0 if node.dtype in UNSIGNED else -3
            made = rng.integers(low if attempt != 1 else 0, 6, shape)
            if attempt == 3:
                most = int(info.max)
                ends = [int(info.min), most, 0, 1, 2, most - 1, *(n for n in TIES if n < most)]
                made = rng.choice(np.array(ends, node.dtype), shape)
            out[node["name"]] = np.asarray(made, node.dtype)
            continue
        made: Any = rng.integers(-2, 4, shape) if attempt == 0 else rng.integers(1, 5, shape)
        if attempt == 4:
            made = rng.choice(np.array([0, 0, 1, -1]), shape)
        elif attempt >= 2:
            made = rng.standard_normal(shape)
            made = made if attempt == 2 else np.rint(6.0 * made) / 2  # halves: ties of rounding to integers
        if node.dtype in DTYPES:
            out[node["name"]] = np.asarray(made, np.float64).astype(numpy_dtype(node.dtype))
        else:  # complex numbers, and numbers of 8 bits and fewer
            if node.dtype.startswith("complex"):
                made = made + 1j * rng.permuted(made)
            elif "int" in node.dtype:  # the range of the narrowest type
                made = np.clip(made, -2 * (not node.dtype.startswith("u")), 1)
            out[node["name"]] = np.asarray(made).astype(jax.numpy.dtype(node.dtype))
    return out


def by_jax_alone(graph: Graph) -> bool:
    """Whether a graph contains operations or dtypes that only JAX itself evaluates."""
    return bool(unsupported_ops(graph)) or any(x.dtype not in DTYPES for node in graph.nodes() for x in node.types)


def _compare(
    left: Traced,
    right: Traced,
    sizes: Sizes,
    values: dict[str, np.ndarray],
    results: Sequence[Sequence[np.ndarray]],
    floor: float = 0.0,
) -> StatementDifference | None:
    """Return the difference of results at these sizes and values beyond tolerance; None where there is none."""
    nodes = [*left.graph.nodes(), *right.graph.nodes()]
    poles = any(node.op in POLES for node in nodes)
    tolerance = TOLERANCE
    if any(node.op == "literal" and _rounded(node) for node in nodes):
        tolerance = CONSTANTS_TOLERANCE
    alone = any(by_jax_alone(t.graph) for t in (left, right))
    if alone:
        tolerance = max(JAX_TOLERANCE, floor)

    def differences() -> Iterator[StatementDifference]:
        for n, (a, b) in enumerate(zip(*results, strict=True)):
            at = first_difference(a, b, poles, tolerance)
            if at is not None:
                broken = b.dtype.kind == "f" and bool(np.isnan(b[at]))
                graphs = (left.graph, right.graph)
                infinite = not alone and any(leaves_finite(graph, n, values) for graph in graphs)
                yield StatementDifference(sizes, graphs, values, n, at, (a, b), undefined=broken, infinite=infinite)

    return clearest(differences())


def _rounded(node: Node) -> bool:
    value = node["value"]
    return isinstance(value, float) and math.isfinite(value) and (value * 1024) % 1 != 0 and node.dtype in FLOATS


def smaller(pair: Pairing, found: StatementDifference, tries: int = 12) -> StatementDifference:
    """A difference of the same kind at smaller sizes, if a few tries find one."""
    best, total = found, sum(found.sizes.values())
    for n, sizes in enumerate(sorted(itertools.islice(tiny_sizes(pair.specs, pair.lowest), 60), key=_elements)):
        if n >= tries or _elements(sizes) >= total:
            break
        if not all(sizes.values()) and all(found.sizes.values()):
            continue
        try:
            other = differ_at(pair, sizes)
        except OtherGraph:
            continue
        if other is not None and other.unclear == found.unclear and (other.index is None) == (found.index is None):
            return other
    return best


def simpler(pair: Pairing, found: StatementDifference) -> StatementDifference:
    """The difference on values as near to zeros and ones as a limited number of steps reaches."""
    if found.index is None or not found.values or found.tolerance != SHOWN:
        return found  # the difference is one of rounding, which simpler values may not show
    left, right = pair.sides_at(found.sizes)
    if by_jax_alone(left.graph) or by_jax_alone(right.graph):
        return found  # only JAX itself evaluates these

    def clear(d: StatementDifference) -> bool:
        a, b = (np.asarray(x)[d.index] for x in d.results)
        return d.undefined or a.dtype.kind != "f" or not abs(a - b) <= CLEAR * (1.0 + abs(a))

    def fits(values: Mapping[str, np.ndarray]) -> StatementDifference | None:
        given = {k: v.astype(found.values[k].dtype) for k, v in values.items()}
        other = _compare(left, right, found.sizes, given, _by_interpreter(left, right, given))
        if other is None or other.unclear != found.unclear:
            return None
        return other if clear(other) or not sure else None

    sure = clear(found)
    return simplest(found, lambda d: d.values, fits)


def _elements(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())
