"""The model of scheduled kernels: seconds of a loop program after its schedule, from the rows of its stages.

    seconds = call + sum over stages of estimate(stage) * exp(network(row of the stage))

A few networks of two layers, each fitted without a part of the families, are members.  Their mean is the prediction,
and their errors on the unseen families give the interval.  The model is evaluated in NumPy, a few microseconds per
stage.  The file holds tensors alone, with a card beside it like that of the learned model.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

from costmodel.features import stages
from costmodel.model.weights_file import WeightsError, refused
from superopt.files.reading import json_of, text_file

if TYPE_CHECKING:
    from jaxtyping import Float

SHIPPED = Path(__file__).parents[1] / "weights" / "schedules.safetensors"
FORMAT = 1
CALL_S = 1e-7  # seconds of any call, whatever its stages are, to which the weights that ship were fitted
_SECONDS = stages.NAMES.index("log_seconds")
_TENSORS = ("mean", "std", "ranks", "w1", "b1", "w2", "b2", "w3", "b3")
_MOST_LOG = 12.0  # bound of a correction, in log time


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """The fitted model of scheduled kernels.

    Attributes:
        mean, std: mean and standard deviation of the rows.
        ranks: quantiles of each number of a row over the training rows.
        w1, b1, w2, b2, w3, b3: layers, the first axis is that of the members.
        interval: half width of the interval that holds nine times in ten of unseen families, in log time.
    """

    mean: Float[np.ndarray, " names"]
    std: Float[np.ndarray, " names"]
    ranks: Float[np.ndarray, "names shares"]
    w1: Float[np.ndarray, "members inputs hidden"]
    b1: Float[np.ndarray, "members hidden"]
    w2: Float[np.ndarray, "members hidden hidden"]
    b2: Float[np.ndarray, "members hidden"]
    w3: Float[np.ndarray, "members hidden"]
    b3: Float[np.ndarray, " members"]
    interval: float

    def members(self, programs: Sequence[Float[np.ndarray, "stages names"]]) -> Float[np.ndarray, "members programs"]:
        """Return the log seconds of each program by each member."""
        if not programs:
            return np.zeros((len(self.b3), 0))
        counts = [len(rows) for rows in programs]
        rows = np.concatenate(list(programs))
        x = encode(rows, self.mean, self.std, self.ranks)
        h = np.maximum(np.einsum("sn,mnh->msh", x, self.w1) + self.b1[:, None], 0)
        h = np.maximum(np.einsum("msh,mhk->msk", h, self.w2) + self.b2[:, None], 0)
        logs = np.clip(np.einsum("msh,mh->ms", h, self.w3) + self.b3[:, None], -_MOST_LOG, _MOST_LOG)
        each = np.exp(logs) * np.exp2(rows[:, _SECONDS]) * 1e-9
        owner = np.repeat(np.arange(len(counts)), counts)
        total = np.full((len(self.b3), len(counts)), CALL_S)
        for k in range(len(total)):
            np.add.at(total[k], owner, each[k])
        return np.log(total)

    def seconds(self, programs: Sequence[Float[np.ndarray, "stages names"]]) -> Float[np.ndarray, " programs"]:
        """Return the seconds of each program."""
        return np.exp(self.members(programs).mean(0))


def encode(
    rows: Float[np.ndarray, "rows names"],
    mean: Float[np.ndarray, " names"],
    std: Float[np.ndarray, " names"],
    ranks: Float[np.ndarray, "names shares"],
) -> Float[np.ndarray, "rows inputs"]:
    """Encode each number twice, float32: standardised, and by its rank among the training rows, -1 to 1."""
    shares = np.linspace(-1, 1, ranks.shape[1])
    ranked = [np.interp(column, of, shares) for column, of in zip(rows.T, ranks, strict=True)]
    return np.concatenate([np.clip((rows - mean) / std, -4, 4), np.stack(ranked, 1)], 1).astype(np.float32)


def write(path: Path, model: Staged, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write a model and its card (same name, ending `.json`); return the card as written."""
    data = save({name: np.ascontiguousarray(getattr(model, name), np.float32) for name in _TENSORS})
    path.write_bytes(data)
    full = {
        "format": FORMAT, "features": stages.VERSION, "names": list(stages.NAMES), "interval": model.interval,
        "sha256": hashlib.sha256(data).hexdigest(), **card,
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(full, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return full


@functools.cache
def read(path: Path = SHIPPED) -> Staged:
    """Read a model; the shipped one unless a path is given.

    Raises:
        WeightsError: the files are missing, damaged, or made for other features.
    """
    with refused(path):
        card: Any = json_of(text_file(path.with_suffix(".json")))
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != card["sha256"]:
            raise WeightsError(f"{path.name} is not the file that its card describes")
        if card["format"] != FORMAT or card["features"] != stages.VERSION or card["names"] != list(stages.NAMES):
            raise WeightsError(f"{path.name} is for other features")
        tensors = load(data)
        model = Staged(**{name: tensors[name] for name in _TENSORS}, interval=float(card["interval"]))
        if not all(np.isfinite(tensors[name]).all() for name in _TENSORS) or model.w1.shape[1] != 2 * len(stages.NAMES):
            raise WeightsError(f"{path.name} holds values that cannot be used")
        return model
