"""Times a program against ONNX Runtime on the same model: short rounds in turn, each of the two in its own process."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays import bundles as arrays
from superopt.machine.facts import usable_cores
from superopt.measure import loop
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.workshop.job import Job, JobKind, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

NAME, _MODULE, _JOBS = "ONNX Runtime", "onnxruntime", "superopt.measure.onnx_runtime"
MOST_S, SHARE = 5.0, 0.1  # seconds, and share of the budget, for rounds with the other runtime
_ROUNDS, _SAMPLE_S = 21, 0.02  # two samples a round: 0.84 s in all, with pauses 1.3 of `MOST_S`
_PAUSE_S = 0.01  # threads that wait for more work of the other one keep a core as long


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds per call of another runtime and of our program, one value per round; or why there are none."""

    version: str = ""
    threads: int = 0
    theirs_s: tuple[float, ...] = ()
    ours_s: tuple[float, ...] = ()
    failure: str = ""


def has_onnx_runtime() -> bool:
    """Whether ONNX Runtime is installed."""
    try:
        return importlib.util.find_spec(_MODULE) is not None
    except ValueError:  # it was taken out of `sys.modules`
        return False


def beside_onnx_runtime(
    model: Path, inputs: Sequence[Any], call: Callable[[], object], budget_s: float, seed: int = 0
) -> Beside:
    """Time our call in turn with ONNX Runtime on a model, for so many seconds at most.

    Args:
        model: the file.
        inputs: arrays for the model, in order.
        call: runs our program on the same inputs and waits for its results.
    """
    end_s, threads = time.monotonic() + budget_s, usable_cores()
    values = {str(i): np.asarray(x) for i, x in enumerate(inputs)}
    with (
        arrays.scratch_folder(sum(x.nbytes for x in values.values())) as folder,
        Worker(forked=False) as worker,
    ):

        def asked(kind: JobKind, what: str, **data: Any) -> dict[str, Any]:
            worker.limits = ProcessLimits(silence_s=max(0.1, end_s - time.monotonic()))
            (event,) = worker.request(Job(kind, f"{_JOBS}:{what}", data))
            return event

        path = Path(folder) / "inputs"
        arrays.save(path, values)
        theirs: list[float] = []
        ours: list[float] = []
        version = ""
        try:
            loaded = asked("make", "load_model", model=str(model.resolve()), arrays=str(path), threads=threads)
            if loaded["event"] == "failed":
                return Beside(failure=loaded["detail"])
            version = loaded["version"]
            call()
            each = (loop.seconds_of(call, 1), loaded["seconds"])
            left_s = end_s - time.monotonic()
            sample_s = min(_SAMPLE_S, left_s / (4 * ENOUGH_ROUNDS))
            counts = [max(1, int(sample_s / max(1e-6, s))) for s in each]
            round_s = sum((n + 1) * s + _PAUSE_S for n, s in zip(counts, each, strict=True))
            rng = random.Random(seed)
            while len(theirs) < _ROUNDS and time.monotonic() + round_s < end_s:
                seconds = dict[int, float]()
                for who in rng.sample((0, 1), 2):
                    time.sleep(_PAUSE_S)
                    if who:
                        seconds[who] = asked("time", "time_model", calls=counts[who])["seconds"]
                    else:
                        call()
                        seconds[who] = loop.seconds_of(call, counts[who])
                ours.append(seconds[0])
                theirs.append(seconds[1])
        except WorkerDiedError as death:
            if not theirs or death.failure.cause != "timeout":
                return Beside(version, threads, failure=str(death))
    if len(theirs) < ENOUGH_ROUNDS:
        return Beside(version, threads, failure=f"{budget_s:.1f} s do not suffice for {ENOUGH_ROUNDS} rounds")
    return Beside(version, threads, tuple(theirs), tuple(ours))
