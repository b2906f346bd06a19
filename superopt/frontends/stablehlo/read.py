"""Reading a StableHLO module: from a file to MLIR's own tree and back to plain values, or one typed error.

MLIR's parser and verifier, which come with jaxlib, read the text, so only well-typed modules reach this code.  They
recurse, so texts that nest without end are refused before.  Nothing of a module is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo
from jax.interpreters import mlir

from superopt.errors import FileLimitError, InputError, ModelFileError
from superopt.files.reading import LIMITS, plain_file, shown, text_of

MAX_BYTES = 2**31 - 1
DEPTH = 200
"""Limit on the nesting of brackets: exports of real programs have fewer than 20."""
DIALECTS = frozenset(
    str(op.OPERATION_NAME)
    for module in (stablehlo, chlo)
    for op in vars(module).values()
    if hasattr(op, "OPERATION_NAME")
)
"""Names of all operations."""
_BYTECODE = b"ML\xefR"
_RESOURCE = re.compile(r'\b([A-Za-z0-9_.$-]+|"[^"]*")\s*:\s*"0x([0-9A-Fa-f]*)"')
_PLACE = re.compile(r'"([^"]*)":(\d+):\d+')
_NAMED = re.compile(r"dense_resource<(.*?)>")
_DTYPES = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"} | {
    f"{kind}{bits}": f"{name}{bits}" for kind, name in (("i", "int"), ("ui", "uint")) for bits in (8, 16, 32, 64)
}
_OPEN, _CLOSE = (np.frombuffer(x, np.uint8) for x in (b"([{<", b")]}>"))
_HINT = "write it with `jax.jit(f).lower(x).as_text()`, or export it with jax.export"


HloType = tuple[tuple[int | None, ...], str]
"""Shape and dtype; None for a size that the module leaves open."""


@dataclass(frozen=True, slots=True, eq=False)
class HloOp:
    """An operation.

    Attributes:
        name: its name, with its dialect.
        operands: numbers of the values that it reads.
        results: number and type of each value that it makes.
        attributes: plain values: numbers, texts, tuples, arrays; objects with dimension numbers.
        blocks: blocks of its regions.
        where: name and place, in words.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[tuple[int, HloType], ...]
    attributes: Mapping[str, Any]
    blocks: tuple[HloBlock, ...]
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class HloBlock:
    """Operations in their order; the operands of the last one are the results."""

    arguments: tuple[tuple[int, HloType], ...]
    ops: tuple[HloOp, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HloModule:
    """The contents of a module file.

    Attributes:
        name: name of the file.
        functions: the blocks of its functions by name.
        results: names of the results of each function, empty where it names none.
        names: for each function, those of its arguments that are sizes; empty for other arguments.
    """

    name: str
    functions: Mapping[str, HloBlock]
    results: Mapping[str, tuple[str, ...]]
    names: Mapping[str, tuple[str, ...]]


def read_module(source: str | Path | bytes) -> HloModule:
    """The functions of a verified module.

    Args:
        source: a file, or the contents of one.

    Raises:
        ModelFileError: it cannot be read, or is no valid module.
        InputError: it has a type that graphs lack.
        FileLimitError: it is too large or nested too deep.
    """
    name = "module" if isinstance(source, bytes) else shown(Path(source).name)
    data = source if isinstance(source, bytes) else _bytes(source)
    if data.startswith(_BYTECODE):
        return _HloReader(name, {}).module(_parsed(data, name))
    try:
        text = text_of(data, name)
    except InputError as error:
        raise ModelFileError(f"{name} is no StableHLO module: {error.args[0]}", hint=_HINT) from error
    if _depth(data) > DEPTH:
        raise FileLimitError(f"{name} nests brackets more than {DEPTH} deep")
    return _HloReader(name, _resources(text)).module(_parsed(text, name))


def _bytes(path: str | Path) -> bytes:
    with plain_file(path) as handle:
        data = handle.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FileLimitError(f"{shown(path, 200)} has more than {MAX_BYTES} bytes")
    return data


def _depth(data: bytes) -> int:
    """Nesting depth of brackets; brackets in arrows and strings cannot make it smaller."""
    codes = np.frombuffer(data.replace(b"->", b""), np.uint8)
    steps = np.isin(codes, _OPEN).astype(np.int32) - np.isin(codes, _CLOSE)
    return int(np.cumsum(steps).max(initial=0))


def _parsed(data: str | bytes, name: str) -> Any:
    with mlir.make_ir_context() as context:
        try:
            if isinstance(data, bytes):
                context.attach_diagnostic_handler(lambda _: True)  # which would be written to the terminal
                module = stablehlo.deserialize_portable_artifact(context, data)
            else:
                module = ir.Module.parse(data)
            module.operation.verify()
        except ir.MLIRError as error:
            first = next(iter(error.error_diagnostics), None)
            where = "" if first is None else f"{place(first.location)}: {first.message}"
            raise ModelFileError(f"{name} is no StableHLO module: {shown(where or error, 300)}", hint=_HINT) from error
        except (ValueError, RuntimeError) as error:
            raise ModelFileError(f"{name} is no StableHLO module: {shown(error, 300)}", hint=_HINT) from error
    return module


def place(location: Any) -> str:
    """A location in a file, in words."""
    text = str(location).removeprefix("loc(").removesuffix(")")
    match = _PLACE.fullmatch(text)
    if match is None:
        return shown(text)
    return f"line {match[2]}" if match[1] == "-" else f"{shown(match[1])}, line {match[2]}"


class _HloReader:
    """Converts MLIR's tree to plain values; the tree is released afterwards."""

    def __init__(self, name: str, resources: Mapping[str, bytes]) -> None:
        self.name, self.resources = name, resources
        self.numbers: dict[Any, int] = {}

    def module(self, module: Any) -> HloModule:
        functions: dict[str, HloBlock] = {}
        results: dict[str, tuple[str, ...]] = {}
        names: dict[str, tuple[str, ...]] = {}
        for op in (x.operation for x in module.body.operations):
            if op.name == "sdy.mesh":
                continue
            if op.name != "func.func":
                raise ModelFileError(f"{self.name} holds {shown(op.name)} beside functions")
            name = op.attributes["sym_name"].value
            if op.regions[0].blocks:
                functions[name] = self.block(op.regions[0].blocks[0])
            names[name] = tuple(
                x["jax.global_constant"].value if "jax.global_constant" in x else ""
                for x in op.attributes.get("arg_attrs", ())
            )
            given = op.attributes.get("res_attrs", ())
            results[name] = tuple(x["jax.result_info"].value if "jax.result_info" in x else "" for x in given)
        return HloModule(self.name, functions, results, names)

    def block(self, block: Any) -> HloBlock:
        arguments = tuple((self.number(x), type_of(x.type, "an argument")) for x in block.arguments)
        return HloBlock(arguments, tuple(self.op(x.operation) for x in block.operations))

    def op(self, op: Any) -> HloOp:
        where = f"{shown(op.name)} ({place(op.location)})"
        operands = tuple(self.number(x) for x in op.operands)
        results = tuple((self.number(x), type_of(x.type, where)) for x in op.results)
        blocks: list[HloBlock] = []
        for region in op.regions:
            if len(region.blocks) > 1:
                raise InputError(f"{where} has a region of more than one block")
            blocks += map(self.block, region.blocks)
        attributes = {x: self.plain(op.attributes[x]) for x in op.attributes if x != "value"}
        if op.name == "stablehlo.constant":
            attributes["value"] = _array(op.attributes["value"], results[0][1], self.resources, where)
        return HloOp(op.name, operands, results, attributes, tuple(blocks), where)

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def plain(self, value: Any) -> Any:
        """An attribute as plain Python data."""
        for kind in _VALUED:
            if _is(value, kind):
                return kind(value).value
        for kind, names in _NUMBERS.items():
            if _is(value, kind):
                held = kind(value)
                return SimpleNamespace(**{n: _plain_list(getattr(held, n)) for n in names})
        for kind in _LISTS:
            if _is(value, kind):
                return tuple(kind(value))
        if isinstance(value, ir.ArrayAttr):
            return tuple(map(self.plain, ir.ArrayAttr(value)))
        if isinstance(value, ir.DenseIntElementsAttr):
            dense = ir.DenseIntElementsAttr(value)
            return np.array([dense[i] for i in range(len(dense))]).reshape(ir.ShapedType(dense.type).shape)
        return str(value)


def _is(value: Any, kind: Any) -> bool:
    """Whether an attribute is of a kind; kinds of dialects have an `isinstance` of their own."""
    return kind.isinstance(value) if hasattr(kind, "isinstance") else isinstance(value, kind)


def _plain_list(value: Any) -> Any:
    return value if isinstance(value, int) else tuple(value)


_VALUED: tuple[Any, ...] = (
    ir.IntegerAttr, ir.BoolAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr,
    stablehlo.ComparisonDirectionAttr, stablehlo.ComparisonTypeAttr, stablehlo.PrecisionAttr,
    chlo.ComparisonDirectionAttr, chlo.ComparisonTypeAttr,
)  # fmt: skip
_LISTS: tuple[Any, ...] = (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr)
_NUMBERS: dict[Any, tuple[str, ...]] = {
    kind: tuple(n for n in vars(kind) if n.endswith(("_dims", "_dim", "_map", "_dimension", "_dimensions")))
    for kind in (
        stablehlo.DotDimensionNumbers,
        stablehlo.ConvDimensionNumbers,
        stablehlo.GatherDimensionNumbers,
        stablehlo.ScatterDimensionNumbers,
    )
}


# ---- types and tensors


def type_of(kind: Any, where: str) -> HloType:
    """Shape and dtype of a tensor's type; None for a size that the module leaves open.

    Raises:
        InputError: it is no tensor, or its dtype is not one of graphs.
    """
    if not isinstance(kind, ir.RankedTensorType):
        raise InputError(f"{where}: {shown(kind)} is no tensor of a known rank")
    dtype = _DTYPES.get(str(kind.element_type))
    if dtype is None:
        raise InputError(f"{where}: elements of {shown(kind.element_type)} have no type here")
    if len(kind.shape) > LIMITS.rank:
        raise FileLimitError(f"{where}: more than {LIMITS.rank} axes")
    shape = tuple(None if kind.is_dynamic_dim(i) else int(n) for i, n in enumerate(kind.shape))
    return shape, dtype


def _array(value: Any, kind: HloType, resources: Mapping[str, bytes], where: str) -> np.ndarray:
    """The values of a constant; one with equal elements becomes a broadcast view of one number.

    Raises:
        InputError: they are not in the file, or do not fit the type.
    """
    shape, dtype = kind
    of = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if not isinstance(value, ir.DenseElementsAttr):
        return _resource(str(value), resources, shape, of, where)
    dense = ir.DenseElementsAttr(value)
    if dense.is_splat:
        number: Any = dense.get_splat_value()
        return np.broadcast_to(np.asarray(number.value, of), shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if dtype == "bfloat16":
        return _halves(dense, shape)
    return np.array(dense).astype(of, copy=False).reshape(shape)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _halves(dense: Any, shape: Any) -> np.ndarray:
    """Numbers of bfloat16, parsed from their text, as the bindings do not expose them as a buffer."""
    text = str(dense)
    inner = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(":"))]
    if inner.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(inner[3:-1]), ml_dtypes.bfloat16).reshape(shape)
    bits = [_half(x) for x in re.findall(r"[^\s,\[\]]+", inner)]
    return np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


def _half(text: str) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    return int(np.asarray(float(text), ml_dtypes.bfloat16).view(np.uint16))


def _resources(text: str) -> dict[str, bytes]:
    """Tensors in the resource section behind a module's text, by name: four bytes of alignment, then their values."""
    at = text.rfind("dialect_resources")
    if at < 0:
        return {}
    return {
        name.strip('"'): bytes.fromhex(digits)[4:]
        for name, digits in _RESOURCE.findall(text, at)
        if len(digits) % 2 == 0
    }


def _resource(text: str, resources: Mapping[str, bytes], shape: Any, of: np.dtype[Any], where: str) -> np.ndarray:
    match = _NAMED.match(text)
    name = "" if match is None else match[1].strip('"')
    data = resources.get(name)
    if data is None:
        raise InputError(
            f"{where}: the values of {shown(name)} are not in the file", hint="print it with its constants"
        )
    count = int(np.prod(shape, dtype=object))
    if len(data) != count * of.itemsize:
        raise InputError(f"{where}: {shown(name)} has {len(data)} bytes, its type takes {count * of.itemsize}")
    return np.frombuffer(data, of).reshape(shape)


__all__ = ["DIALECTS", "HloBlock", "HloModule", "HloOp", "HloType", "read_module"]
