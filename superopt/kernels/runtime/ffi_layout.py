"""Offsets of XLA's FFI structs, read from the header that jaxlib ships.

The header (`jaxlib/include/xla/ffi/api/c_api.h`) is the contract: plain C structs of pointers, 64-bit sizes, 32-bit
integers and enums, and nested structs.  `layout()` lays them out by the rules of the 64-bit System V and Windows ABIs
(natural alignment), and takes the size that each struct announces and the values of the enums.  Only names are assumed.
A header that lacks a needed name makes the FFI unavailable, with the reason.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt.errors import SuperoptError

_SIZES = {"size_t": 8, "int64_t": 8, "uint64_t": 8, "int": 4, "int32_t": 4, "uint32_t": 4, "uint8_t": 1, "bool": 1}
_EXTENSION = "XLA_FFI_Extension_Base"  # here, whatever a header calls the struct that `extension_start` points to
_NEEDED = {
    "XLA_FFI_CallFrame": ("struct_size", "extension_start", "api", "ctx", "stage", "args", "rets"),
    "XLA_FFI_Args": ("size", "args"),
    "XLA_FFI_Rets": ("size", "rets"),
    "XLA_FFI_Buffer": ("struct_size", "dtype", "data", "rank", "dims"),
    _EXTENSION: ("type",),
    "XLA_FFI_Metadata_Extension": ("metadata",),
    "XLA_FFI_Metadata": ("api_version", "traits"),
    "XLA_FFI_Api_Version": ("major_version", "minor_version"),
    "XLA_FFI_Error_Create_Args": ("struct_size", "message", "errc"),
    "XLA_FFI_Error_Destroy_Args": ("struct_size", "error"),
    "XLA_FFI_ThreadPool_NumThreads_Args": ("struct_size", "ctx", "num_threads"),
    "XLA_FFI_Api": (
        "struct_size", "api_version", "XLA_FFI_Error_Create", "XLA_FFI_Error_Destroy",
        "XLA_FFI_ThreadPool_NumThreads",
    ),
}  # fmt: skip


class FfiUnavailable(SuperoptError):
    """Kernels cannot be called from XLA here; the message gives the reason.  Programs run on XLA alone."""

    code = "SO510"


@dataclass(frozen=True, slots=True)
class FfiLayout:
    """The structs of one version of the FFI.

    Attributes:
        version: major and minor number of the API.
        offsets: by struct and field, bytes.
        sizes: by struct, the size it announces in `struct_size` (up to its last field), or its whole size.
        constants: values of enums by name.
    """

    version: tuple[int, int]
    offsets: Mapping[str, Mapping[str, int]]
    sizes: Mapping[str, int]
    constants: Mapping[str, int]

    def at(self, struct: str, *path: str) -> int:
        """Return the offset of a field; further names are fields of the struct `XLA_FFI_<Name>` nested there."""
        offset = self.offsets[f"XLA_FFI_{struct}"][path[0]]
        nested = {"args": "Args", "rets": "Rets", "api_version": "Api_Version"}
        return offset + self.at(nested[path[0]], *path[1:]) if path[1:] else offset

    def size(self, struct: str) -> int:
        """Return the announced size of a struct."""
        return self.sizes[f"XLA_FFI_{struct}"]


@functools.cache
def layout() -> FfiLayout:
    """Return the layout of the installed jaxlib.

    Raises:
        FfiUnavailable: there is no header, or it lacks something.
    """
    from importlib.util import find_spec

    spec = find_spec("jaxlib")
    if spec is None or spec.origin is None:
        raise FfiUnavailable("jaxlib is not installed")
    path = Path(spec.origin).parent / "include/xla/ffi/api/c_api.h"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FfiUnavailable(f"jaxlib ships no FFI header: {error}") from error
    return parse(text)


def parse(header: str) -> FfiLayout:
    """Parse the layout of the structs of a header.

    Raises:
        FfiUnavailable: a struct, field or type that is needed is missing.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.S)
    for kind in re.findall(r"(\w+)\* extension_start;", text)[:1]:
        text = re.sub(rf"\b{kind}\b", _EXTENSION, text)
    version = tuple(int(x) for x in re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", text))
    if len(version) != 2:
        raise FfiUnavailable("the FFI header names no API version")
    constants = {name: int(value) for name, value in re.findall(r"\b(XLA_FFI_\w+) = (\d+)", text)}
    sizes = dict(_SIZES) | dict.fromkeys(re.findall(r"typedef enum \{[^}]*\} (\w+);", text), 4)
    sizes |= {new: sizes[old] for old, new in re.findall(r"typedef (\w+) (\w+);", text) if old in sizes}
    aligns, offsets, announced = dict(sizes), dict[str, dict[str, int]](), dict[str, int]()
    last = dict(re.findall(r"XLA_FFI_DEFINE_STRUCT_TRAITS\((\w+),\s*(\w+)\)", text))
    for name, body in re.findall(r"struct (\w+) \{([^}]*)\}", text):
        fields, at, widest = dict[str, int](), 0, 1
        ends = dict[str, int]()
        for field, type in _fields(name, body):
            if type not in sizes and type != "*":
                raise FfiUnavailable(f"the FFI header has a field {field} of unknown type {type} in {name}")
            size, align = (8, 8) if type == "*" else (sizes[type], aligns[type])
            at += -at % align
            fields[field], widest = at, max(widest, align)
            at += size
            ends[field] = at
        offsets[name], sizes[name], aligns[name] = fields, at + -at % widest, widest
        announced[name] = ends.get(last.get(name, ""), sizes[name])
    for name, fields in _NEEDED.items():
        missing = set(fields) - set(offsets.get(name, ()))
        if missing:
            raise FfiUnavailable(f"the FFI header has no {name}.{sorted(missing)[0]}")
    return FfiLayout((version[0], version[1]), offsets, announced, constants)


def _fields(struct: str, body: str) -> list[tuple[str, str]]:
    """Return name and type of each field; the type of pointers is `*`."""
    fields: list[tuple[str, str]] = []
    for line in re.split(r";", body):
        words = line.split()
        if not words:
            continue
        function = re.search(r"\(\*(\w+)\)|_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", line)
        if function:
            fields.append((function[1] or function[2], "*"))
        elif "*" in line:
            fields.append((words[-1].lstrip("*"), "*"))
        else:
            kinds = [w for w in words if w not in ("const", "struct")]
            if len(kinds) != 2:
                raise FfiUnavailable(f"the FFI header has a field {line.strip()!r} in {struct} that cannot be read")
            fields.append((kinds[1], kinds[0]))
    return fields
