"""The layout of XLA's FFI structs, the handshake, and what happens when kernels cannot be called."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jaxlib
import pytest

from superopt.kernels.llvm.cpu import restricted, supported
from superopt.kernels.runtime import ffi, ffi_layout
from superopt.kernels.runtime.ffi_layout import FfiUnavailable, layout, parse
from superopt.kernels.runtime.kernel import build
from tests.support.kernels_code import reversed_twice

HEADER = Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h"


class Version(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("major_version", ctypes.c_int),
                ("minor_version", ctypes.c_int))  # fmt: skip


class Array(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("size", ctypes.c_int64),
                ("types", ctypes.c_void_p), ("args", ctypes.c_void_p))  # fmt: skip


class Attributes(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("size", ctypes.c_int64),
                ("types", ctypes.c_void_p), ("names", ctypes.c_void_p), ("attrs", ctypes.c_void_p))  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("api", ctypes.c_void_p),
                ("ctx", ctypes.c_void_p), ("stage", ctypes.c_int), ("args", Array), ("rets", Array),
                ("attrs", Attributes), ("future", ctypes.c_void_p))  # fmt: skip


class FfiBuffer(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("dtype", ctypes.c_int),
                ("data", ctypes.c_void_p), ("rank", ctypes.c_int64), ("dims", ctypes.c_void_p))  # fmt: skip


class Extension(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("api_version", Version), ("traits", ctypes.c_uint32),
                ("state_type_id", ctypes.c_int64))  # fmt: skip


class MetadataExtension(ctypes.Structure):
    _fields_ = (("extension_base", Extension), ("metadata", ctypes.c_void_p))


class ErrorCreate(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("message", ctypes.c_char_p),
                ("errc", ctypes.c_int))  # fmt: skip


class NumThreads(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p), ("ctx", ctypes.c_void_p),
                ("num_threads", ctypes.c_void_p))  # fmt: skip


MIRROR = {
    "Api_Version": Version, "Args": Array, "CallFrame": Frame, "Buffer": FfiBuffer, "Extension_Base": Extension,
    "Metadata": Metadata, "Metadata_Extension": MetadataExtension, "Error_Create_Args": ErrorCreate,
    "ThreadPool_NumThreads_Args": NumThreads,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MIRROR))
def test_offsets_are_those_of_the_c_structs(name: str) -> None:
    mirror = MIRROR[name]
    wanted = {field[0]: getattr(mirror, field[0]).offset for field in mirror._fields_}
    assert layout().offsets[f"XLA_FFI_{name}"] == wanted
    assert layout().sizes[f"XLA_FFI_{name}"] <= ctypes.sizeof(mirror)


def test_announced_sizes_end_with_the_last_field() -> None:
    assert layout().size("Error_Create_Args") == ErrorCreate.errc.offset + 4 < ctypes.sizeof(ErrorCreate)
    assert layout().size("CallFrame") == Frame.attrs.offset + ctypes.sizeof(Attributes)
    functions = [name for name in layout().offsets["XLA_FFI_Api"] if name.startswith("XLA_FFI_")]
    assert layout().at("Api", functions[-1]) == layout().at("Api", functions[0]) + 8 * (len(functions) - 1)
    assert layout().size("Api") == layout().at("Api", functions[-1]) + 8


def test_constants_of_dtypes() -> None:
    assert {layout().constants[f"XLA_FFI_DataType_{x}"] for x in ffi._CODES.values()} >= {1, 2, 4, 11, 12, 16}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int64_t rank;", "int64_t axes;", "no XLA_FFI_Buffer.rank"),
        ("int64_t rank;", "quad rank;", "unknown type quad"),
        ("#define XLA_FFI_API_MINOR", "#define OTHER", "no API version"),
        ("_XLA_FFI_API_STRUCT_FIELD(XLA_FFI_ThreadPool_NumThreads);", "", "XLA_FFI_ThreadPool_NumThreads"),
    ],
)
def test_a_header_that_lacks_something_is_refused(old: str, new: str, reason: str) -> None:
    text = HEADER.read_text()
    assert old in text
    with pytest.raises(FfiUnavailable, match=reason):
        parse(text.replace(old, new))


def test_another_header_gives_other_offsets() -> None:
    grown = HEADER.read_text().replace("int64_t rank;", "int64_t strides; int64_t rank;")
    assert parse(grown).at("Buffer", "rank") == layout().at("Buffer", "rank") + 8


@pytest.mark.skipif(not supported(), reason="no code is generated for this processor")
def test_handshake_answers_with_the_version_of_the_header(tmp_path: Path) -> None:
    kernel = build(reversed_twice(), cache=tmp_path)
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(kernel.address("handler"))
    facts = Metadata(struct_size=ctypes.sizeof(Metadata))
    extension = MetadataExtension(Extension(ctypes.sizeof(Extension), 1, None), ctypes.addressof(facts))
    frame = Frame(struct_size=ctypes.sizeof(Frame), extension_start=ctypes.addressof(extension))
    assert handler(ctypes.addressof(frame)) is None
    assert (facts.api_version.major_version, facts.api_version.minor_version) == layout().version
    assert facts.traits == 0


@pytest.mark.skipif(not supported(), reason="no code is generated for this processor")
def test_probe_finds_that_kernels_work() -> None:
    assert ffi.probe() == ""


def test_probe_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise FfiUnavailable("jaxlib ships no FFI header: gone")

    monkeypatch.setattr(ffi, "layout", absent)
    with pytest.warns(RuntimeWarning, match=r"XLA alone: .* gone"):
        assert "gone" in ffi.probe.__wrapped__()


def test_probe_notices_other_structs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = HEADER.read_text().replace("#define XLA_FFI_API_MAJOR 0", "#define XLA_FFI_API_MAJOR 7")
    other = parse(text)
    monkeypatch.setattr(ffi, "layout", lambda: other)
    with pytest.warns(RuntimeWarning, match="XLA alone"):
        assert ffi.probe.__wrapped__()


def test_no_code_for_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.kernels.llvm import cpu

    monkeypatch.setattr(cpu, "supported", lambda: False)
    with pytest.warns(RuntimeWarning, match="no code is generated"):
        assert ffi.probe.__wrapped__()
    assert not supported(restricted(cpu.host(), 0))
    assert ffi_layout.FfiUnavailable.code == "SO510"
