"""Loads the objective of a search with the best weights available.

Its `source` names them, and says why others were refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from costmodel.model import learned_file, weights_file
from costmodel.model.adapt import on_another_machine
from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.joint import NativeModel
from costmodel.model.learned import Learned
from costmodel.model.objective import Roofline
from superopt.errors import InputError
from superopt.files.reading import field
from superopt.machine import facts as machine
from superopt.store import Store


def load_roofline(store: Store | None = None) -> Roofline:
    """Return the roofline with the best coefficients available: calibrated on this machine if stored, else shipped.

    `source` of the result says which, and why others were refused.
    """
    refused: list[str] = []
    if store is not None:
        kept = store.get("calibration", machine.environment_key())
        if kept is not None:
            try:
                return Roofline(weights_file.decode(kept), "calibrated on this machine")
            except weights_file.WeightsError as error:
                refused.append(f"stored calibration refused: {error}")
    try:
        coefficients, card = weights_file.read()
        same = card.get("machine", {}).get("fingerprint") == machine.fingerprint()
        where = "this kind of machine" if same else f"another machine ({card.get('machine', {}).get('cpu', 'unknown')})"
        source = f"shipped, calibrated on {where}"
    except weights_file.WeightsError as error:
        coefficients, source = weights_file.uncalibrated(), "uncalibrated"
        refused.append(f"shipped coefficients refused: {error}")
    return Roofline(coefficients, "; ".join([source, *refused]))


def load_objective(
    store: Store | None = None, *, adapt_s: float = 0.0, progress: Callable[[str], None] | None = None
) -> Roofline | Learned:
    """Return the objective of a search: the learned model if its weights are usable, else the roofline with the reason.

    Args:
        store: store of calibrations of this machine.
        adapt_s: seconds that may be spent on calibrating the shipped model to a machine that it was not fitted on.
        progress: called with one line when that happens.
    """
    try:
        model, card = learned_file.read()
    except weights_file.WeightsError as error:
        roofline = load_roofline(store)
        return Roofline(roofline.coefficients, f"{roofline.source}; learned model refused: {error}")
    if card.get("machine", {}).get("fingerprint") == machine.fingerprint():
        return Learned(model, "shipped, fitted on this kind of machine")
    return on_another_machine(model, card, store, adapt_s, progress or (lambda _: None))


def load_native() -> NativeModel | None:
    """Load the shipped model of our own kernels; None if its weights are unusable."""
    try:
        model, card = learned_file.read(learned_file.NATIVE)
    except weights_file.WeightsError:
        return None
    same = card.get("machine", {}).get("fingerprint") == machine.fingerprint()
    where = "this kind of machine" if same else f"another machine ({card.get('machine', {}).get('cpu', 'unknown')})"
    return NativeModel(Learned(model, f"shipped, fitted on {where}"), _boundary(card.get("boundary")))


def _boundary(known: Any) -> Boundary:
    """Return the boundary of a card; one without costs where it holds none."""
    try:
        return Boundary(**{f.name: field(known, f.name, float, 0.0, 1e3) for f in fields(Boundary)})
    except InputError:
        return NOTHING
