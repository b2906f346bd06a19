"""Functions compiled for their results alone give those of the usual compilation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.machine.jitting import jit_quickly


def test_results_are_those_of_the_function() -> None:
    x = np.linspace(-2.0, 2.0, 24, dtype=np.float32).reshape(4, 6)
    fast = jit_quickly(lambda x: jnp.exp(x @ x.T) / (1.0 + x.sum(1)))
    np.testing.assert_allclose(fast(x), np.exp(x @ x.T) / (1.0 + x.sum(1)), rtol=1e-5)


def test_what_the_quick_compiler_lacks_is_compiled_as_usual() -> None:
    low, x, high = np.array([[False, False, True], [False, True, False], [True, True, True]])
    np.testing.assert_array_equal(jit_quickly(lax.clamp)(low, x, high), [False, True, True])
