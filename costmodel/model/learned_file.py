"""The learned model on disk: tensors in a safetensors file, a JSON card beside it.

The card records the training data and environment: digest of the labels, machine, versions, settings, figures.  It also
lists the ops that the rows of the embedding stand for; any other op is encoded as "other".  A file is refused, with the
reason, when it was made for other features or encodings, or is cut short.  So is one with a tensor missing, of another
shape or not finite, and one that is not the file that the card describes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from costmodel.features.counts import FEATURES_VERSION
from costmodel.features.node_rows import ENCODING_VERSION, OPCODES
from costmodel.model.analytical import COUNT, Coefficients
from costmodel.model.encode import KERNEL_WIDTH, POOLED_WIDTH
from costmodel.model.model import Model, NetworkShape, Params, shapes
from costmodel.model.training_domain import TrainingDomain
from costmodel.model.weights_file import WeightsError, refused
from superopt.errors import InputError
from superopt.files.reading import cause_of, field, json_of, shown, text_file

_MOST = 4096  # layers and units of a network: beyond all that can be evaluated while searching
_LARGEST = 500.0  # largest weight: the shipped ones stay below 40, and powers of e to this are finite
SHIPPED = Path(__file__).parents[1] / "weights" / "learned.safetensors"
NATIVE = SHIPPED.with_name("native.safetensors")  # the model of our own kernels
FORMAT = 3
_BEFORE_OPS = KERNEL_WIDTH + POOLED_WIDTH - len(OPCODES)  # inputs that do not count nodes by op


def write(path: Path, model: Model, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write a model and its card (same name, ending `.json`); return the card as written."""
    data = save({name: np.ascontiguousarray(value, np.float32) for name, value in _tensors(model).items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    full = {
        "format": FORMAT, "features": FEATURES_VERSION, "encoding": ENCODING_VERSION, "shape": asdict(model.shape),
        "ops": OPCODES,
        "sha256": hashlib.sha256(data).hexdigest(), **card,
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(full, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return full


def read(path: Path | None = None) -> tuple[Model, dict[str, Any]]:
    """Read a model and its card; the shipped one unless a path is given.

    Raises:
        WeightsError: the files are missing, damaged, or made for another version; the message says why.
    """
    path = path or SHIPPED
    with refused(path):
        card = json_of(text_file(path.with_suffix(".json")))
        data = path.read_bytes()
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise WeightsError(f"{path.name} has no card of format {FORMAT}")
        for name, wanted in (("features", FEATURES_VERSION), ("encoding", ENCODING_VERSION)):
            if card.get(name) != wanted:
                raise WeightsError(f"made for {name} {shown(card.get(name))}, this version has {wanted}")
        try:
            tensors = load(data)
        except Exception as error:
            raise WeightsError(f"{path.name} is damaged: {cause_of(error)}") from error
        if hashlib.sha256(data).hexdigest() != card.get("sha256"):
            raise WeightsError(f"{path.name} is not the file that its card describes")
        return _model(tensors, _shape(card), _ops(card)), card


def _shape(card: Mapping[str, Any]) -> NetworkShape:
    try:
        sizes = field(card, "shape", dict)
        return NetworkShape(**{name: field(sizes, name, (int, float), 0, _MOST) for name in sizes})
    except (InputError, TypeError) as error:
        raise WeightsError(f"the card describes no network: {cause_of(error)}") from error


def _ops(card: Mapping[str, Any]) -> list[str]:
    ops: Any = card.get("ops")
    if not isinstance(ops, list) or not all(isinstance(op, str) for op in ops) or len({*ops}) < len(ops):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise WeightsError("the card does not say which ops the embedding has rows for")
    if ops[:1] != [OPCODES[0]]:
        raise WeightsError(f"the first op of the card is not {OPCODES[0]!r}")
    return ops  # pyright: ignore[reportUnknownVariableType]


def _tensors(model: Model) -> dict[str, np.ndarray]:
    tensors = {f"network.{name}": np.asarray(value) for name, value in model.params.items()}
    prior = model.prior
    return tensors | {
        "prior.log_theta": np.log(prior.theta), "prior.powers": np.array([prior.sharpness, prior.sharing]),
        "input.mean": model.mean, "input.std": model.std, "hull.centres": model.domain.centres,
        "hull.radius": np.array([model.domain.radius]),
    }  # fmt: skip


def _model(tensors: Mapping[str, np.ndarray], shape: NetworkShape, ops: Sequence[str]) -> Model:
    """Return the model of these tensors; refuse missing, unknown, misshapen and unreasonable ones."""
    centres = tensors.get("hull.centres", np.zeros((0, 0)))
    inputs = _BEFORE_OPS + len(ops)
    wanted = {f"network.{name}": size for name, size in shapes(shape).items()} | {
        "prior.log_theta": (COUNT,), "prior.powers": (2,), "input.mean": (inputs,), "input.std": (inputs,),
        "hull.centres": (len(centres), COUNT + 2), "hull.radius": (1,), "network.op": (len(ops), shape.width),
        "network.flat": (inputs, shape.trunk),
    }  # fmt: skip
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise WeightsError(f"tensors missing {missing}, unknown {unknown}")
    for name, size in wanted.items():
        if tensors[name].shape != size:
            raise WeightsError(f"{name} has shape {tensors[name].shape}, not {size}")
        if not np.isfinite(tensors[name]).all():
            raise WeightsError(f"{name} holds values that are not finite")
        if np.abs(tensors[name]).max(initial=0.0) > _LARGEST:
            raise WeightsError(f"{name} holds values beyond {_LARGEST:g}")
    powers, radius = tensors["prior.powers"].astype(float), float(tensors["hull.radius"][0])
    if len(centres) == 0 or powers.min() <= 0 or tensors["input.std"].min() <= 0 or radius <= 0:
        raise WeightsError("a scale is not positive")
    prior = Coefficients(np.exp(tensors["prior.log_theta"].astype(float)), float(powers[0]), float(powers[1]))
    params: Params = {name: tensors[f"network.{name}"] for name in shapes(shape)}
    row = {op: i for i, op in enumerate(ops)}
    place = [row.get(op, 0) for op in OPCODES]
    inputs = [*range(_BEFORE_OPS), *(_BEFORE_OPS + i for i in place)]
    params["op"], params["flat"] = params["op"][place], params["flat"][inputs]
    mean, std = (tensors[f"input.{name}"][inputs] for name in ("mean", "std"))
    return Model(prior, params, shape, mean, std, TrainingDomain(centres, radius))
