"""The original `jax.jit`, and settings of JAX that threads of superopt have in common with that of their caller.

Users may put `superopt.jit` in its place for a whole process; superopt's own compilations still go to XLA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax._src import config
from jax._src.api import jit as jax_jit  # `jax.jit` may be replaced before this is imported

from superopt.machine import background

__all__ = ["QUICKLY", "SETTINGS", "enabled_x64", "jax_jit", "jit_quickly", "user_contexts"]

QUICKLY: dict[str, bool | str] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}
"""Compiler options for what is called a few times, for its results alone.

Six functions of 10 to 60 operations are compiled in 0.32 s of a processor: 2.7 s without options, 1.6 s by the first
alone, 0.49 s by the first two.  Their calls take as long as by the first alone.
"""

SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion",
    "jax_threefry_partitionable", "jax_default_prng_impl", "jax_random_seed_offset", "jax_explicit_x64_dtypes",
    "jax_check_static_indices", "jax_debug_key_reuse", "jax_allow_f16_reductions",
)  # fmt: skip
"""Settings that change the results or refusals of a function."""
_CARRIED = (
    *SETTINGS, "jax_debug_nans", "jax_debug_infs", "jax_default_device", "jax_transfer_guard_host_to_device",
    "jax_transfer_guard_device_to_device", "jax_transfer_guard_device_to_host",
)  # fmt: skip


def jit_quickly(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under `jax.jit` that is compiled for a few calls, for their results alone."""
    quick, usual = jax_jit(fn, compiler_options=QUICKLY), jax_jit(fn)

    def call(*arguments: Any) -> Any:
        try:
            return quick(*arguments)
        except jax.errors.JaxRuntimeError:  # the older code generator lacks some types: it clamps no truth values
            return usual(*arguments)

    return call


def user_contexts() -> tuple[Any, ...]:
    """Return the values of the contexts that users made (`jax.make_user_context`), which functions may read."""
    try:
        names = config.trace_context_names()
    except NotImplementedError:  # by an older jaxlib
        return ()
    return tuple([x for name, x in zip(names, config.trace_context(), strict=True) if name == "user_context"])


def enabled_x64(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which values of 64 bits keep their types, where there are any."""
    if not wide or jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return contextlib.nullcontext()
    return jax.enable_x64(True)


def _taken_along() -> Callable[[], None]:
    """Return a function that gives a new thread the settings that context managers made in this one."""
    states: list[Any] = [config.config._value_holders[name] for name in _CARRIED]
    local = [(state, state.get_local()) for state in states]

    def apply() -> None:
        for state, value in local:
            if value is not config.config_ext.unset:
                state.set_local(value)
                if state._update_thread_local_hook:
                    state._update_thread_local_hook(value)

    return apply


background.CARRIED.append(_taken_along)
