"""ONNX frontend: reads a model, converts it to a JAX function, and imports that as a graph.

Both frontends share one path: an ONNX model becomes a function of `jax.numpy` and `jax.lax` calls by the op table in
`onnx_ops`, and the JAX frontend traces that function.  `import_onnx` returns a program of the model's inputs alone:
weights are frozen inputs under their own names whose values come with the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from jax import tree_util

from superopt.files.reading import converting
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.frontends.jax.jit_settings import settings_of_jax
from superopt.frontends.onnx.eval import StaticValueError, UnsupportedOpError
from superopt.frontends.onnx.model import OnnxModel, TensorInfo, check_arguments, load_model, load_symbolic
from superopt.frontends.onnx.read import label
from superopt.frontends.onnx.weights import light_model_path, randomize_weights
from superopt.ir.graph import Graph, Node

__all__ = [
    "OnnxModel",
    "StaticValueError",
    "TensorInfo",
    "UnsupportedOpError",
    "check_arguments",
    "import_model",
    "import_onnx",
    "light_model_path",
    "load_model",
    "load_symbolic",
    "origins",
    "randomize_weights",
]


def import_onnx(
    source: str | Path | bytes | onnx.ModelProto,
    *arguments: Any,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    seed: int = 0,
    data_root: str | Path | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
    singles: bool = False,
) -> Imported:
    """The graph of an ONNX model.

    Args:
        source: a file, its bytes, or a message.
        arguments: example inputs in order; random ones when there are none.
        dims: sizes of symbolic dimensions that the arguments do not determine.
        values: inputs to bind to constants.
        seed: seed of the random inputs.
        data_root: a folder inside which links to external data are followed.
        operators: functions for operators that are not known here (see `load_model`).
        singles: compute float16 in float32 (see `load_model`).

    Raises:
        InputError: the model or the arguments cannot be accepted (see `load_model`, `check_arguments`).
    """
    model = load_model(
        source, dims=dims, values=values, data_root=data_root, operators=operators, like=arguments, singles=singles
    )
    return import_model(model, *arguments, seed=seed)


def import_model(model: OnnxModel, *arguments: Any, seed: int = 0) -> Imported:
    """The graph of a loaded model: a program of its inputs, its weights frozen under their own names.

    Types are those of the file, whether or not the caller has enabled x64; 32-bit integers may be given for those of
    64 bits.

    Raises:
        ArgumentError: the arguments do not fit.
    """
    return _bound(*_imported(model, model.fn, arguments, seed))


def origins(model: OnnxModel) -> dict[Node, str]:
    """Map nodes of the graph of `import_model` to the file's nodes whose output they are, in its order."""
    imported, *_ = _imported(model, model.values, (), 0)
    at = tree_util.tree_unflatten(imported.out_tree, imported.graph.outputs)
    names: dict[Node, str] = {}
    for node in model.graph.node:
        for name in node.output:
            if name in at:
                names.setdefault(at[name], label(node))
    return names


def _imported(
    model: OnnxModel, fn: Callable[..., Any], arguments: tuple[Any, ...], seed: int
) -> tuple[Imported, OnnxModel, tuple[np.ndarray, ...]]:
    """A function of the model's arguments, imported; with the model and the arguments."""
    with converting(model.name):
        examples = check_arguments(model, arguments) if arguments else model.example_inputs(seed)
        examples = examples if model.head is None else tuple(map(np.asarray, model.head(examples)))
    with converting(model.name), jax.enable_x64(True):
        imported = import_function(fn, (dict(model.params), *examples), frozen=0)
    return imported, model, examples


def _bound(imported: Imported, model: OnnxModel, examples: tuple[np.ndarray, ...]) -> Imported:
    """The program without its weight arguments: their values become constants of the graph."""
    nodes, graph = imported.graph.inputs, imported.graph
    weights = {nodes[i]["name"]: np.asarray(imported.examples[i]) for i in imported.frozen}
    live = tuple(nodes[i] for i in imported.live)
    kept = tuple(node for node in nodes if node not in live)
    fn, params = model.fn, dict(model.params)

    def run(*inputs: Any) -> tuple[Any, ...]:
        return fn(params, *inputs)

    run.__name__ = fn.__name__
    return replace(
        imported,
        graph=Graph((*live, *kept), graph.outputs, {**weights, **graph.constants}),
        fn=run,
        in_tree=tree_util.tree_structure((examples, {})),
        names=tuple(imported.names[i] for i in imported.live),
        live=tuple(range(len(examples))),
        frozen=(),
        examples=examples,
        widened=tuple(i for i, x in enumerate(examples) if x.dtype == np.int64),
        head=model.head,
        tail=model.tail,
        weakness=None,
        context=settings_of_jax(),  # of the caller's calls: only the import is made with types of 64 bits
        opaque_ops=sum((Counter(x.ops) for x in (model.head, model.tail) if x is not None), imported.opaque_ops),
        remarks=(_IN_SINGLES,) if model.singles and _has_halves(model) else (),
        titles=tuple([o.name for o in model.outputs]),
    )


_IN_SINGLES = "float16 is computed in float32, as ONNX Runtime does on CPUs, and rounded where values leave the program"


def _has_halves(model: OnnxModel) -> bool:
    """Whether a weight, an input or an output is of float16."""
    return "float16" in {str(x.dtype) for x in (*model.params.values(), *model.inputs, *model.outputs)}
