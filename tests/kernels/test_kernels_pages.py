"""Large pages change neither contents nor addresses."""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

from superopt.kernels.runtime.pages import LEAST, PAGE, enlarge


def test_contents_stay():
    x = jnp.arange(3 * PAGE // 4, dtype=jnp.float32) + 1
    before = np.array(x)
    address = x.addressable_shards[0].data.unsafe_buffer_pointer()
    enlarge(x)
    assert x.addressable_shards[0].data.unsafe_buffer_pointer() == address
    assert np.array_equal(np.asarray(x), before)


def test_small_arrays_are_left_alone():
    assert not enlarge(jnp.zeros(LEAST // 8, jnp.float32))
