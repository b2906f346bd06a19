"""Detects arguments that are left to `jax.jit`: sharded ones, ones on other devices, and mutable references.

A program is made for arrays on the default device.  Sharded arrays, and those on another device, decide where and how a
function is computed and how its results are sharded.  A mesh or explicit axes are part of the types of all values in
the function, and a `Ref` is written to.  Outside of a trace only a process with several devices has to look at its
arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding


@functools.cache
def has_several_devices() -> bool:
    """Whether arguments can lie elsewhere than on the default device."""
    return jax.device_count() > 1


def is_placed(leaves: Iterable[Any]) -> bool:
    """Whether one of these arrays, traced or not, is sharded, on another device than the default one, or a `Ref`."""
    return any(map(_placed, leaves)) or not jax.sharding.get_abstract_mesh().empty


def is_sharded(leaves: Iterable[Any]) -> bool:
    """Whether an argument of a call is sharded, or on another device than the default one."""
    return has_several_devices() and any(isinstance(x, jax.Array) and _elsewhere(x) for x in leaves)


def _placed(x: Any) -> bool:
    aval = getattr(x, "aval", None)
    if aval is not None and (_has_mesh(aval) or hasattr(aval, "inner_aval")):
        return True
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and _elsewhere(x)


def _has_mesh(aval: Any) -> bool:
    sharding = getattr(aval, "sharding", None)
    return bool(getattr(aval, "vma", None)) or (sharding is not None and not sharding.mesh.empty)


def _elsewhere(x: jax.Array) -> bool:
    if isinstance(x, Tracer) or x.is_deleted():
        return False
    sharding = x.sharding
    if not isinstance(sharding, SingleDeviceSharding):
        return True
    return x.committed and sharding.device_set != {_default_device()}


def _default_device() -> Any:
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]
