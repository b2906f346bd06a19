"""Recognises calls of `jnp.linalg.solve` and `jnp.linalg.inv`: equations with the jaxpr that these trace to.

The functions are traced again at the types of the call, and the jaxprs are compared as texts.  No
name of JAX's own parts is needed, and a call that another transformation changed (a derivative) is not taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core

from superopt.frontends.jax.builders import reshape
from superopt.ir.graph import Node, mk
from superopt.ir.ops.linear import DTYPES

_FUNCTIONS: dict[str, Callable[..., Any]] = {"solve": jnp.linalg.solve, "inv": jnp.linalg.inv}


def linear_call(eqn: core.JaxprEqn, inner: Any, xs: Sequence[Node]) -> Node | None:
    """The op of a call of one of the two functions; None for other calls.

    Args:
        eqn: the call.
        inner: its jaxpr.
        xs: its operands.
    """
    name = str(eqn.params.get("name", ""))
    if name not in _FUNCTIONS or len({x.dtype for x in xs}) != 1 or xs[0].dtype not in DTYPES:
        return None
    batch = xs[0].shape[:-2]
    if any(x.shape[: len(batch)] != batch for x in xs) or str(inner) not in _traced(name, len(batch), eqn):
        return None
    if name == "inv":
        return mk("inverse", *xs)
    a, y = xs
    if len(y.shape) == len(a.shape):
        return mk("solve", a, y)
    return reshape(mk("solve", a, reshape(y, (*y.shape, 1))), y.shape)


def _traced(name: str, batch: int, eqn: core.JaxprEqn) -> Iterator[str]:
    """Yield the jaxprs of a function at the types of a call as texts: of batches, and under `vmap` for each axis."""
    types: list[Any] = [v.aval for v in eqn.invars]
    mapped = _FUNCTIONS[name]
    for _ in range(batch):
        mapped = jax.vmap(mapped)
    for function in (_FUNCTIONS[name], mapped):
        try:
            made = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types])
        except (TypeError, ValueError):  # shapes that the function does not take
            continue
        if len(made.jaxpr.eqns) == 1:
            yield str(made.jaxpr.eqns[0].params.get("jaxpr"))
