"""Derivatives, and rules for `vmap`, that a function defines itself: they are not those of the operations it computes.

An optimised function keeps the derivatives of the original.  A saved program has the operations alone, so it must know
that their derivatives would be others.  What JAX's own library defines in this way (`jax.nn.relu`, the maximum inside
of `softmax`) is left out: there the operations have the same derivatives but at isolated points.
"""

from __future__ import annotations

from pathlib import Path

import jax
from jax.extend import core

from superopt.files.reading import shown

_LIBRARIES = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]))
_DEFINED = {"custom_vjp_call": "jax.custom_vjp", "custom_jvp_call": "jax.custom_jvp"}


def own_vmap(eqn: core.JaxprEqn) -> str:
    """Return the name of a rule for `vmap` that an equation has beside its operations; empty where it has none."""
    if eqn.primitive.name != "custom_vmap_call":
        return ""
    return _of_user("jax.custom_batching.custom_vmap", eqn.params["call"])


def own_derivative(eqn: core.JaxprEqn) -> str:
    """Return the name of a derivative that an equation has beside its operations; empty where it has none."""
    name = eqn.primitive.name
    if name in _DEFINED:
        return _of_user(_DEFINED[name], eqn.params["call_jaxpr"])
    if name != "stop_gradient":
        return ""
    traceback = eqn.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    at = next((i for i, frame in enumerate(frames) if frame.function_name == name), len(frames))
    caller = frames[at + 1].file_name if at + 1 < len(frames) else ""
    return "" if caller.startswith(_LIBRARIES) else "jax.lax.stop_gradient"


def _of_user(decorator: str, body: core.ClosedJaxpr) -> str:
    """Return a decorator with the name of its function; empty where the function is of JAX's library or of ours."""
    info = body.jaxpr.debug_info
    return "" if (info.func_filename or "").startswith(_LIBRARIES) else f"{decorator} of {shown(info.func_name)}"
