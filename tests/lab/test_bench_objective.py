"""The suite objective: each variant leaves out what it says, and its pick is a program of the function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel.model.boundary import NOTHING
from costmodel.model.learned import Learned
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.llvm.cpu import supported
from superopt.lab.bench import objective
from superopt.make.trials import TrialPool
from superopt.workshop.process import ONE_KERNEL, Worker

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


def test_variants_leave_out_one_part_each() -> None:
    found = objective.variants()
    joint = found.pop(objective.JOINT)
    assert joint.own is not None
    assert joint.own.boundary != NOTHING
    said = {name: (v.by_xla, v.own, v.timed, v.rewrites, v.kernels) for name, v in found.items()}
    assert len(set(said.values())) == len(said)
    assert found["no_boundary"].own == objective.NativeModel(joint.own.regions)
    assert not any(isinstance(m, Learned) for m in (found["no_model"].by_xla, found["no_model"].own.regions))


def test_every_pick_computes_the_function_and_is_timed() -> None:
    def chain(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh((x @ w) @ v)

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((64, 4), (4, 64), (8, 64))]
    imported = import_function(chain, arrays, frozen=(0, 1))
    rules = proved_library(None).rules
    chosen = {name: v for name, v in objective.variants().items() if name in (objective.JOINT, "apart", "xla")}
    with TrialPool(processes=1) as pool, Worker(ONE_KERNEL, inline=True) as worker:
        picks = {name: objective.picked(imported, v, rules, 1.0, 0, pool, worker) for name, v in chosen.items()}
    assert picks[objective.JOINT].kernels
    assert picks["apart"].kernels
    assert not picks["xla"].kernels
    row = objective.timed(imported, picks, 0)
    assert row["over_apart"] > 0.0
    assert row["over_xla"] > 0.0
    assert row["joint_ms"] > 0.0
