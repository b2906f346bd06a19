"""Features of a schedule for the search: statistics of the scheduled program, and the model's predicted time.

They are computed from the program after its steps (`costmodel.features.stages`), so any trace has them; the last is the
logarithm of the seconds that the model of scheduled kernels predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.features import stages
from costmodel.model import staged
from costmodel.model.weights_file import WeightsError
from superopt.kernels.loops.stage import LoopProgram
from superopt.measure import rates

if TYPE_CHECKING:
    from jaxtyping import Float

NAMES = (*stages.NAMES, "log_estimate", "log_predicted")


def features(scheduled: LoopProgram, threads: int = 1, weights: float = 0.0) -> Float[np.ndarray, " features"]:
    """Return the float32 feature vector, one value per name.

    Args:
        scheduled: the scheduled program.
        threads: number of threads that run it.
        weights: bytes of frozen operands between two calls, if more than its own.

    Raises:
        InputError: a stage has decisions that no code has.
    """
    rows = stages.stage_rows(scheduled, threads, rates.this_cpu(), weights)
    if not len(rows):
        return np.zeros(len(NAMES), np.float32)
    return np.append(stages.summed(rows), np.log2(predicted_s([rows])[0])).astype(np.float32)


def predicted_s(programs: list[Float[np.ndarray, "stages names"]]) -> Float[np.ndarray, " programs"]:
    """Predict the seconds of programs by their rows: by the model that ships, else by estimates."""
    try:
        return staged.read().seconds(programs)
    except WeightsError:
        return np.array([stages.estimate_s(rows) for rows in programs])
