"""The returned program timed beside other runtimes of the same model: ONNX Runtime, where it is installed."""

from __future__ import annotations

import statistics
from pathlib import Path

import jax

from superopt.backends.xla import XlaExecutable
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.budget import LEAST_S, Budget
from superopt.measure.loop import on_device
from superopt.measure.peers import MOST_S, NAME, SHARE, Beside, beside_onnx_runtime, has_onnx_runtime
from superopt.measure.stats import paired_ratio
from superopt.report.data import PeerTiming


def kept_for_peers(model: Path | None, limits: Budget) -> Budget:
    """The budget less the time reserved for timing the returned program beside other runtimes in the end."""
    if model is None or limits.seconds is None or not has_onnx_runtime():
        return limits
    return limits.less(min(MOST_S, SHARE * limits.seconds))


def peers_of(
    model: Path | None, imported: Imported, executable: XlaExecutable, left_s: float, seed: int
) -> tuple[PeerTiming, ...]:
    """Timings of the returned program beside ONNX Runtime on the file of its model, if that is installed.

    Args:
        left_s: seconds until the end of the call.
    """
    if model is None or not has_onnx_runtime():
        return ()
    if imported.head is not None or imported.tail is not None:
        return (PeerTiming(name=NAME, failure="a part of the model is computed on the host"),)
    if left_s < LEAST_S:
        return (PeerTiming(name=NAME, failure="no time was left of the budget"),)
    live = on_device(imported.live_values)

    def call() -> object:
        return jax.block_until_ready(executable(*live))

    found = beside_onnx_runtime(model, imported.live_values, call, min(MOST_S, left_s), seed)
    return (_told(found, seed),)


def _told(found: Beside, seed: int) -> PeerTiming:
    if found.failure:
        return PeerTiming(name=NAME, version=found.version, threads=found.threads, failure=found.failure)
    return PeerTiming(
        name=NAME, version=found.version, threads=found.threads, ms=1e3 * statistics.median(found.theirs_s),
        returned_ms=1e3 * statistics.median(found.ours_s),
        ratio=paired_ratio(found.theirs_s, found.ours_s, seed=seed),
    )  # fmt: skip
