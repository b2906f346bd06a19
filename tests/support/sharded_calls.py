"""Calls with sharded arguments under `jax.jit` and under superopt, with several devices; prints what differs."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={sys.argv[1]} --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # compiled quickly: nothing is timed
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import superopt
from superopt.contest import rounds

rounds.ROUNDS, rounds.SAMPLE_S = 5, 5e-4  # as the fixture `briefly`
FAST: dict[str, Any] = {"search": False, "store": False}
COUNT = int(sys.argv[1])
W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = jnp.linspace(0, 1, 64, dtype=jnp.float32).reshape(8, 8)


def elementwise(x: Any) -> Any:
    """A kernel of ours."""
    return jnp.tanh(x) * 2 + 1


def product(x: Any) -> Any:
    """With prepared tensors."""
    return jnp.tanh(x @ (jnp.asarray(W) @ jnp.asarray(W).T))


def told(call: Any) -> Any:
    """What a call gives: type, sharding, committed, values; or the type of what it raises."""
    try:
        got = call()
    except Exception as error:  # compared
        return type(error).__name__
    values = [np.round(np.asarray(x, np.float64), 4).tolist() for x in jax.tree.leaves(got)]
    kinds = [(str(jax.typeof(x)), str(x.sharding), x.committed, len(x.devices())) for x in jax.tree.leaves(got)]
    return kinds, values


def main() -> int:
    """The number of differences."""
    different = 0
    explicit = jax.make_mesh((COUNT,), ("x",), axis_types=(AxisType.Explicit,))
    auto = jax.make_mesh((COUNT,), ("x",), axis_types=(AxisType.Auto,))
    alone = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    places: dict[str, Any] = {
        "default": X,
        "explicit": jax.device_put(X, NamedSharding(explicit, P("x"))),
        "auto": jax.device_put(X, NamedSharding(auto, P("x"))),
        "columns": jax.device_put(X, NamedSharding(auto, P(None, "x"))),
        "replicated": jax.device_put(X, NamedSharding(auto, P())),
        "one of them": jax.device_put(X, NamedSharding(alone, P("x"))),
        "last device": jax.device_put(X, jax.devices()[-1]),
        "numpy": np.asarray(X),
    }
    for fn in (elementwise, product) if COUNT > 1 else (elementwise,):  # one device shows no more of the other
        theirs, ours = jax.jit(fn), superopt.jit(fn, **FAST)
        made = superopt.optimize(fn, X, **FAST)
        made.save("p.superopt")
        calls: dict[str, Any] = {"jit": ours, "optimize": made}
        uses: dict[str, Any] = {
            "call": lambda f, x: f(x),
            "call again": lambda f, x: f(x),
            "jit": lambda f, x: jax.jit(f)(x),
            "shard_map": lambda f, x: jax.shard_map(f, mesh=explicit, in_specs=P("x"), out_specs=P("x"))(X),
        }
        for place, x in places.items():
            for how, use in uses.items():
                if how == "shard_map" and place != "default":
                    continue
                want = told(lambda: use(theirs, x))  # noqa: B023
                for name, call in calls.items():
                    got = told(lambda: use(call, x))  # noqa: B023
                    if want != got:
                        different += 1
                        print(
                            f"{fn.__name__} {place} {name} {how}: {str(got)[:160]} is not {str(want)[:160]}", flush=True
                        )
        for mesh in (explicit, auto):
            with jax.set_mesh(mesh):
                want, got = told(lambda: theirs(X)), told(lambda: ours(X))  # noqa: B023
                if want != got:
                    different += 1
                    print(f"{fn.__name__} under {mesh}: {str(got)[:160]} is not {str(want)[:160]}")
        loaded = superopt.load("p.superopt")
        for place, x in places.items():
            if not np.allclose(loaded(x), theirs(x), atol=1e-4):
                different += 1
                print(f"{fn.__name__} {place}: values of the loaded program")
        made = superopt.optimize(fn, places["auto"], **FAST)
        if told(lambda: made(places["auto"])) != told(lambda: theirs(places["auto"])):  # noqa: B023
            different += 1
            print(f"{fn.__name__}: made for sharded arguments")
        if len(ours.programs) != 1:
            different += 1
            print(f"{fn.__name__}: {ours.programs}")
    return different


if __name__ == "__main__":
    found = main()
    print(f"{found} differences")
    sys.exit(min(found, 1))
