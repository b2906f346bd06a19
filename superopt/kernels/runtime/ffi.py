"""XLA's FFI from generated code: a handler in LLVM, registered with `jax.ffi` under a name made of its content digest.

The handler answers the metadata handshake with the version of the header that its offsets come from.  It checks number,
dtype and dimensions of all buffers (an error is a Python exception at the call), and runs the region.  Leading extra
dimensions are a batch, the same for all buffers: that is how `vmap` calls it with `broadcast_all`.

`probe()` runs a kernel inside `jax.jit` once per process and compares the buffers XLA passes with the header.  When
that fails, kernels are not used: the reason is kept and a warning is given once.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from superopt.errors import SuperoptError
from superopt.kernels.llvm import cpu, jit
from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.runtime.entry import BUFFER, BUFFER_BYTES
from superopt.kernels.runtime.ffi_layout import FfiLayout, FfiUnavailable, layout
from superopt.kernels.runtime.pool import field
from superopt.kernels.runtime.team import at
from superopt.machine.fallback import warned
from superopt.machine.shared import once

__all__ = ["FfiUnavailable", "codes", "emit_handler", "probe", "register"]

_CODES = {
    "bool": "PRED", "int8": "S8", "int16": "S16", "int32": "S32", "int64": "S64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_REGISTERED: set[str] = set()
_LOCK = threading.Lock()


def emit_handler(module: Module, shape: FfiLayout) -> None:
    """Write `ptr runtime.handle(ptr kernel, ptr frame)`: check the buffers of a call, then run the kernel on them.

    Args:
        module: the runtime's module.
        shape: layout of XLA's structs.
    """
    f = module.function("runtime.handle", [("ptr", "kernel"), ("ptr", "frame")], returns="ptr", internal=False)
    _answer_handshake(f, shape)
    for name, count in (("args", "operands"), ("rets", "results")):
        size = f.load("i64", at(f, "%frame", shape.at("CallFrame", name, "size")))
        wrong = f.value(f"icmp ne i64 {size}, {field(f, count, 'i64')}")
        f.exit_if(wrong, "ptr", lambda: _error(f, shape, field(f, "message", "ptr")))
    buffers, table = field(f, "buffers", "i64"), field(f, "buffer_table", "ptr")
    data, bufs = [f.value(f"alloca ptr, i64 {buffers}, align 16") for _ in range(2)]
    sides = [f.load("ptr", at(f, "%frame", shape.at("CallFrame", name, name))) for name in ("args", "rets")]

    def check(j: Value, carried: list[Value]) -> list[Value]:
        row = f.element(table, f.mul(j, BUFFER_BYTES), "i8")
        is_result = f.value(f"trunc i64 {_of(f, row, 'is_result')} to i1")
        side = f.value(f"select i1 {is_result}, ptr {sides[1]}, ptr {sides[0]}")
        buffer = f.load("ptr", f.element(side, _of(f, row, "index"), "ptr"))
        batch = _checked(f, shape, row, buffer)
        known = f.value(f"icmp ne i64 {carried[0]}, -1")
        other = f.value(f"and i1 {known}, {f.value(f'icmp ne i64 {batch}, {carried[0]}')}")
        f.exit_if(other, "ptr", lambda: _error(f, shape, _of(f, row, "message", "ptr")))
        f.store("ptr", f.load("ptr", at(f, buffer, shape.at("Buffer", "data"))), f.element(data, j, "ptr"))
        return [batch]

    batch = f.for_(0, buffers, 1, check, [("i64", -1)])[0]
    api = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "api")))
    context = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "ctx")))
    several = f.less(1, f.minimum(field(f, "threads", "i64"), field(f, "tasks", "i64")))
    threads = f.if_(several, lambda: [_pool_threads(f, shape, api, context)], lambda: [1], ["i64"])[0]

    def one(item: Value, _: list[Value]) -> None:
        def place(j: Value, _: list[Value]) -> None:
            row = f.element(table, f.mul(j, BUFFER_BYTES), "i8")
            start = f.load("ptr", f.element(data, j, "ptr"))
            moved = f.element(start, f.mul(item, _of(f, row, "bytes")), "i8")
            f.store("ptr", moved, f.element(bufs, j, "ptr"))

        f.for_(0, buffers, 1, place)
        f.effect(f"call void @runtime.region(ptr %kernel, ptr {bufs}, i64 {threads})")

    f.for_(0, batch, 1, one)
    f.ret("ptr", "null")


def _of(f: Function, row: str, name: str, type: str = "i64") -> str:
    """Return a field of the description of a buffer."""
    return f.load(type, at(f, row, BUFFER[name]))


def codes(shape: FfiLayout) -> dict[str, int]:
    """Return XLA's numbers of dtypes."""
    return {dtype: shape.constants[f"XLA_FFI_DataType_{name}"] for dtype, name in _CODES.items()}


def register(digest: str, address: int) -> str:
    """Register a handler under a name made of its digest, once per process; return the name.

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


@once
def probe() -> str:
    """Return the reason why kernels cannot be called from XLA here; empty when they can.

    Warns once when they cannot.
    """
    try:
        _try()
    except (SuperoptError, RuntimeError, ValueError, OSError) as error:  # the errors that jax and LLVM raise
        warned(f"kernels are not used, programs run on XLA alone: {error}", RuntimeWarning, stacklevel=3)
        return str(error)
    return ""


def _try() -> None:
    """Call a handler that reports its arguments, and compare them with those XLA was to pass."""
    if not cpu.supported():
        raise FfiUnavailable("no code is generated for this processor (AVX-512, or AVX2 with FMA, is needed)")
    import jax

    from superopt.machine.jitting import jax_jit  # late, as JAX itself

    shape, module = layout(), Module()
    f = module.function("handler", [("ptr", "frame")], returns="ptr", internal=False)
    _answer_handshake(f, shape)
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
    call = jax_jit(lambda x: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((len(facts),), np.int32))(x))
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        got = [int(x) for x in np.asarray(call(np.asarray([[12345]], np.int32)))]
    least = [shape.size("CallFrame"), shape.size("Api"), shape.size("Buffer")]
    exact = [shape.version[0], shape.constants["XLA_FFI_DataType_S32"], 2, 12345]
    if any(a < b for a, b in zip(got, least, strict=False)) or got[3:] != exact:
        raise FfiUnavailable(f"XLA passes {got}, the header of jaxlib says {[*least, *exact]}")


# ---- pieces of handlers


def _answer_handshake(f: Function, shape: FfiLayout) -> None:
    """Return the version if the call asks for it, else fall through."""
    extension = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "extension_start")))

    def metadata() -> None:
        kind = f.load("i32", at(f, extension, shape.at("Extension_Base", "type")))
        asked = f.value(f"icmp eq i32 {kind}, {shape.constants['XLA_FFI_Extension_Metadata']}")
        f.exit_if(asked, "ptr", lambda: _answer(f, extension, shape))

    f.if_(f.value(f"icmp ne ptr {extension}, null"), metadata)


def _answer(f: Function, extension: str, shape: FfiLayout) -> str:
    facts = f.load("ptr", at(f, extension, shape.at("Metadata_Extension", "metadata")))
    for number, name in zip(shape.version, ("major_version", "minor_version"), strict=True):
        f.store("i32", number, at(f, facts, shape.at("Metadata", "api_version", name)))
    f.store("i32", 0, at(f, facts, shape.at("Metadata", "traits")))
    return "null"


def _buffer(f: Function, shape: FfiLayout, field: str, j: int) -> str:
    """Return the address of the j-th buffer of `args` or `rets`."""
    array = f.load("ptr", at(f, "%frame", shape.at("CallFrame", field, field)))
    return f.load("ptr", f.element(array, j, "ptr"))


def _checked(f: Function, shape: FfiLayout, row: str, buffer: str) -> Value:
    """Compare a buffer with its description; return the product of its leading extra dimensions."""

    def refuse(condition: str) -> None:
        f.exit_if(condition, "ptr", lambda: _error(f, shape, _of(f, row, "message", "ptr")))

    dtype = f.value(f"zext i32 {f.load('i32', at(f, buffer, shape.at('Buffer', 'dtype')))} to i64")
    refuse(f.value(f"icmp ne i64 {dtype}, {_of(f, row, 'dtype')}"))
    rank, wanted = f.load("i64", at(f, buffer, shape.at("Buffer", "rank"))), _of(f, row, "rank")
    refuse(f.less(rank, wanted))
    dims, expected = f.load("ptr", at(f, buffer, shape.at("Buffer", "dims"))), _of(f, row, "dims", "ptr")
    leading = f.sub(rank, wanted)

    def compare(j: Value, _: list[Value]) -> None:
        got = f.load("i64", f.element(dims, f.add(leading, j), "i64"))
        refuse(f.value(f"icmp ne i64 {got}, {f.load('i64', f.element(expected, j, 'i64'))}"))

    def times(j: Value, product: list[Value]) -> list[Value]:
        return [f.mul(product[0], f.load("i64", f.element(dims, j, "i64")))]

    f.for_(0, wanted, 1, compare)
    return f.for_(0, leading, 1, times, [("i64", 1)])[0]


def _pool_threads(f: Function, shape: FfiLayout, api: str, context: str) -> Value:
    """Return the number of threads that XLA's pool may use; 1 when there is no pool."""
    args, room = _begin(f, shape, "ThreadPool_NumThreads_Args"), f.alloca(1, 8, "i64")
    f.store("i64", 1, room)
    f.store("ptr", context, at(f, args, shape.at("ThreadPool_NumThreads_Args", "ctx")))
    f.store("ptr", room, at(f, args, shape.at("ThreadPool_NumThreads_Args", "num_threads")))
    error = f.call("ptr", f.load("ptr", at(f, api, shape.at("Api", "XLA_FFI_ThreadPool_NumThreads"))), ("ptr", args))

    def drop() -> None:
        lost = _begin(f, shape, "Error_Destroy_Args")
        f.store("ptr", error, at(f, lost, shape.at("Error_Destroy_Args", "error")))
        destroy = f.load("ptr", at(f, api, shape.at("Api", "XLA_FFI_Error_Destroy")))
        f.effect(f"call void {destroy}(ptr {lost})")

    f.if_(f.value(f"icmp ne ptr {error}, null"), drop)
    return f.load("i64", room)


def _begin(f: Function, shape: FfiLayout, struct: str) -> str:
    """Allocate the arguments of a function of the interface, with their size filled in."""
    args = f.alloca(shape.size(struct) + 8, 8, "i8")
    f.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.effect(f"call void @llvm.memset.p0.i64(ptr {args}, i8 0, i64 {shape.size(struct) + 8}, i1 false)")
    f.store("i64", shape.size(struct), args)
    return args


def _error(f: Function, shape: FfiLayout, message: str) -> str:
    """Make an XLA error of the text at this address."""
    name = "Error_Create_Args"
    args = _begin(f, shape, name)
    f.store("ptr", message, at(f, args, shape.at(name, "message")))
    code = shape.constants["XLA_FFI_Error_Code_INVALID_ARGUMENT"]
    f.store("i32", code, at(f, args, shape.at(name, "errc")))
    api = f.load("ptr", at(f, "%frame", shape.at("CallFrame", "api")))
    return f.call("ptr", f.load("ptr", at(f, api, shape.at("Api", "XLA_FFI_Error_Create"))), ("ptr", args))
