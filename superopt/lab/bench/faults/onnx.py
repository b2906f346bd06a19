"""Models with faults: of every operator, changed as bytes or as messages; each is imported as a program or refused.

The models are the node tests of the `onnx` package, those of operators of ONNX Runtime's own, and one with external
data.  A change of a message affects one of its fields: sizes, attributes, names, types, places of external data.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper

from superopt.errors import SuperoptError
from superopt.frontends.onnx.frontend import import_model, load_model
from superopt.lab.bench.onnx.contrib import contrib_cases
from superopt.lab.bench.onnx.nodes import node_cases

_MOST_BYTES = 2**16  # of a model to be changed
CANARY = b"superopt canary: nobody may read this file\n" * 4
_INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 0.5)
_TEXTS = (
    "",
    "x",
    "y",
    "\x1b[2J",
    "a\nb",
    "\u202e",
    "../canary.bin",
    "x" * 5000,
    "Loop",
    "If",
    "NonZero",
    "com.x",
    "\0",
)


def corpus(folder: Path) -> None:
    """Write the models to be changed, the external data of one of them, and a file outside that must not be read."""
    models = [case.model for case in node_cases()] + [model for _, _, model, _ in contrib_cases()]
    write(folder, [*models, with_data()])


def write(folder: Path, models: Sequence[onnx.ModelProto]) -> None:
    """Write the small ones of these models, each once."""
    small = [data for model in models if len(data := model.SerializeToString()) < _MOST_BYTES]
    for number, data in enumerate(dict.fromkeys(small)):
        (folder / f"{number:05}.onnx").write_bytes(data)
    (folder.parent / "in" / "data.bin").write_bytes(bytes(16))
    (folder.parent / "canary.bin").write_bytes(CANARY)


def with_data() -> onnx.ModelProto:
    """A model whose weight is in another file."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "data.bin", "offset": "0", "length": "16"}.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """A model with one to four changes, perhaps with a piece of another one."""
    other = rng.choice(_models(outside.parent / "good")).read_bytes()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _bytes_changed(data, other, rng) if rng.random() < 0.35 else _fields_changed(data, rng)
    return data


@functools.cache
def _models(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _bytes_changed(data: bytes, other: bytes, rng: random.Random) -> bytes:
    if not data:
        return other
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
    if kind == 4:
        return data[:at]
    return data[:at] + other[rng.randrange(max(len(other), 1)) :]


def _fields_changed(data: bytes, rng: random.Random) -> bytes:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # damaged before
        return data
    places = list(_places(model))
    if not places:
        return data
    message, field = rng.choice(places)
    with contextlib.suppress(ValueError, TypeError, OverflowError, UnicodeError, AttributeError):
        _change(message, field, rng)
    try:
        return model.SerializeToString()
    except Exception:  # a text that cannot be written
        return data


def _places(message: Message) -> Iterator[tuple[Message, Any]]:
    """Every field that is set, in the message and in those within it."""
    todo = [message]
    while todo:
        one = todo.pop()
        for field, value in one.ListFields():
            yield one, field
            if field.type == field.TYPE_MESSAGE:
                todo += list(value) if _repeated(value) else [value]


def _repeated(value: Any) -> bool:
    return not isinstance(value, Message | str | bytes | int | float)


def _change(message: Message, field: Any, rng: random.Random) -> None:
    value = getattr(message, field.name)
    if not _repeated(value):
        if field.type == field.TYPE_MESSAGE or rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, value, rng))
        return
    kind, at = rng.randrange(4), rng.randrange(len(value))
    if kind == 0:
        del value[at]
    elif kind == 1:
        value.extend([value[at]] * rng.choice((1, 2, 100)))
    elif field.type == field.TYPE_MESSAGE:
        value[at].CopyFrom(value[rng.randrange(len(value))])
    else:
        value[at] = _scalar(field, value[at], rng)


def _scalar(field: Any, value: Any, rng: random.Random) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == field.TYPE_STRING:
        return rng.choice((*_TEXTS, value + "_", value[:-1]))
    if field.type == field.TYPE_BYTES:
        return bytes(value[: rng.randrange(len(value) + 1)]) + rng.randbytes(rng.choice((0, 1, 8)))
    return rng.choice((*_INTEGERS, value + 1, value - 1))


def read(path: Path, good: Path) -> str:
    """Load a model and import it; a good one may be refused, since models of all operators are among them."""
    try:
        model = load_model(path)
        if any(CANARY[:16] in v.tobytes() for v in model.params.values() if v.nbytes):
            return "its weights are bytes of a file outside"
        import_model(model)
    except SuperoptError:
        if path != good:
            raise
    return ""


__all__ = ["corpus", "mutated", "read"]
