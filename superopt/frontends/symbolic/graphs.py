"""Graphs of JAX functions at symbolic sizes.

JAX assumes that a dimension variable is at least 1 and decides comparisons of sizes by that.  To find out whether a
function has one graph for empty arrays too, it is traced with `n - 1` in the place of n, which is at least 0 for JAX.
Where that is refused, the names from 1 on remain.  The trace is a function of sizes only as far as JAX sees: Python
code that compares sizes for equality takes the branch for different sizes, so comparisons are kept with the trace.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import export, tree_util
from jax.errors import JAXIndexError, JAXTypeError

from superopt.errors import ArgumentError, InputError, SuperoptError
from superopt.frontends.jax.comparisons import SizeComparison, recorded
from superopt.frontends.jax.sizes import sizes
from superopt.frontends.jax.walk import Importer, KeptWhole
from superopt.frontends.symbolic.paths import Path, followed, question
from superopt.frontends.symbolic.specs import Specs
from superopt.ir.graph import Graph, make_input
from superopt.ir.index import Form, Size, Symbol, evaluate, substitute, symbol
from superopt.ir.inline import inline
from superopt.ir.resize import resize
from superopt.ir.types import TensorType

_FRESH, _TRACES = 1 << 14, itertools.count(1, 30)
_NEAR = 1 << 10
"""Range in which numbers that constraints admit are looked for one by one."""
_TRIED = 4
"""Number of admitted sizes at which a function is traced to be compared with its trace at symbolic ones."""
MOST_PRODUCTS = 4
"""Number of names up to which JAX is given these facts: its decisions take time in the number of facts."""


class UntracedError(ArgumentError):
    """A function that JAX cannot trace, or whose equations cannot be imported, though it may have results."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A function as a graph.

    Attributes:
        graph: inputs are the flat arguments, then arrays that the function closes over.
        tree: structure of the result.
        refused: (primitive, cause) of equations that the op table did not accept.
        comparisons: the questions about symbolic sizes that the function asked.
    """

    graph: Graph
    tree: Any
    refused: tuple[tuple[str, str], ...]
    comparisons: tuple[SizeComparison, ...] = ()


def parameters_of(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without signature
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in signature.parameters.items() if p.kind in kinds]


def trace_symbolic(fn: Callable[..., Any], specs: Specs, lowest: int) -> Traced:
    """The graph of a function over sizes that are at least `lowest` (0 or 1).

    Raises:
        ArgumentError: the function cannot be traced at symbolic sizes.
    """
    names = ",".join(specs.sizes)
    free = dict(zip(specs.sizes, export.symbolic_shape(names), strict=True)) if names else {}
    shift = 1 - lowest
    texts = [f"{_dim(p, free, shift)} >= 0" for p in specs.premises]
    if shift and len(free) <= MOST_PRODUCTS:  # JAX cannot derive that products of sizes are not negative
        texts += [f"{(a - 1) * (b - 1)} >= 0" for a, b in itertools.combinations(free.values(), 2)]
    if texts:
        try:
            free = dict(zip(specs.sizes, export.symbolic_shape(names, constraints=texts), strict=True))
        except (ValueError, NotImplementedError) as error:
            raise InputError(f"JAX does not accept the constraints {texts}: {_first(error)}") from error
    args, kwargs = specs.arguments(
        lambda t: jax.ShapeDtypeStruct(tuple(_dim(n, free, shift) for n in t.shape), jax.numpy.dtype(t.dtype))
    )
    if not names:
        return _trace(fn, args, kwargs, specs)
    with followed(fn) as path:
        traced = _trace(fn, args, kwargs, specs)
    known = {Symbol(name, 1): symbol(name, lowest) + shift for name in specs.sizes}
    comparisons = [_at(c, known, specs.sizes if shift else ()) for c in traced.comparisons]
    open_ones = any(c.zero is None for c in comparisons)
    other = None if path is None or open_ones else _other_way(fn, specs, path)
    comparisons += [other] if other is not None else []
    return Traced(resize(traced.graph, known), traced.tree, traced.refused, tuple(comparisons))


def _at(asked: SizeComparison, known: Mapping[Symbol, Size], shifted: Sequence[str]) -> SizeComparison:
    """A recorded comparison with the traced sizes replaced by those of the specifications."""
    words = asked.words
    for name in shifted:
        words = re.sub(rf"\b{name} - 1\b", name, words)
    return replace(asked, zero=None if asked.zero is None else substitute(asked.zero, known), words=words)


def _other_way(fn: Callable[..., Any], specs: Specs, path: Path) -> SizeComparison | None:
    """The first comparison that a function decided otherwise at symbolic sizes than at some numbers.

    Without numbers at which it can be traced, its kind of sizes stays a question.
    """
    for at in itertools.islice(filter(specs.admits, _numbers(specs.sizes)), _TRIED):
        try:
            with followed() as numbered:
                trace_concrete(fn, specs, at)
        except ArgumentError:
            continue
        return question(path, numbered)
    return question(Path(), path)


def _numbers(names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield numbers for sizes, of which constraints may admit some; JAX has no cached trace for the first ones."""
    count, first = len(names), _FRESH + next(_TRACES) % _FRESH
    for row in (range(first, first + 2 * count, 2), range(17, 17 + count), [24] * count, range(1, 1 + count)):
        yield dict(zip(names, row, strict=True))
    for k in (*range(first, first + _NEAR), *range(1, _NEAR), *(first + (1 << n) for n in range(15, 31))):
        for row in (range(k, k + count), range(k + count, k, -1)):
            yield dict(zip(names, row, strict=True))


def trace_concrete(fn: Callable[..., Any], specs: Specs, values: Mapping[str, int]) -> Traced:
    """The graph of a function at concrete sizes.

    Raises:
        ArgumentError: the function cannot be traced at these sizes.
    """
    at = {Symbol(name): n for name, n in values.items()}
    args, kwargs = specs.arguments(
        lambda t: jax.ShapeDtypeStruct(tuple(substitute(n, at) for n in t.shape), jax.numpy.dtype(t.dtype))
    )
    return _trace(fn, args, kwargs, specs)


def _trace(fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], specs: Specs) -> Traced:
    """Trace a function over sizes; raise `UntracedError` where it asks for values that a trace has not."""
    try:
        with recorded() as asked, jax.enable_x64(specs.wide or jax.config.read("jax_enable_x64")):
            closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    except (JAXTypeError, JAXIndexError) as error:  # it asks for values, which it would have without a trace
        raise UntracedError(f"the function cannot be traced: {_first(error)}") from error
    except (TypeError, ValueError, IndexError, ZeroDivisionError, NotImplementedError) as error:
        raise ArgumentError(f"the function cannot be traced: {_first(error)}", hint="check the shapes") from error
    except Exception as error:
        # a function may raise anything; it then has no value at these sizes, which the caller tests
        raise ArgumentError(f"the function raises {type(error).__name__}: {_first(error)}") from error
    leaves = tree_util.tree_leaves((args, kwargs))
    inputs = [make_input(n, sizes(x.shape), str(x.dtype)) for n, x in zip(specs.names, leaves, strict=True)]
    importer = Importer(reserved=specs.names)
    try:
        outputs = importer.run(closed.jaxpr, [importer.constant(c) for c in closed.consts], inputs)
    except (SuperoptError, KeptWhole) as error:
        raise UntracedError(f"the function cannot be imported: {error.args[0]}") from error
    constants = {node["name"]: array for node, array in importer.constants.items()}
    graph = inline(Graph((*inputs, *importer.constants), tuple(outputs), constants))
    outputs = graph.outputs
    wanted = [TensorType(sizes(s.shape), str(s.dtype)) for s in tree_util.tree_leaves(shape)]
    if [node.type for node in outputs] != wanted:
        raise SuperoptError(f"the graph gives {[str(n.type) for n in outputs]}, the function {list(map(str, wanted))}")
    return Traced(graph, tree_util.tree_structure(shape), tuple(importer.refused), tuple(asked))


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]


def _dim(x: Size, free: Mapping[str, Any], shift: int) -> Any:
    """A size as a dimension of JAX, with `n - shift` for every name n."""

    def atom(a: Any) -> Any:
        if isinstance(a, Symbol):
            return free[a.name] - shift if shift else free[a.name]
        assert isinstance(a, Form)
        p, q = (_dim(y, free, shift) for y in a.args[:2])
        match a.op:
            case "//":
                return p // q
            case "%":
                return p % q
            case _:
                raise InputError(f"{a} in a shape", hint="sizes in shapes use + - * // %")

    return evaluate(x, atom)
