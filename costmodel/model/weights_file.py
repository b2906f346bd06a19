"""Coefficients on disk: one JSON object with a card that says where they come from.

The file is refused, with the reason, when it is not for the features of this version or holds anything but positive
numbers; the caller then continues with other coefficients.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.features.counts import FEATURES_VERSION, INDEX
from costmodel.model.analytical import DEFAULT_S, Coefficients
from superopt.files.reading import cause_of, field, json_of, text_file

SHIPPED = Path(__file__).parents[1] / "weights" / "roofline.json"
FORMAT = 1


class WeightsError(ValueError):
    """Coefficients that cannot be used; the message says why."""


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turn any error while reading a file into a `WeightsError` that says why it cannot be used."""
    try:
        yield
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(f"{path.name} cannot be read: {cause_of(error)}") from error


def encode(coefficients: Coefficients, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return coefficients and their card as a JSON object."""
    theta = {name: float(f"{coefficients.theta[i]:.6e}") for name, i in INDEX.items()}
    return {
        "format": FORMAT,
        "features": FEATURES_VERSION,
        "sharpness": coefficients.sharpness,
        "sharing": coefficients.sharing,
        "seconds_per_unit": theta,
        "card": dict(card),
    }


def decode(data: Any) -> Coefficients:
    """Parse the coefficients of a JSON object.

    Raises:
        WeightsError: another format or feature version, missing or unknown features, a number that is not positive.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise WeightsError(f"not a coefficients file of format {FORMAT}")
    if data.get("features") != FEATURES_VERSION:
        raise WeightsError(f"made for features {data.get('features')}, this version has {FEATURES_VERSION}")
    theta = data.get("seconds_per_unit")
    if not isinstance(theta, Mapping) or set(theta) != set(INDEX):
        raise WeightsError("its features are not those of this version")
    values = [*theta.values(), data.get("sharpness"), data.get("sharing")]
    if not all(isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in values):
        raise WeightsError("a coefficient is not a positive number")
    return Coefficients(np.array([theta[name] for name in INDEX]), float(data["sharpness"]), float(data["sharing"]))


def read(path: Path = SHIPPED) -> tuple[Coefficients, dict[str, Any]]:
    """Read coefficients and card of a file.

    Raises:
        WeightsError: the file is missing, unreadable or not usable.
    """
    with refused(path):
        data = json_of(text_file(path))
        return decode(data), dict(field({"card": {}, **data}, "card", dict))


def write(path: Path, coefficients: Coefficients, card: Mapping[str, Any]) -> None:
    """Write coefficients and card."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(encode(coefficients, card), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def uncalibrated() -> Coefficients:
    """Return guesses of the right order, for when no file is usable."""
    return Coefficients(DEFAULT_S.copy(), 2.0, 0.5)
