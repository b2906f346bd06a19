"""Two functions of JAX compared for all sizes of their arguments: shapes over names.

Programs of other frontends come here as functions that JAX traces.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jax import tree_util

from superopt.compare.verdict import OutputVerdict, PairVerdict, compare_graphs
from superopt.errors import ArgumentError, InputError, UsageError
from superopt.frontends.symbolic.graphs import Traced, trace_concrete
from superopt.frontends.symbolic.specs import Specs
from verifier.statements.refute import tiny_sizes
from verifier.statements.statement import check_statement, make_statement
from verifier.verdict import EXACTNESS, PROVED, REFUTED, UNKNOWN, Counterexample, Verdict

if TYPE_CHECKING:
    from superopt.store import Store

_SIZES = 12
"""Small sizes at which functions may have no value, for a window that is larger or a slice that is longer."""


def compare_symbolic(
    first: Callable[..., Any],
    second: Callable[..., Any],
    specs: Sequence[Any],
    named: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    numerics: str = "real",
    store: Store | None = None,
    *,
    constraints: Sequence[str] = (),
    names: Sequence[str] = (),
    load: Callable[[Mapping[str, int]], str] | None = None,
) -> PairVerdict:
    """Prove or refute for all sizes that two functions compute the same, leaf by leaf of their results.

    Args:
        first, second: functions that JAX traces at symbolic sizes.
        specs, named: shapes of the arguments (`superopt.frontends.symbolic.specs`), by position and by name.
        sizes: at which what stays open is compared as programs of given sizes are; without them it stays open.
        numerics: the widest class of a proof that counts.
        store: of certificates.
        constraints: comparisons of sizes under which both are compared.
        names: of the results; without them, their places in the pytree.
        load: a text that defines both functions as `a` and `b` at some sizes, for the text to paste.

    Raises:
        ArgumentError: JAX does not trace a function at any of some small sizes.
        InputError: a specification cannot be read, or the structures of the results differ.
    """
    begin = time.monotonic()
    whole = make_statement("both", first, second, specs, dict(named), constraints)
    given = {k: n for k, n in (sizes or {}).items() if k in whole.specs.sizes}
    if sizes and (set(given) != set(whole.specs.sizes) or set(sizes) - set(given) - {k for k, _ in whole.specs.solved}):
        raise UsageError(
            f"sizes are given for {', '.join(sorted(sizes))}, the names are {', '.join(whole.specs.sizes)}"
        )
    at, traced = _traced(first, second, whole.specs, given)
    trees = [x.tree for x in traced]
    if trees[0] != trees[1]:
        raise InputError(f"the results have two structures: {trees[0]} and {trees[1]}")
    paths, _ = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(trees[0], range(trees[0].num_leaves)))
    names = list(names) or [f"result{tree_util.keystr(path)}" for path, _ in paths]
    verdicts = [
        check_statement(make_statement(name, _leaf(first, i), _leaf(second, i), specs, dict(named), constraints))
        for i, name in enumerate(names)
    ]
    outputs = [_output(name, found, numerics) for name, found in zip(names, verdicts, strict=True)]
    domains = [v.domain for v, o in zip(verdicts, outputs, strict=True) if o.status == PROVED and v.domain is not None]
    known = ", ".join(f"{name} = {n}" for name, n in at.items())
    text = f"for all sizes {', '.join(whole.specs.sizes)}" if whole.specs.sizes else "for these sizes"
    if whole.specs.premises:
        text += f" with {', '.join(f'{p} >= 0' for p in whole.specs.premises)}"
    found = PairVerdict(
        tuple(outputs),
        text,
        exactness=max((d.exactness for d in domains), key=EXACTNESS.index, default="exact"),
        assumptions=tuple(dict.fromkeys(a for d in domains for a in d.assumptions)),
        code=next(
            (
                _code(v.counterexample, i, whole.specs, load)
                for i, v in enumerate(verdicts)
                if v.counterexample is not None
            ),
            "",
        ),
    )
    left = [i for i, o in enumerate(outputs) if o.status == UNKNOWN]
    if left and given:
        apart = compare_graphs(traced[0].graph, traced[1].graph, names=names, numerics=numerics, store=store)
        for i in left:
            outputs[i] = replace(apart.outputs[i], cause=f"at {known} alone; {apart.outputs[i].cause}".rstrip("; "))
        open_names = ", ".join(names[i] for i in left)
        found = replace(
            apart,
            outputs=tuple(outputs),
            sizes=f"{text}, but {open_names} at {known} alone",
            exactness=max(apart.exactness, found.exactness, key=EXACTNESS.index),
            assumptions=tuple(dict.fromkeys((*found.assumptions, *apart.assumptions))),
            code=found.code or apart.code,
        )
    return replace(found, seconds=time.monotonic() - begin)


def _traced(
    first: Callable[..., Any], second: Callable[..., Any], specs: Specs, given: dict[str, int]
) -> tuple[dict[str, int], list[Traced]]:
    """Both functions at the sizes that are given, else at the first of some small ones at which both have values."""
    refused: ArgumentError | None = None
    for at in [given] if given or not specs.sizes else itertools.islice(tiny_sizes(specs, 1), _SIZES):
        try:
            return at, [trace_concrete(fn, specs, at) for fn in (first, second)]
        except ArgumentError as error:
            refused = refused or error
    raise refused or InputError("no sizes meet the constraints")


def _code(found: Counterexample, number: int, specs: Specs, load: Callable[[Mapping[str, int]], str] | None) -> str:
    """A text to paste: arrays, and what both give."""
    if load is None:
        return found.code
    if found.index is None:
        return ""
    lines = [load({k: int(n) for k, n in found.choices.items()}), "arrays = ("]
    for name, kind in zip(specs.names, specs.types, strict=True):
        lines.append(f"    np.array({found.inputs[name]!r}, {kind.dtype!r}).reshape({found.shapes[name]!r}),")
    lines += [")", f"x, y = (np.asarray(f(*arrays)[{number}]) for f in (a, b))"]
    at = found.index
    return "\n".join([*lines, f"print(x[{at}], y[{at}])  # {found.left} and {found.right}"])


def _leaf(fn: Callable[..., Any], number: int) -> Callable[..., Any]:
    """One leaf of a function's result."""

    @functools.wraps(fn)
    def leaf(*args: Any, **kwargs: Any) -> Any:
        return tree_util.tree_leaves(fn(*args, **kwargs))[number]

    return leaf


def _output(name: str, found: Verdict, numerics: str) -> OutputVerdict:
    if found.proved and found.domain is not None:
        if EXACTNESS.index(found.domain.exactness) <= EXACTNESS.index(numerics):
            return OutputVerdict(name, PROVED)
        return OutputVerdict(name, UNKNOWN, f"proved as {found.domain.exactness} alone")
    shown = found.counterexample
    if found.status == REFUTED and shown is not None:
        sizes = ", ".join(f"{k} = {v}" for k, v in shown.choices.items())
        place = "" if shown.index is None else f" at {list(shown.index)}"
        return OutputVerdict(name, REFUTED, f"where {sizes} it is {shown.left} and {shown.right}{place}")
    return OutputVerdict(name, UNKNOWN, found.cause)


__all__ = ["compare_symbolic"]
