"""Modules of this room that are loaded when they are needed: a native program from a file runs without them."""

from __future__ import annotations


def rebuilding():
    """Return the module that builds the programs of files."""
    from superopt.returned import rebuilt  # late: XLA's side, the cost model and the validators take half a second

    return rebuilt


def validation():
    """Return the module that validates programs from their plans."""
    from superopt.returned import revalidate  # late: the prover takes a while to load

    return revalidate
