"""Programs that verdicts print to be pasted."""

from __future__ import annotations

from typing import Any

import jax


def executed(code: str) -> dict[str, Any]:
    """The names that a program leaves, with the types of this process as they were before it."""
    names: dict[str, Any] = {}
    wide = jax.config.jax_enable_x64
    try:
        exec(code, names)
    finally:
        jax.config.update("jax_enable_x64", wide)
    return names
