"""XLA's FFI from generated code: a handler in LLVM, registered with `jax.ffi` under a name that is its content.

The handler answers the metadata handshake with the version of the header that its offsets come from, checks number,
dtype and dimensions of all buffers (an error is a Python exception at the call), and runs the region.  Leading extra
dimensions are a batch, the same for all buffers: that is how `vmap` calls it with `broadcast_all`.

`probe()` runs a kernel inside `jax.jit` once per process and compares what XLA passes with the header; when that fails,
kernels are not used: the reason is kept and a warning is given once.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from collections.abc import Sequence

import numpy as np

from superopt.errors import SuperoptError
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels import cpu, jit
from superopt.kernels.ffi_layout import FfiUnavailable, Layout, layout
from superopt.kernels.llvm import Function, Module, Value
from superopt.kernels.pool import at
from superopt.kernels.stage import Buffer

__all__ = ["FfiUnavailable", "emit_handler", "probe", "register"]

_CODES = {
    "bool": "PRED", "int8": "S8", "int16": "S16", "int32": "S32", "int64": "S64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_REGISTERED: set[str] = set()
_LOCK = threading.Lock()


def emit_handler(
    module: Module, label: str, pointers: Sequence[Buffer], threads: int, parallel: bool, shape: Layout
) -> None:
    """Write `ptr handler(ptr frame)`.

    Args:
        module: has the functions `serial` and, if parallel, `region`.
        label: name of the kernel in messages.
        pointers: in the order of the array of addresses; inputs and frozen are operands, the others results.
        threads: most threads of a call.
        parallel: share phases among threads?
        shape: of XLA's structs.
    """
    f = _open(module, shape)
    operands = [b for b in pointers if b.scope in ("input", "frozen")]
    results = [b for b in pointers if b.scope not in ("input", "frozen")]
    for field, struct, expected in (("args", "Args", len(operands)), ("rets", "Rets", len(results))):
        found = f.load("i64", at(f, "%frame", shape.at("CallFrame", field, "size")))
        wrong = f.value(f"icmp ne i64 {found}, {expected}")
        what = f"kernel {label}: expected {expected} {'operands' if struct == 'Args' else 'results'}"
        f.exit_if(wrong, "ptr", functools.partial(_error, f, shape, what))
    addresses = {b.name: (f, "args", j) for j, b in enumerate(operands)}
    addresses |= {b.name: (f, "rets", j) for j, b in enumerate(results)}
    batch: Value = 1
    data: list[str] = []
    for position, b in enumerate(pointers):
        _, field, j = addresses[b.name]
        buffer = _buffer(f, shape, field, j)
        extra = _checked(f, shape, label, b, buffer)
        if position:
            what = f"kernel {label}: {b.name} has another batch than {pointers[0].name}"
            wrong = f.value(f"icmp ne i64 {extra}, {batch}")
            f.exit_if(wrong, "ptr", functools.partial(_error, f, shape, what))
        else:
            batch = extra
        data.append(f.load("ptr", at(f, buffer, shape.at("Buffer", "data"))))
    bufs = f.alloca(max(len(pointers), 1), 16, "ptr")
    api = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "api")))
    context = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "ctx")))

    def one(item: Value, _: list[Value]) -> None:
        for j, (b, address) in enumerate(zip(pointers, data, strict=True)):
            moved = f.element(address, f.mul(item, _bytes(b)), "i8")
            f.store("ptr", moved, f.element(bufs, j, "ptr"))
        if parallel:
            f.effect(f"call void @region(ptr {api}, ptr {context}, ptr {bufs}, i64 {threads})")
        else:
            f.effect(f"call void @serial(ptr {bufs})")

    f.for_(0, batch, 1, one)
    f.ret("ptr", "null")


def register(digest: str, address: int) -> str:
    """Register a handler under a name made of its digest, once per process; the name.

    Raises:
        FfiUnavailable: see `probe`.
    """
    name = f"superopt_{digest}"
    with _LOCK:
        if name not in _REGISTERED:
            import jax.ffi  # late: only callers inside XLA need it

            capsule = ctypes.pythonapi.PyCapsule_New
            capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            jax.ffi.register_ffi_target(name, capsule(address, None, None), platform="cpu")
            _REGISTERED.add(name)
    return name


@functools.cache
def probe() -> str:
    """Why kernels cannot be called from XLA here; empty when they can.  Warns once when not."""
    try:
        _try()
    except (SuperoptError, RuntimeError, ValueError, OSError) as error:  # what jax and LLVM raise
        warnings.warn(f"kernels are not used, programs run on XLA alone: {error}", RuntimeWarning, stacklevel=2)
        return str(error)
    return ""


def _try() -> None:
    """Call a handler that reports what XLA passed, and compare."""
    if not cpu.supported():
        raise FfiUnavailable("no code is generated for this processor (AVX-512, or AVX2 with FMA, is needed)")
    import jax

    shape, module = layout(), Module()
    f = _open(module, shape)
    api = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "api")))
    operand, result = _buffer(f, shape, "args", 0), _buffer(f, shape, "rets", 0)
    out = f.load("ptr", at(f, result, shape.at("Buffer", "data")))
    given = f.load("i32", f.load("ptr", at(f, operand, shape.at("Buffer", "data"))))
    facts = [
        f.load("i64", at(f, "%frame", shape.at("CallFrame", "struct_size"))),
        f.load("i64", at(f, api, shape.at("Api", "struct_size"))),
        f.load("i64", at(f, operand, shape.at("Buffer", "struct_size"))),
        f.load("i32", at(f, api, shape.at("Api", "api_version", "major_version"))),
        f.load("i32", at(f, operand, shape.at("Buffer", "dtype"))),
        f.load("i64", at(f, operand, shape.at("Buffer", "rank"))),
        given,
    ]
    wide = (0, 1, 2, 5)
    for j, fact in enumerate(facts):
        value = f.value(f"trunc i64 {fact} to i32") if j in wide else fact
        f.store("i32", value, f.element(out, j, "i32"))
    f.ret("ptr", "null")
    compiled = jit.compile(module.text(), "none")
    name = register(f"probe_{compiled.digest}", jit.load(compiled).address("handler"))
    call = jax.jit(lambda x: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((len(facts),), np.int32))(x))
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        got = [int(x) for x in np.asarray(call(np.asarray([[12345]], np.int32)))]
    least = [shape.size("CallFrame"), shape.size("Api"), shape.size("Buffer")]
    exact = [shape.version[0], shape.constants["XLA_FFI_DataType_S32"], 2, 12345]
    if any(a < b for a, b in zip(got, least, strict=False)) or got[3:] != exact:
        raise FfiUnavailable(f"XLA passes {got}, the header of jaxlib says {[*least, *exact]}")


# ---- pieces of handlers


def _open(module: Module, shape: Layout) -> Function:
    """Begin a handler: answer the handshake, else fall through."""
    f = module.function("handler", [("ptr", "frame")], returns="ptr", internal=False)
    extension = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "extension_start")))

    def metadata() -> None:
        kind = f.load("i32", at(f, extension, shape.at("Extension_Base", "type")))
        asked = f.value(f"icmp eq i32 {kind}, {shape.constants['XLA_FFI_Extension_Metadata']}")
        f.exit_if(asked, "ptr", lambda: _answer(f, extension, shape))

    f.if_(f.value(f"icmp ne ptr {extension}, null"), metadata)
    return f


def _answer(f: Function, extension: str, shape: Layout) -> str:
    facts = f.load("ptr", at(f, extension, shape.at("Metadata_Extension", "metadata")))
    for value, field in zip(shape.version, ("major_version", "minor_version"), strict=True):
        f.store("i32", value, at(f, facts, shape.at("Metadata", "api_version", field)))
    f.store("i32", 0, at(f, facts, shape.at("Metadata", "traits")))
    return "null"


def _buffer(f: Function, shape: Layout, field: str, j: int) -> str:
    """Address of the j-th buffer of `args` or `rets`."""
    array = f.load("ptr", at(f, "%frame", shape.at("CallFrame", field, field)))
    return f.load("ptr", f.element(array, j, "ptr"))


def _bytes(b: Buffer) -> int:
    size = ITEMSIZE_BYTES[b.dtype]
    for n in b.shape:
        size *= n
    return size


def _checked(f: Function, shape: Layout, label: str, b: Buffer, buffer: str) -> Value:
    """Compare a buffer with what is expected; the product of its leading extra dimensions."""
    what = f"kernel {label}: {b.name} must be {b.dtype}{list(b.shape)}, after dimensions of a batch"
    error = functools.partial(_error, f, shape, what)
    dtype = f.load("i32", at(f, buffer, shape.at("Buffer", "dtype")))
    code = shape.constants[f"XLA_FFI_DataType_{_CODES[b.dtype]}"]
    f.exit_if(f.value(f"icmp ne i32 {dtype}, {code}"), "ptr", error)
    rank = f.load("i64", at(f, buffer, shape.at("Buffer", "rank")))
    f.exit_if(f.less(rank, len(b.shape)), "ptr", error)
    dims, leading = f.load("ptr", at(f, buffer, shape.at("Buffer", "dims"))), f.sub(rank, len(b.shape))
    for j, n in enumerate(b.shape):
        found = f.load("i64", f.element(dims, f.add(leading, j), "i64"))
        f.exit_if(f.value(f"icmp ne i64 {found}, {n}"), "ptr", error)

    def times(j: Value, product: list[Value]) -> list[Value]:
        return [f.mul(product[0], f.load("i64", f.element(dims, j, "i64")))]

    return f.for_(0, leading, 1, times, [("i64", 1)])[0]


def _error(f: Function, shape: Layout, message: str) -> str:
    """Make an XLA error."""
    name, size = "Error_Create_Args", shape.size("Error_Create_Args")
    args = f.alloca(size + 8, 8, "i8")
    f.store("i64", size, args)
    f.store("ptr", "null", at(f, args, shape.at(name, "extension_start")))
    f.store("ptr", f.module.text_constant(message), at(f, args, shape.at(name, "message")))
    code = shape.constants["XLA_FFI_Error_Code_INVALID_ARGUMENT"]
    f.store("i32", code, at(f, args, shape.at(name, "errc")))
    api = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "api")))
    return f.call("ptr", f.load("ptr", at(f, api, shape.at("Api", "XLA_FFI_Error_Create"))), ("ptr", args))
