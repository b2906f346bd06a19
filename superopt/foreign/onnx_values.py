"""ONNX values as bytes for other processes: arrays of numbers and texts, sequences of them, and absent values.

A message is a JSON object and the bytes of its arrays behind it.  Nothing in it can be run, as a pickle could.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows its types by name from then on
import numpy as np

_LENGTH = struct.Struct("<Q")


def packed(message: dict[str, Any], values: Sequence[Any] = ()) -> list[bytes | memoryview]:
    """A message with values as pieces of bytes, to be written one after the other.

    Raises:
        TypeError: a value is of a kind that no message can hold.
    """
    pieces: list[bytes | memoryview] = []
    specs = [_spec(value, pieces) for value in values]
    head = json.dumps({**message, "values": specs}).encode()
    return [_LENGTH.pack(len(head)), head, *pieces]


def unpacked(read: Callable[[int], bytes | bytearray]) -> tuple[dict[str, Any], list[Any]]:
    """A message and its values, from a function that returns the next so many bytes.

    Raises:
        EOFError: `read` finds no more.
    """
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    message = json.loads(bytes(read(length)))
    return message, [_value(spec, read) for spec in message.pop("values")]


def size_of(values: Sequence[Any]) -> int:
    """Bytes of arrays and sequences of them; texts count by their characters."""
    total = 0
    for x in values:
        if isinstance(x, list | tuple):
            total += size_of(x)
        elif isinstance(x, np.ndarray):
            total += x.nbytes
            if x.dtype.kind in "OT":
                total += sum(len(text) for text in x.ravel() if isinstance(text, str | bytes))
    return total


def _spec(value: Any, pieces: list[bytes | memoryview]) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return {"list": [_spec(x, pieces) for x in value]}
    array = np.asarray(value)
    if array.dtype.kind in "OUST":
        texts = [_text(x) for x in array.ravel().tolist()]
        kind = "T" if array.dtype.kind == "T" else array.dtype.str
        return {"texts": texts, "kind": kind, "shape": array.shape}
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pieces.append(flat.data)
    return {"kind": array.dtype.name, "shape": array.shape, "bytes": flat.size}


def _text(x: Any) -> Any:
    if isinstance(x, str):
        return x
    if isinstance(x, bytes):
        return [base64.b64encode(x).decode()]
    raise TypeError(f"a {type(x).__name__} among texts")


def _value(spec: Any, read: Callable[[int], bytes | bytearray]) -> Any:
    if spec is None:
        return None
    if "list" in spec:
        return [_value(x, read) for x in spec["list"]]
    shape = tuple(spec["shape"])
    if "texts" in spec:
        kind: Any = np.dtypes.StringDType() if spec["kind"] == "T" else np.dtype(spec["kind"])  # type: ignore[attr-defined]
        return np.array(list(_texts(spec["texts"])), kind).reshape(shape)
    return np.frombuffer(bytearray(read(spec["bytes"])), np.uint8).view(np.dtype(spec["kind"])).reshape(shape)


def _texts(items: Sequence[Any]) -> Iterator[str | bytes]:
    for x in items:
        yield base64.b64decode(x[0]) if isinstance(x, list) else x


def no_rows(kind: Any) -> np.ndarray:
    """The empty result of a loop without steps, for this type (an `onnx.ValueInfoProto`): its first axis has size 0.

    Sizes that the type leaves open are 0 too.
    """
    from onnx import helper  # late: an optional dependency

    tensor = kind.type.tensor_type
    return np.zeros((0, *(d.dim_value for d in tensor.shape.dim)), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
