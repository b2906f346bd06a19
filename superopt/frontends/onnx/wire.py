"""The message of an ONNX file without the bytes of its large weights, which stay where they are in the file.

A parsed message has a copy of all bytes, and makes another copy of a tensor for each access.  So the wire format of the
file is walked as far as its large tensors: the initializers of the graph and its `Constant` nodes.  Each becomes a
tensor whose data is external, in a file with a random name for this reading, at its offset in the model's own bytes.
Fields that do not have the usual form stay in the message as they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from superopt.arrays.placing import FileBytes

LEAST_BYTES = 1 << 16  # of a tensor; copying a smaller one is faster than locating it
_MOST_FIELDS = 1 << 20  # fields to walk, in about a second; the largest models have a tenth
_VARINT, _EIGHT, _LEN, _FOUR = 0, 1, 2, 5
_SIZES = {_EIGHT: 8, _FOUR: 4}

# numbers of fields (onnx.proto)
_GRAPH = 7  # of a model
_NODE, _INITIALIZER = 1, 5  # of a graph
_OP_TYPE, _ATTRIBUTE, _DOMAIN = 4, 5, 7  # of a node
_NAME, _TENSOR = 1, 5  # field numbers of an attribute
_DATA_TYPE, _RAW, _EXTERNAL, _LOCATION = 2, 9, 13, 14  # field numbers of a tensor
_VALUES = frozenset({3, 4, 5, 6, 7, _RAW, 10, 11, _EXTERNAL, _LOCATION})  # fields of a tensor that locate its values
_TYPED = {4: (TensorProto.FLOAT, 4), 10: (TensorProto.DOUBLE, 8)}  # fields of plain bytes: type, bytes of a value


class _OddError(Exception):
    """The bytes are not in the wire format, or not worth walking; the message parser reports the error."""


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: int
    begin: int  # of its tag
    at: int  # of its value, behind the length where there is one
    end: int
    value: int = 0  # of a varint


def lean(data: memoryview | FileBytes, most_fields: int = _MOST_FIELDS) -> tuple[bytes | memoryview, str]:
    """The message without the bytes of large tensors, and the name of the "file" to which these refer.

    Args:
        data: the bytes of a model.
        most_fields: limit on the fields to walk.

    Returns:
        The bytes themselves and an empty name where nothing is large, the limit is met, or they do not have the
        structure of a model.
    """
    name = secrets.token_hex(16)  # random, so that no tensor of a file can name it
    try:
        text = _WireWalk(data, name, most_fields).model()
    except _OddError:
        text = None
    return (data[: len(data)], "") if text is None else (text, name)


class _WireWalk:
    """One walk over the bytes of a model; methods give the new bytes of a message, or None where they are the same."""

    def __init__(self, data: memoryview | FileBytes, name: str, most_fields: int) -> None:
        self._data, self._name, self._left = data, name, most_fields

    def model(self) -> bytes | None:
        return self._changed(0, len(self._data), {_GRAPH: self._graph})

    def _graph(self, at: int, end: int) -> bytes | None:
        return self._changed(at, end, {_NODE: self._node, _INITIALIZER: self._tensor})

    def _node(self, at: int, end: int) -> bytes | None:
        named = {f.number: bytes(self._data[f.at : f.end]) for f in self._fields(at, end) if f.number in (4, 7)}
        if named.get(_OP_TYPE) != b"Constant" or named.get(_DOMAIN, b"") not in (b"", b"ai.onnx"):
            return None
        return self._changed(at, end, {_ATTRIBUTE: self._attribute})

    def _attribute(self, at: int, end: int) -> bytes | None:
        names = [bytes(self._data[f.at : f.end]) for f in self._fields(at, end) if f.number == _NAME]
        return self._changed(at, end, {_TENSOR: self._tensor}) if names == [b"value"] else None

    def _tensor(self, at: int, end: int) -> bytes | None:
        fields = list(self._fields(at, end))
        values = [f for f in fields if f.number in _VALUES]
        kinds = [f.value for f in fields if f.number == _DATA_TYPE]
        if len(values) != 1 or len(kinds) != 1 or values[0].kind != _LEN:
            return None
        (where,) = values
        size = where.end - where.at
        kind, itemsize = _TYPED.get(where.number, (0, 1))
        plain = where.number == _RAW or (kind == kinds[0] and size % itemsize == 0)
        if not plain or size < LEAST_BYTES:
            return None
        entries = {"location": self._name, "offset": str(where.at), "length": str(size)}
        rest = [bytes(self._data[f.begin : f.end]) for f in fields if f is not where]
        stated = [_with_length(_EXTERNAL, _entry(key, value)) for key, value in entries.items()]
        return b"".join([*rest, *stated, _varint(_LOCATION << 3 | _VARINT), _varint(TensorProto.EXTERNAL)])

    def _changed(self, at: int, end: int, change: Mapping[int, Callable[[int, int], bytes | None]]) -> bytes | None:
        """A message with its large fields of these numbers replaced by the functions' results."""
        parts: list[bytes | memoryview] = []
        kept = at
        for field in self._fields(at, end):
            if field.kind == _LEN and field.number in change and field.end - field.at >= LEAST_BYTES:
                new = change[field.number](field.at, field.end)
                if new is not None:
                    parts += [self._data[kept : field.begin], _with_length(field.number, new)]
                    kept = field.end
        return b"".join([*parts, self._data[kept:end]]) if parts else None

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message between two places; raise `_OddError` where it is malformed."""
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise _OddError
            begin = at
            tag, at = self._number(at, end)
            number, kind, value = tag >> 3, tag & 7, 0
            start = at
            if kind == _VARINT:
                value, at = self._number(at, end)
            elif kind == _LEN:
                size, start = self._number(at, end)
                at = start + size
            elif kind in _SIZES:
                at += _SIZES[kind]
            else:
                raise _OddError
            if at > end or not number:
                raise _OddError
            yield _Field(number, kind, begin, start, at, value)

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """The varint at an offset, and the offset of its end."""
        number = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _OddError
            byte = self._data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number, at
        raise _OddError


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _with_length(number: int, value: bytes) -> bytes:
    """A length-delimited field: a text or a message."""
    return _varint(number << 3 | _LEN) + _varint(len(value)) + value


def _entry(key: str, value: str) -> bytes:
    return _with_length(1, key.encode()) + _with_length(2, value.encode())


__all__ = ["LEAST_BYTES", "lean"]
