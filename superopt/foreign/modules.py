"""Opaque operations as serialised modules, for other processes and for saved or stored programs.

An equation that the op table does not know is exported by `jax.export` as a function of its own, on this platform.
Its module is a line of JSON with the types of operands and results, then StableHLO as a portable artifact without
source locations.  So equal equations give equal bytes, and the digest of the bytes is the name of the operation.

A call of the host (`superopt.foreign.onnx_calls`) is a module too, with ONNX in the place of StableHLO.

A module may come from a stranger's file.  It is accepted only if its digest is the one in its key, its size is bounded,
its main function has the types of its head, and every operation in it computes.  Operations that compute are those of
StableHLO without communication and side effects, and custom calls of LAPACK's routines, written as JAX itself writes
them (`superopt.foreign.routine_calls`).
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import numpy as jnp

from superopt.errors import ArgumentError, InputError
from superopt.files.reading import shown
from superopt.foreign.onnx_calls import PREFIX, host_call, refusal
from superopt.foreign.routine_calls import Asked, operations
from superopt.foreign.routine_calls import refusal as call_refusal
from superopt.ir import opaque
from superopt.ir.graph import Graph, Node
from superopt.ir.types import STORED_BYTES, TensorType
from superopt.machine.jitting import jax_jit

PLATFORM = "cpu"
MOST_BYTES = 1 << 24  # of one module: weights are constants of a graph, and an equation has small tables at most
_HINT = "save the program again with this version, from the function"
_FOREIGN = frozenset((
    "infeed", "outfeed", "send", "recv", "create_token", "after_all", "all_gather", "all_reduce", "all_to_all",
    "collective_broadcast", "collective_permute", "reduce_scatter", "partition_id", "replica_id",
))  # fmt: skip
"""Operations of StableHLO that reach outside of the program."""
_NOTES = {"jax.uses_shape_polymorphism", "jax.result_info", "mhlo.num_partitions", "mhlo.num_replicas"}
"""Attributes of other dialects without effect on one device."""


def export(
    call: Callable[..., Sequence[Any]], operands: Sequence[TensorType], results: Sequence[TensorType], vmap: str = ""
) -> bytes:
    """The module of a function on operands of these types; empty where it has none.

    `vmap` names the function's own rule for `vmap`, which no module holds.

    Functions without a module: those with effects, callbacks into Python, custom calls not known to be stable, and
    functions that are too large.
    """
    types = (*operands, *results)
    if jax.default_backend() != PLATFORM or any(not isinstance(n, int) for t in types for n in t.shape):
        return b""

    def main(*arrays: Any) -> tuple[Any, ...]:
        return tuple(call(*arrays))

    try:
        with _x64(types):
            exported = jax.export.export(jax_jit(main, keep_unused=True), platforms=(PLATFORM,))(
                *map(_struct, operands)
            )
        if exported.ordered_effects or exported.unordered_effects:
            return b""
        head = _Head(tuple(operands), tuple(results))
        code = _without_places(exported.mlir_module_serialized, head)
        data: dict[str, Any] = {"operands": [_type(t) for t in operands], "results": [_type(t) for t in results]}
        if vmap:
            data["vmap"] = vmap
        module = json.dumps(data).encode() + b"\n" + code
        if len(module) > MOST_BYTES:
            return b""
    except Exception:  # whatever it is that cannot be exported stays in this process
        return b""
    return module


def export_model(model: bytes, name: str, operands: Sequence[TensorType], results: Sequence[TensorType]) -> bytes:
    """The module of a call of the host (`superopt.foreign.onnx_calls`); empty where it has none."""
    head = {"operands": [_type(t) for t in operands], "results": [_type(t) for t in results], "host": name}
    module = json.dumps(head).encode() + b"\n" + model
    try:
        _checked("", module, set())
    except InputError:
        return b""
    return module


Local = tuple[str, tuple[TensorType, ...], tuple[TensorType, ...]]  # an operation without a module, with its types


def local_to_process(graph: Graph) -> frozenset[Local]:
    """The opaque operations of a graph that have no module: callbacks into Python."""
    return frozenset(_typed(node) for node in opaque.nodes_of([graph]) if not opaque.module_of(node["params_key"]))


def _typed(node: Node) -> Local:
    return node["params_key"], tuple(x.type for x in node.inputs), node.types


def carried(graphs: Iterable[Graph], known: Iterable[Local] = ()) -> dict[str, str] | None:
    """The modules of these graphs as text; None where an operation, not `known`, is of this process alone."""
    modules = opaque.carry(graphs, {key for key, _, _ in known})
    return None if modules is None else {key: base64.b64encode(x).decode() for key, x in sorted(modules.items())}


def restore(modules: Mapping[str, str]) -> None:
    """Register modules of another process, or of a file, in this process.

    Raises:
        InputError: a module does not match its key, is too large, or does more than compute.
    """
    asked: Asked = set()
    for key, text in modules.items():
        if not isinstance(text, str) or len(text) > 2 * MOST_BYTES:
            raise InputError(f"the module of {_shown(key)} is larger than {MOST_BYTES} bytes", hint=_HINT)
        try:
            module = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InputError(f"the module of {_shown(key)} cannot be read: {error}", hint=_HINT) from error
        name = key.rpartition("@")[0]
        if opaque.key_of_module(name, module) != key:
            raise InputError(f"the module of {_shown(key)} is not the one that its key names", hint=_HINT)
        head = _checked(key, module, asked)
        opaque.register_module(name, module, _Restored(key, module, head))


def require_modules(graph: Graph, known: Collection[Local] = ()) -> None:
    """Check that every opaque operation of a graph, and of its bodies, has a module of its types.

    Operations that are `known` need none.

    Raises:
        InputError: an operation has no such module.
    """
    for node in opaque.nodes_of([graph]):
        key, operands, results = _typed(node)
        module = opaque.module_of(key)
        if not module and _typed(node) in known:
            continue
        if not module:
            raise InputError(f"it holds the opaque operation {_shown(key)} without its module")
        head = _head(module)
        if head.operands != operands or head.results != results:
            raise InputError(f"it gives the opaque operation {_shown(key)} other types than its own")


@dataclasses.dataclass(frozen=True, slots=True)
class _Head:
    """Types of operands and results, and the names of a host call and of the function's own rule for `vmap`."""

    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    host: str = ""
    vmap: str = ""


class _Restored:
    """The function of a module: exported code, called for each element where it is under `vmap`.

    Under `vmap` a function with its own rule raises an `ArgumentError`.
    """

    def __init__(self, key: str, module: bytes, head: _Head) -> None:
        self.key, self.module, self.head = key, module, head
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arrays: Any) -> Sequence[Any]:
        got = tuple(TensorType(tuple(x.shape), str(x.dtype)) for x in map(jnp.asarray, arrays))
        if got != self.head.operands:
            wanted = ", ".join(map(str, self.head.operands))
            raise InputError(f"{_shown(self.key)} takes ({wanted}), got ({', '.join(map(str, got))})", hint=_HINT)
        if self._run is None:
            self._run = self._made()
        return self._run(*arrays)

    def _made(self) -> Callable[..., Any]:
        head = self.head
        if head.host:
            results = tuple((t.shape, t.dtype) for t in head.results)
            return lambda *arrays: host_call(head.host, self.module.partition(b"\n")[2], results, arrays)  # pyright: ignore[reportArgumentType]

        def like(*arrays: Any) -> tuple[Any, ...]:
            return tuple(jnp.zeros(t.shape, t.dtype) for t in head.results)  # pyright: ignore[reportArgumentType]

        with _x64((*head.operands, *head.results)):
            of_types = jax.export.export(jax_jit(like, keep_unused=True), platforms=(PLATFORM,))
            frame = of_types(*map(_struct, head.operands))
        exported = dataclasses.replace(
            frame,
            mlir_module_serialized=self.module.partition(b"\n")[2],
            module_kept_var_idx=tuple(range(len(head.operands))),
        )

        if head.vmap:
            return without_vmap(lambda *arrays: tuple(exported.call(*arrays)), head.vmap)

        @jax.custom_batching.custom_vmap
        def call(*arrays: Any) -> tuple[Any, ...]:
            return tuple(exported.call(*arrays))

        @call.def_vmap
        def _(size: int, batched: Sequence[bool], *arrays: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
            moving = [x for x, b in zip(arrays, batched, strict=True) if b]

            def one(xs: Sequence[Any]) -> tuple[Any, ...]:
                rest = iter(xs)
                return call(*[next(rest) if b else x for x, b in zip(arrays, batched, strict=True)])

            return jax.lax.map(one, moving), tuple(True for _ in head.results)

        return call


def without_vmap(call: Callable[..., Sequence[Any]], rule: str) -> Callable[..., Sequence[Any]]:
    """The function, which raises an `ArgumentError` under `vmap`: its own rule, named here, is in no module."""

    @jax.custom_batching.custom_vmap
    def run(*arrays: Any) -> tuple[Any, ...]:
        return tuple(call(*arrays))

    @run.def_vmap
    def _(*_: Any) -> Any:
        raise ArgumentError(
            f"the function defines vmap itself ({shown(rule)}), and its rule is not in the file",
            hint="call vmap on the function itself, or on the result of superopt.optimize",
        )

    return run


def _checked(key: str, module: bytes, asked: Asked) -> _Head:
    """The head of a module that is accepted.

    Raises:
        InputError: it is no module, or does more than compute.
    """
    if len(module) > MOST_BYTES:
        raise InputError(f"the module of {_shown(key)} is larger than {MOST_BYTES} bytes", hint=_HINT)
    code = module.partition(b"\n")[2]
    try:
        head = _head(module)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"the module of {_shown(key)} has no head that can be read", hint=_HINT) from error
    refused = refusal(code) if head.host else _refused(code, head, asked)
    if refused:
        raise InputError(f"the module of {_shown(key)} is refused: {refused}", hint=_HINT)
    return head


def _head(module: bytes) -> _Head:
    data = json.loads(module.partition(b"\n")[0])
    host, vmap = data.get("host", ""), data.get("vmap", "")
    if not isinstance(host, str) or len(host) > 100 or (host and not host.startswith(PREFIX)):
        raise ValueError("no call of the host")
    if not isinstance(vmap, str):
        raise ValueError("no name of a rule")
    operands, results = (tuple(_read_type(t) for t in data[name]) for name in ("operands", "results"))
    return _Head(operands, results, host, vmap)


def _refused(code: bytes, head: _Head, asked: Asked) -> str:
    """The reason why StableHLO is not accepted; else an empty text."""
    from jax.extend.mlir.dialects import stablehlo  # late: only where modules are read

    with _context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, code)
        except Exception:  # errors of the reader have no common class
            return "it is no StableHLO"
        return _beyond(module, head, asked)


def _beyond(module: Any, head: _Head, asked: Asked) -> str:
    """The first thing in a module beyond computing results of these types from its operands; else an empty text."""
    from jax.extend.mlir import ir  # late: as above

    main = ""
    for op in operations(module):
        cause = _not_computing(op, asked)
        if cause:
            return cause
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
            main = f"{[str(t) for t in kind.inputs]} -> {[str(t) for t in kind.results]}"
    wanted = [[_mlir_type(t) for t in types] for types in (head.operands, head.results)]
    return "" if main == f"{wanted[0]} -> {wanted[1]}" else "its main function has other types than its head says"


_CONTEXTS = threading.local()


def _context() -> Any:
    """The MLIR context of this thread; creating one takes as long as reading ten modules."""
    from jax.interpreters import mlir  # late: as above

    if not hasattr(_CONTEXTS, "context"):
        _CONTEXTS.context = mlir.make_ir_context()
    return _CONTEXTS.context


def _mlir_type(kind: TensorType) -> str:
    from jax.interpreters import mlir  # late: as above

    return f"tensor<{''.join(f'{n}x' for n in kind.shape)}{mlir.dtype_to_ir_type(jnp.dtype(kind.dtype))}>"


def _not_computing(op: Any, asked: Asked) -> str:
    dialect, _, name = op.name.partition(".")
    own = op.name in ("builtin.module", "func.func", "func.return", "func.call")
    if not own and (dialect not in ("stablehlo", "chlo") or name in _FOREIGN):
        return f"it holds the operation {op.name}"
    if name == "custom_call":
        return call_refusal(op, asked)
    for note in _noted(op):
        if "." in note and note not in _NOTES:
            return f"it asks the compiler for {_shown(note)}"
    return ""


def _noted(op: Any) -> Iterator[str]:
    """Names of the attributes of an operation, and of the arguments and results of a function."""
    yield from op.attributes
    for name in ("arg_attrs", "res_attrs"):
        if op.name == "func.func" and name in op.attributes:
            for notes in op.attributes[name]:
                yield from (note.name for note in notes)


def _without_places(code: bytes, head: _Head) -> bytes:
    """The same StableHLO without file names and lines.

    Raises:
        InputError: its reader would refuse it.
    """
    from jax.extend.mlir import passmanager  # late: as above
    from jax.extend.mlir.dialects import stablehlo

    with _context() as context:
        module = stablehlo.deserialize_portable_artifact(context, code)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        for op in operations(module):
            for name in [name for name in op.attributes if name.startswith("sdy.")]:
                del op.attributes[name]  # how it might be spread over devices
        cause = _beyond(module, head, set())
        if cause:
            raise InputError(cause)
        age = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(age)
        return stablehlo.serialize_portable_artifact(module, version)


def _x64(types: Iterable[TensorType]) -> Any:
    return jax.enable_x64(jax.config.read("jax_enable_x64") or any(_wide(t.dtype) for t in types))


@functools.cache
def _wide(dtype: str) -> bool:
    return dtype in ("float64", "int64", "uint64", "complex128")


def _struct(kind: TensorType) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(kind.shape, jnp.dtype(kind.dtype))  # pyright: ignore[reportArgumentType]


def _type(kind: TensorType) -> list[Any]:
    return [list(kind.shape), kind.dtype]


def _read_type(data: Any) -> TensorType:
    shape, name = data
    sizes = tuple(shape)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in sizes) or len(sizes) > 64:
        raise ValueError("not a shape")
    if math.prod(sizes) > 1 << 40:
        raise ValueError("too large")
    if name not in STORED_BYTES:
        raise ValueError("no dtype")
    return TensorType(sizes, name)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
