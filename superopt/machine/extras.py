"""Optional packages, each brought by an extra; where one is missing, the error names that extra."""

from __future__ import annotations

import importlib

from superopt.errors import MissingExtraError

EXTRA_OF = {"onnx": "onnx", "cvc5": "cvc5", "optax": "lab", "ray": "ray", "ziglang": "build"}
CORE = ("jax", "jaxlib", "llvmlite", "scipy")
"""Packages of superopt itself without which rules are verified all the same."""


def need(module: str, purpose: str) -> None:
    """Import a package of an extra.

    Args:
        module: its name, a key of `EXTRA_OF`.
        purpose: its use, as the subject of "needs": `reading an ONNX model`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # the package is there, and broken
            raise
        raise missing(module, purpose) from None


def missing(module: str, purpose: str) -> MissingExtraError:
    """Return the error that names the extra which brings this package; superopt itself, if the package is in `CORE`."""
    wanted = "superopt" if module in CORE else f"'superopt[{EXTRA_OF[module]}]'"
    return MissingExtraError(
        f"{purpose} needs the package {module}, which is not installed", hint=f"pip install {wanted}"
    )
