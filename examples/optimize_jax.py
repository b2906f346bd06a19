"""Optimise a JAX function on example arguments, use the result like the original, write its report.

    python examples/optimize_jax.py [report.html]

The budget here is a number of search steps and nothing is measured, so that the outcome is the same everywhere; leave
`deterministic` out and give `budget="30s"` to have the finalists measured against the original.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

import superopt


def low_rank(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    """A dense layer plus a low-rank correction of its weights, as adapters of language models have it."""
    weights = params["w"] + params["down"] @ params["up"]
    return {"y": jax.nn.relu(x @ weights + params["bias"])}


def main(report_path: str | None = None) -> None:
    """Optimise, compare with the original, differentiate, report."""
    rng = np.random.default_rng(0)
    shapes = {"w": (512, 512), "down": (512, 8), "up": (8, 512), "bias": (512,)}
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((4, 512)).astype(np.float32)

    # the weights do not change between calls: what depends on them alone is computed once
    fast = superopt.optimize(low_rank, params, x, frozen=0, budget="500steps", deterministic=True, store=False)
    print(fast.report)
    np.testing.assert_allclose(fast(params, x)["y"], low_rank(params, x)["y"], rtol=1e-3, atol=1e-2)

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(fast(params, x)["y"] ** 2)

    print("gradient of the optimised function:", jax.grad(loss)(x).shape)
    if report_path is not None:
        fast.report.save(report_path)
        print("report:", report_path)


if __name__ == "__main__":
    main(*sys.argv[1:2])
