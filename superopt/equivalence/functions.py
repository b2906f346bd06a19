"""Equivalence of two JAX functions on the types of example arguments: any pytrees, whatever arrays they close over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from superopt.equivalence.symbolic import SizedArguments, compare_symbolic
from superopt.equivalence.verdict import PairVerdict, Spoken, compare_graphs
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph
from superopt.ir.inline import inline

if TYPE_CHECKING:
    from superopt.store import Store


LOAD = "# a and b: the functions over the flat arguments that are not frozen, with tuples of flat results"
"""Placeholder in the code to paste, where both functions have to be defined."""


def compare_functions(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *args: Any,
    frozen: int | str | Sequence[int | str] = (),
    numerics: str = "real",
    seed: int = 0,
    store: Store | None = None,
    kwargs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> PairVerdict:
    """Prove or refute that two functions compute the same, leaf by leaf of their results.

    Args:
        first, second: functions that `jax.make_jaxpr` traces.
        args: example arguments, pytrees of arrays or of `jax.ShapeDtypeStruct`; the verdict holds for their types.
            Where a leaf is a shape over names (`"b 64"`, `"int32[n]"`), it holds for all sizes.
        frozen: arguments whose values are part of both functions: weights that one of them may fold.
        numerics: exact, real or range: the widest class of rules that may be used.
        seed: seed of the refuter's inputs.
        store: the store to look up certificates in.
        kwargs: example keyword arguments.
        sizes: sizes for the names, used to compare results that stay open for all sizes.

    Raises:
        ArgumentError: a function refuses the arguments.
        InputError: the structures of the results differ.
        VerificationError: evaluation refutes a proof: a defect of the prover.
    """
    if any(isinstance(x, str) for x in tree_util.tree_leaves((args, kwargs or {}))):
        if frozen not in ((), None):
            raise InputError("frozen arguments have values, and shapes over names have none")
        return compare_symbolic(
            first, second, SizedArguments(args, kwargs or {}, load=lambda _: LOAD), sizes, numerics, store
        )
    both = [import_function(fn, args, kwargs, frozen=frozen) for fn in (first, second)]
    trees = [x.out_tree for x in both]
    if trees[0] != trees[1]:
        raise InputError(f"the results have two structures: {trees[0]} and {trees[1]}")
    one, two = map(_graph, both)
    leaves = tree_util.tree_unflatten(trees[0], range(trees[0].num_leaves))
    names = [f"result{tree_util.keystr(path)}" for path, _ in tree_util.tree_leaves_with_path(leaves)]
    return compare_graphs(
        one, two, Spoken(names, LOAD), numerics=numerics, seed=seed, store=store
    )  # fmt: skip


def loading(first: str, second: str) -> str:
    """Code that defines two functions `FILE.py:NAME`, for the code to paste."""
    return "\n".join(
        [
            "import jax",
            "import numpy as np",
            "from superopt.pipeline.target import made_by",
            f"(f, args, _), (g, _, _) = map(made_by, {(first, second)!r})",
            "tree = jax.tree.structure(args)",
            "a, b = (",
            "    lambda *x, fn=fn: jax.tree.leaves(fn(*jax.tree.unflatten(tree, map(jax.numpy.asarray, x))))",
            "    for fn in (f, g)",
            ")",
        ]
    )


def _graph(imported: Imported) -> Graph:
    """The graph of the results alone, with frozen arguments as constants."""
    graph = imported.graph
    values = {name: np.asarray(x) for name, x in imported.frozen_values.items()}
    results = graph.outputs[: imported.out_tree.num_leaves]
    return inline(replace(graph, outputs=results, constants={**graph.constants, **values}))


__all__ = ["LOAD", "compare_functions", "loading"]
