"""Imported graphs evaluated by the reference interpreter give the values of the functions: an oracle without JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate
from tests.frontends.test_frontend_jax import check_close
from tests.support.jax_programs import CASES, OPAQUE


@pytest.mark.parametrize("name", [name for name in CASES if not OPAQUE.get(name)])
def test_interpreter_agrees(name: str) -> None:
    fn, args = CASES[name]()
    imported = import_function(fn, args)
    env = {n: np.asarray(jnp.asarray(x)) for n, x in zip(imported.names, imported.examples, strict=True)}
    got = imported.unflatten(evaluate(imported.graph, env))
    check_close(got, jax.tree.map(jnp.asarray, jax.jit(fn)(*args)), scale=10)


def test_interpreter_refuses_opaque_operations() -> None:
    fn, args = CASES["sort"]()
    imported = import_function(fn, args)
    with pytest.raises(InputError):
        evaluate(imported.graph, {"x": np.asarray(args[0])})
