"""StableHLO modules as graphs: operations against XLA's execution of the module, and files that are refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jaxlib import xla_client

from superopt.backends.xla import to_jax
from superopt.errors import InputError, SuperoptError
from superopt.frontends.stablehlo.module import import_module, load_module
from superopt.frontends.stablehlo.ops import OPS
from tests.frontends.test_frontend_jax import check_close
from tests.support.jax_programs import CASES


def compiled(text: str) -> Any:
    """The module as XLA executes it."""
    device = jax.devices()[0]
    return device.client.compile_and_load(text, xla_client.DeviceList((device,)), xla_client.CompileOptions())


def by_xla(text: str, args: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the module from XLA itself."""
    with jax.enable_x64(True):
        found = compiled(text).execute_sharded([jnp.asarray(x) for x in args])
        return [np.asarray(x[0]) for x in found.disassemble_into_single_device_arrays()]


def by_us(text: str | bytes, args: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the graph that is imported."""
    imported = import_module(load_module(text.encode() if isinstance(text, str) else text))
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.jit(to_jax(imported.graph))(*args, *imported.graph.constants.values())]


def check(text: str, *args: Any) -> None:
    arrays = [np.asarray(x) for x in args]
    check_close(by_us(text, arrays), by_xla(text, arrays))


REFUSED = {
    "cumlogsumexp": "reduce_window", "fft": "complex<f32>", "general_reduce": "reduces by a function", "scatter_set": "scatter",
    "grad_embedding": "scatter", "grad_max_pool": "select_and_scatter", "linear_solve": "lapack_sgetrf_ffi",
}  # fmt: skip
"""Programs with an operation that is refused, and what the refusal names."""


@pytest.mark.parametrize("name", CASES)
def test_exported_programs(name: str) -> None:
    fn, args = CASES[name]()
    text = jax.jit(fn, keep_unused=True).lower(*args).as_text()
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]) as told:
            import_module(load_module(text.encode()))
        assert "line " in str(told.value)
        return
    types = load_module(text.encode()).arguments
    check(text, *(np.asarray(x).astype(t.dtype) for x, t in zip(jax.tree.leaves(args), types, strict=True)))
