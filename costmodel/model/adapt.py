"""Adapts the shipped model to a machine that it was not fitted on.

Half a minute of the micro-suite adjusts the roofline's coefficients: compute, memory and fixed costs as blocks, single
ones regularized towards the shipped values.  It also scales the network's correction by its worth here, 0 to 1.25.  The
result is kept in the store for this machine, its library versions and these weights; without a store it lasts as long
as the objective.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.arrays import PerKernel
from costmodel.labels.microsuite import MicroCase, shuffled, suite
from costmodel.model import analytical, weights_file
from costmodel.model.encode import KernelEncoder
from costmodel.model.learned import Learned, predict
from costmodel.model.model import Model
from costmodel.model.weights_file import WeightsError
from superopt.machine import facts as machine
from superopt.measure import KernelTiming, time_kernels
from superopt.store import Store

LEAST_KERNELS = 60  # mean error of the roofline on a made-up machine: 0.097; 0.114 after 30, 0.093 after 120
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)  # from the roofline alone to beyond the network as it was trained
_STEPS = 600  # the same error after 150 steps is 0.102, after 3,000 0.096


def on_another_machine(
    model: Model, card: Mapping[str, Any], store: Store | None, seconds: float, progress: Callable[[str], None]
) -> Learned:
    """Return the shipped model as this machine's objective: stored calibration, calibrated now, or unchanged.

    The result's `source` says which.
    """
    origin = f"another machine ({dict(card.get('machine', {})).get('cpu', 'unknown')})"
    refused = ""
    key = f"{machine.environment_key()} {str(card.get('sha256', ''))[:16]}"
    if store is not None:
        try:
            kept = recall(store, key, model)
            if kept is not None:
                return Learned(kept, f"shipped for {origin}, calibrated on this one")
        except WeightsError as error:
            refused = f"; stored calibration refused: {error}"
    if seconds <= 0:
        return Learned(model, f"shipped, fitted on {origin}, not calibrated on this one{refused}")
    progress(f"calibrating the cost model, which was fitted on {origin}, for {seconds:.0f} s")
    cases = shuffled(suite())
    timings = time_kernels([c.graph for c in cases], budget_s=seconds)
    timed = [(c, t.seconds) for c, t in zip(cases, timings, strict=True) if isinstance(t, KernelTiming)]
    if len(timed) < LEAST_KERNELS:
        return Learned(
            model, f"shipped, fitted on {origin}; calibration gave up: {len(timed)} kernels timed in {seconds:.0f} s"
        )
    adapted = adapt(model, [c for c, _ in timed], np.array([s for _, s in timed]))
    source = f"shipped for {origin}, calibrated on this one with {len(timed)} kernels"
    if store is None or store.path is None:
        return Learned(adapted, f"{source}, for this run only{refused}")
    keep(store, key, adapted, {"kernels": len(timed), "machine": machine.as_dict()})
    return Learned(adapted, source + refused)


def adapt(model: Model, cases: Sequence[MicroCase], measured_s: PerKernel) -> Model:
    """Return the model with coefficients and scale fitted to these times."""
    encoder = KernelEncoder()
    table, structures = encoder.encode([c.graph for c in cases])
    weights = analytical.long_ones(measured_s)
    prior = analytical.fit(table, measured_s, weights, steps=_STEPS, start=model.prior)
    moved = replace(model, prior=prior, scale=1.0)
    predicted = predict(moved, table, structures, encoder.rows)
    step = np.log(predicted.seconds / predicted.prior_s)
    gap = np.log(measured_s / predicted.prior_s)
    errors = [float((weights * np.abs(gap - scale * step)).mean()) for scale in SCALES]
    return replace(moved, scale=SCALES[int(np.argmin(errors))])


def keep(store: Store, key: str, model: Model, card: Mapping[str, Any]) -> None:
    """Store a calibration."""
    store.put("calibration", key, {**weights_file.encode(model.prior, card), "scale": model.scale})


def recall(store: Store, key: str, model: Model) -> Model | None:
    """Return the model as calibrated on this machine before, or None.

    Raises:
        WeightsError: the stored calibration cannot be used.
    """
    data = store.get("calibration", key)
    if data is None:
        return None
    scale = data.get("scale") if isinstance(data, Mapping) else None
    if scale not in SCALES:
        raise WeightsError(f"its scale is {json.dumps(scale)}")
    return replace(model, prior=weights_file.decode(data), scale=float(scale))
