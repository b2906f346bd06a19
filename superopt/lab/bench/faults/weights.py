"""Weights of the cost model with faults: in the tensors, in the card beside them, and in both with digests to match."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from costmodel.model import learned_file, weights_file
from costmodel.model.weights_file import WeightsError
from superopt.errors import InputError
from superopt.lab.bench.faults.texts import mutated_bytes, mutated_json


def corpus(folder: Path) -> None:
    """Write the shipped weights: a length, the card, the tensors; and the coefficients of the plain model."""
    card = learned_file.SHIPPED.with_suffix(".json").read_bytes()
    tensors = learned_file.SHIPPED.read_bytes()
    (folder / "learned.weights").write_bytes(len(card).to_bytes(4, "little") + card + tensors)
    (folder / "plain.json").write_bytes(weights_file.SHIPPED.read_bytes())


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """Changed weights."""
    if data.startswith(b"{"):
        return mutated_bytes(data, rng) if rng.random() < 0.3 else mutated_json(data, rng, outside)
    card, tensors = _parts(data)
    if rng.random() < 0.5:
        card = mutated_json(card, rng, outside)
    else:
        head = 8 + int.from_bytes(tensors[:8], "little")
        tensors = (
            mutated_bytes(tensors[:head], rng) + tensors[head:] if rng.random() < 0.7 else mutated_bytes(tensors, rng)
        )
        if rng.random() < 0.8:
            held: dict[str, Any] = json.loads(card)
            card = json.dumps({**held, "sha256": hashlib.sha256(tensors).hexdigest()}).encode()
    return len(card).to_bytes(4, "little") + card + tensors


def _parts(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size], data[4 + size :]


def read(path: Path, good: Path) -> str:
    """Read weights as the cost model does."""
    try:
        if good.suffix == ".json":
            weights_file.read(path)
            return ""
        place = Path("read/learned.safetensors").absolute()
        place.parent.mkdir(exist_ok=True)
        card, tensors = _parts(path.read_bytes())
        place.write_bytes(tensors)
        place.with_suffix(".json").write_bytes(card)
        learned_file.read(place)
    except WeightsError as error:  # the loader's own kind, which it turns into a warning
        raise InputError(str(error)) from error
    return ""


__all__ = ["corpus", "mutated", "read"]
