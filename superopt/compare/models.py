"""Two ONNX models compared (needs the onnx package, an extra)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.compare.sharing import arguments
from superopt.compare.verdict import SECONDS, PairVerdict, compare_graphs
from superopt.errors import InputError
from superopt.frontends.onnx.frontend import import_model, load_model
from superopt.ir.graph import Graph, topological

NODES = 500
"""Of a model, for which `SECONDS` are meant."""

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

    Args:
        first, second: files, bytes or messages.
        dims: sizes of symbolic dimensions; the verdict holds for these.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: after which no further piece is tried; models of more than 500 nodes have as much more.
        seed: of the inputs of the refuter.
        store: of certificates.

    Raises:
        InputError: a model cannot be read, computes a part on the host, or they take different arguments.
        ProverDefectError: something was proved that evaluation refutes: a defect of the prover.
    """
    models = [load_model(source, dims=dims) for source in (first, second)]
    for model in models:
        if model.head is not None or model.tail is not None:
            raise InputError(
                f"{model.name} computes a part on the host (strings, or results without a fixed shape)",
                hint="only what is computed in the program can be compared",
            )
    graphs = [import_model(model).graph for model in models]
    taken = [[i.name for i in model.taken] for model in models]
    places = [_needed(graphs[i], taken[i], taken[1 - i]) for i in range(2)]
    graphs = [_of_inputs(graph, kept) for graph, kept in zip(graphs, places, strict=True)]
    names = [o.name for o in models[0].outputs]
    seconds *= max(1.0, max(sum(model.op_counts.values()) for model in models) / NODES)
    paths = [str(x) if isinstance(x, str | Path) else None for x in (first, second)]
    found = compare_graphs(
        graphs[0], graphs[1], names=names, numerics=numerics, seconds=seconds, seed=seed, store=store,
        load=_loading(paths, dims, places),
    )  # fmt: skip
    for names, kept in zip(taken, places, strict=True):
        unread = [name for i, name in enumerate(names) if i not in kept]
        if unread:
            text = f"without {', '.join(unread)}, which only one takes and nothing reads"
            found = replace(found, sizes=f"{found.sizes}, {text}")
    if not dims:
        return found
    given = ", ".join(f"{name} = {n}" for name, n in dims.items())
    return replace(found, sizes=f"{found.sizes} ({given}; nothing is said of others)")


def _needed(graph: Graph, names: list[str], others: list[str]) -> list[int]:
    """Places of a model's inputs, without those that the other has not and nothing reads: optimisers drop them."""
    read = set(topological(graph.outputs))
    return [i for i, name in enumerate(names) if name in others or graph.inputs[i] in read]


def _of_inputs(graph: Graph, places: list[int]) -> Graph:
    live, stored = arguments(graph), [n for n in graph.inputs if n["name"] in graph.constants]
    return replace(graph, inputs=(*(live[i] for i in places), *stored))


def _loading(paths: list[str | None], dims: Mapping[str, int] | None, places: list[list[int]]) -> str:
    if None in paths:
        return ""
    sizes = f", dims={dict(dims)!r}" if dims else ""
    lines = ["import numpy as np", "from superopt.frontends.onnx.frontend import load_model"]
    for name, path, kept in zip("ab", paths, places, strict=True):
        lines.append(f"{name} = load_model({path!r}{sizes})")
        if places[0] != places[1]:  # what nothing reads is 0
            given = f"x[{kept!r}.index(i)] if i in {kept!r} else np.zeros(t.shape, t.dtype)"
            lines.append(f"{name} = lambda *x, f={name}: f(*[{given} for i, t in enumerate(f.inputs)])")
    return "\n".join(lines)


__all__ = ["compare_models"]
