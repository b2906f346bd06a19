"""Equivalence of two ONNX models (needs the onnx package, an extra)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from superopt.equivalence.sharing import arguments
from superopt.equivalence.symbolic import SECOND, SizedArguments, compare_symbolic
from superopt.equivalence.verdict import SECONDS, OutputVerdict, PairVerdict, Spoken, compare_graphs
from superopt.errors import InputError, SuperoptError
from superopt.frontends.jax.sizes import dimension, renamed
from superopt.frontends.onnx.frontend import (
    OnnxModel,
    TensorInfo,
    import_model,
    load_model,
    load_symbolic,
    origins,
)  # fmt: skip
from superopt.frontends.onnx.model import symbolic_dimensions
from superopt.frontends.onnx.read import reads
from superopt.frontends.symbolic.known import NO_OVERFLOW
from superopt.ir.graph import Graph, topological
from superopt.ir.index import concrete
from verifier.verdict import PROVED, UNKNOWN

NODES = 500
"""Number of nodes of a model for which `SECONDS` are meant."""
_SOME = 4
"""A size at which a model is read to find out whether it can be read at all."""

if TYPE_CHECKING:
    from superopt.store import Store


def compare_models(
    first: Any,
    second: Any,
    *,
    dims: Mapping[str, int] | None = None,
    numerics: str = "real",
    seconds: float = SECONDS,
    seed: int = 0,
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute that two ONNX models compute the same, output by output.

    Where sizes of inputs are symbolic, the verdict is for all of them.

    Args:
        first, second: files, bytes or messages.
        dims: sizes of symbolic dimensions.  If some are given, the models have those sizes; if all are, results that
            stay open for all sizes are compared at these.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: processor time after which no further window is tried; more in proportion above 500 nodes.
        seed: seed of the refuter's inputs.
        store: the store to look up certificates in.

    Raises:
        InputError: a model cannot be read, computes a part on the host, or they take different arguments.
        ProverDefectError: evaluation refutes a proof: a defect of the prover.
    """
    sources, given = (first, second), dict(dims or {})
    names = [symbolic_dimensions(source) for source in sources]
    unknown = [key for key in given if not any(key in of for of in names)]
    own = [{key: n for key, n in given.items() if key in of or key in unknown} for of in names]
    left = any(set(of.values()) - {of[key] for key in some if key in of} for of, some in zip(names, own, strict=True))
    refused = ""
    if any(names) and not unknown:
        fixed = own if left else [{}, {}]
        try:
            models = [load_symbolic(x, some) for x, some in zip(sources, fixed, strict=True)]
        except InputError as error:
            if left:
                return _open(sources, names, fixed, error)
            refused = f"; for all sizes it is open: {error.args[0]}"
        else:
            try:
                sizes = {} if left else {of[key]: n for of in names for key, n in given.items() if key in of}
                verdict = _for_all_sizes(models, fixed, sources, sizes, numerics, store)
                return _at(verdict, fixed[0] | fixed[1])
            except InputError as error:
                if left:
                    raise
                refused = f"; for all sizes it is open: {error.args[0]}"
    models = [load_model(x, dims=some) for x, some in zip(sources, own, strict=True)]
    verdict = _at(_at_sizes(models, own, sources, (numerics, seconds, seed, store)), given)
    return replace(verdict, sizes=verdict.sizes + refused)


def _open(
    sources: Sequence[Any],
    names: Sequence[Mapping[str, str]],
    fixed: Sequence[Mapping[str, int]],
    error: SuperoptError,
) -> PairVerdict:
    """The verdict where the prover needs fixed sizes: models that can be read at some sizes are open for all.

    Raises:
        SuperoptError: they cannot be read at those sizes either.
    """
    try:
        models = [
            load_model(x, dims={**dict.fromkeys(set(of.values()) - {of[k] for k in some}, _SOME), **some})
            for x, of, some in zip(sources, names, fixed, strict=True)
        ]
    except SuperoptError:
        raise error from None
    cause = f"sizes have to be given (--dims): {error.args[0]}"
    return PairVerdict(tuple(OutputVerdict(o.name, UNKNOWN, cause) for o in models[0].outputs), "for no size")


def _at(found: PairVerdict, dims: Mapping[str, int]) -> PairVerdict:
    """The verdict limited to these sizes."""
    given = ", ".join(f"{name} = {n}" for name, n in dims.items())
    return replace(found, sizes=f"{found.sizes} ({given}; nothing is said of others)") if given else found


def _at_sizes(
    models: Sequence[OnnxModel], dims: Sequence[Mapping[str, int]], sources: Sequence[Any], options: tuple[Any, ...]
) -> PairVerdict:
    """The verdict on models of given sizes."""
    numerics, seconds, seed, store = options
    _in_program(models)
    graphs = [import_model(model).graph for model in models]
    taken = [[i.name for i in model.taken] for model in models]
    places = [_needed(graphs[i], taken[i], taken[1 - i]) for i in range(2)]
    graphs = [_of_inputs(graph, kept) for graph, kept in zip(graphs, places, strict=True)]
    names = [o.name for o in models[0].outputs]
    seconds *= max(1.0, max(sum(model.op_counts.values()) for model in models) / NODES)
    verdict = compare_graphs(
        graphs[0], graphs[1], Spoken(names, _loading(sources, dims, places), lambda: origins(models[1])),
        numerics=numerics, seconds=seconds, seed=seed, store=store,
    )  # fmt: skip
    return _without(verdict, taken, places)


def _without(found: PairVerdict, taken: Sequence[Sequence[str]], places: Sequence[Sequence[int]]) -> PairVerdict:
    """The verdict with a note of the inputs that it leaves out."""
    for names, kept in zip(taken, places, strict=True):
        unread = [name for i, name in enumerate(names) if i not in kept]
        if unread:
            text = f"without {', '.join(unread)}, which only one takes and nothing reads"
            found = replace(found, sizes=f"{found.sizes}, {text}")
    return found


def _in_program(models: Sequence[OnnxModel]) -> None:
    for model in models:
        if model.head is not None and len(model.inputs) == len(model.taken) - 1 and not model.head.reads:
            raise InputError(
                f"{model.name} draws random numbers, others at each call",
                hint="give the nodes that draw them a seed, and they can be compared",
            )
        if model.head is not None or model.tail is not None:
            raise InputError(
                f"{model.name} computes a part on the host (strings, or results without a fixed shape)",
                hint="only what is computed in the program can be compared",
            )


# ---- for all sizes


def _for_all_sizes(
    models: Sequence[OnnxModel],
    dims: Sequence[Mapping[str, int]],
    sources: Sequence[Any],
    sizes: Mapping[str, int],
    numerics: str,
    store: Store | None,
) -> PairVerdict:
    """The verdict on models of symbolic sizes.

    Raises:
        ArgumentError: JAX does not trace a model at symbolic sizes.
    """
    at = {str(n): sizes[key] for model in models[:1] for key, n in model.symbols.items() if key in sizes}
    taken, places = _taken(models)
    with jax.enable_x64(True):
        one, two, of = as_functions(models, dims, sources)
        verdict = compare_symbolic(one, two, of, at, numerics, store)
    if PROVED in {o.status for o in verdict.outputs}:
        verdict = replace(verdict, assumptions=(*verdict.assumptions, NO_OVERFLOW))
    return _without(verdict, taken, places)


def _taken(models: Sequence[OnnxModel]) -> tuple[list[list[str]], list[list[int]]]:
    """Names of both models' inputs, and positions of those that matter."""
    taken = [[i.name for i in model.taken] for model in models]
    return taken, [_read(models[i].graph, taken[i], taken[1 - i]) for i in range(2)]


def as_functions(
    models: Sequence[OnnxModel], dims: Sequence[Mapping[str, int]] = ({}, {}), sources: Sequence[Any] = (None, None)
) -> tuple[Callable[..., Any], Callable[..., Any], SizedArguments]:
    """Two models of symbolic sizes as functions that close over their weights, and their arguments.

    Args:
        models: both.
        dims: sizes that are given.
        sources: files, for the code to paste.

    Raises:
        InputError: a model computes a part on the host, or they take different arguments.
    """
    _in_program(models)
    _, places = _taken(models)
    specs, constraints = _specs(*([model.taken[i] for i in kept] for model, kept in zip(models, places, strict=True)))

    def load(at: Mapping[str, int]) -> str:
        shapes = [concrete(dimension(str(n)), at) for i in places[0] for n in models[0].taken[i].shape]
        known = [dict(some) for some in dims]
        for model, kept, some in zip(models, places, known, strict=True):
            symbols = {str(n): key for key, n in model.symbols.items()}
            own = [str(n) for i in kept for n in model.taken[i].shape]
            some |= {symbols[text]: n for text, n in zip(own, shapes, strict=True) if text in symbols}
        return _loading(sources, known, places)

    one, two = (_function(model, kept) for model, kept in zip(models, places, strict=True))
    return one, two, SizedArguments(specs, {}, constraints, [o.name for o in models[0].outputs], load)


def _read(graph: Any, names: Sequence[str], others: Sequence[str]) -> list[int]:
    """Positions of a model's inputs, except those that the other lacks and no node reads."""
    read = {x for node in graph.node for x in reads(node)} | {o.name for o in graph.output}
    return [at for at, name in enumerate(names) if name in others or name in read]


def _function(model: OnnxModel, places: Sequence[int]) -> Callable[..., Any]:
    """The model as a function of the inputs at these positions, with its weights; unread inputs are 0."""

    def run(*inputs: Any) -> Any:
        given = dict(zip(places, inputs, strict=True))
        absent = [jnp.zeros((1,) * len(i.shape), i.dtype) for i in model.taken]
        return model.fn(model.params, *(given.get(i, absent[i]) for i in range(len(model.taken))))

    return run


def _specs(first: Sequence[TensorInfo], second: Sequence[TensorInfo]) -> tuple[list[str], list[str]]:
    """Specifications of the first model's arguments, and equations between its size names and the second's.

    Raises:
        InputError: the two take different arguments.
    """
    texts: list[list[str]] = [[], []]
    equations: dict[str, None] = {}
    why = "" if len(first) == len(second) else f"the first has {len(first)}, the second {len(second)}"
    for a, b in zip(first, second, strict=False):
        for side, info in enumerate((a, b)):
            texts[side].append(f"{info.dtype}[{', '.join(map(str, info.shape))}]")
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            why = why or f"{texts[0][-1]} and {texts[1][-1]}"
            continue
        for n, m in zip(a.shape, b.shape, strict=True):
            if is_symbolic_dim(n) and is_symbolic_dim(m):
                equations[f"{renamed(str(m), lambda name: name + SECOND)} == {n}"] = None
            elif is_symbolic_dim(n) or is_symbolic_dim(m):
                raise InputError(
                    f"{a.name} is {texts[0][-1]} in the first model and {texts[1][-1]} in the second",
                    hint="--dims gives the size that one of them was made for",
                )
            elif n != m:
                why = why or f"{texts[0][-1]} and {texts[1][-1]}"
    if why:
        raise InputError(f"two programs of different arguments: {why}")
    return texts[0], list(equations)


def _needed(graph: Graph, names: list[str], others: list[str]) -> list[int]:
    """Positions of a model's inputs, except those that the other lacks and nothing reads, as optimisers drop them."""
    read = set(topological(graph.outputs))
    return [i for i, name in enumerate(names) if name in others or graph.inputs[i] in read]


def _of_inputs(graph: Graph, places: list[int]) -> Graph:
    live, stored = arguments(graph), [n for n in graph.inputs if n["name"] in graph.constants]
    return replace(graph, inputs=(*(live[i] for i in places), *stored))


def _loading(sources: Sequence[Any], dims: Sequence[Mapping[str, int]], places: list[list[int]]) -> str:
    """Code that defines `a` and `b`; empty where the models are no files."""
    if not all(isinstance(x, str | Path) for x in sources):
        return ""
    lines = ["import numpy as np", "from superopt.frontends.onnx.frontend import load_model"]
    for name, path, some, kept in zip("ab", map(str, sources), dims, places, strict=True):
        lines.append(f"{name} = load_model({path!r}{f', dims={dict(some)!r}' if some else ''})")
        if places[0] != places[1]:  # inputs that nothing reads are 0
            given = f"x[{kept!r}.index(i)] if i in {kept!r} else np.zeros(t.shape, t.dtype)"
            lines.append(f"{name} = lambda *x, f={name}: f(*[{given} for i, t in enumerate(f.inputs)])")
    return "\n".join(lines)


__all__ = ["as_functions", "compare_models"]
