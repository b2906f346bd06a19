"""An ONNX model as a JAX function of its weights and its inputs.

`load_model` reads and checks the file, binds the symbolic dimensions, and splits the stored values in two.  *Static*
values (integers that make up shapes, scalars, whatever an op needs at conversion) become part of the program.
*Parameters* are all others: the weights, frozen, under their names in the file.  The function is then traced once on
abstract values, so that a model that cannot be converted is refused here, by name of node and op.

64-bit types are kept as ONNX states them: tracing happens with x64 enabled, whatever the caller has set, and no
64-bit value enters a program whose ONNX types are 32-bit.
"""

from __future__ import annotations

import inspect
import itertools
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
from jax import export
from jax.errors import JaxRuntimeError
from jax.export import is_symbolic_dim

from superopt.arrays.placing import owned
from superopt.errors import ArgumentError, InputError, ModelFileError
from superopt.files.reading import converting, shown
from superopt.foreign.onnx_calls import HostPart
from superopt.frontends.jax.sizes import FUNCTIONS, dimension
from superopt.frontends.onnx import ops as onnx_ops  # noqa: F401  (importing it fills the op table)
from superopt.frontends.onnx.data import (
    DataFolder,
    Within,
    check_dims,
    is_float,
    numpy_dtype,
    sparse_array,
    tensor_array,
)
from superopt.frontends.onnx.eval import (
    FOLD_LIMIT,
    TABLE,
    ModelContext,
    Scope,
    StaticValueError,
    Work,
    domain_of,
    halved,
    run_nodes,
)
from superopt.frontends.onnx.host import Heads, HostInput, in_program, split_outputs
from superopt.frontends.onnx.read import (
    check_model,
    function_table,
    nested,
    opsets,
    ordered,
    parse_model,
    read_model,
    reads,
)
from superopt.frontends.onnx.schema import attribute
from superopt.frontends.symbolic.known import live
from superopt.ir.index import Poly
from superopt.machine.fallback import cause_of_run
from superopt.machine.jitting import jax_jit

MAX_STATIC_INTS = 1024
MAX_EXAMPLE_BYTES = 2**31  # a file of a few bytes can declare inputs of any size
# element types of stored tensors that graphs lack, and the types that carry their values
CARRIER = {
    "int4": np.dtype(np.int8),
    "uint4": np.dtype(np.uint8),
    "int2": np.dtype(np.int8),
    "uint2": np.dtype(np.uint8),
} | {
    name: np.dtype(ml_dtypes.bfloat16)
    for name in (
        "float4_e2m1fn",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
}
_BIND = "give its value at conversion: load_model(path, values={name: value})"
# ops through which such a value only moves, and ops that ignore its type
_MOVES = frozenset({"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Split"})
_WIDENS = {"DequantizeLinear": (0, 2), "Cast": (0,)}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and dtype of an input or output of a model; the dtype of strings is `object`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A model ready to be traced.

    Attributes:
        name: the file's name, or the graph's.
        fn: `fn(params, *taken)` returns the tuple of outputs; traceable by JAX, best under `jax.enable_x64(True)`.
        params: weights by name, as the file stores them; 2-, 4- and 8-bit numbers without a dtype in graphs are in a
            type that contains them (`CARRIER`).
        inputs: the arguments, in call order.
        outputs: the results.
        opset: version of the standard operator set.
        op_counts: number of occurrences of each operator in the file.
        graph: the graph as read; `onnx_weights` finds there how each weight is used.
        taken: the arguments of `fn`: the inputs that are numbers, and the results of `head`.
        head: computation on the host from the inputs, where there are strings among them.
        tail: computation on the host from the results of `fn`, where an output has no fixed shape or type.
        symbols: sizes that were left symbolic, by their names in `dims`.
        values: takes the arguments of `fn`, and returns the outputs of the graph's nodes, by name.
        singles: whether float16 is computed in float32.
    """

    name: str
    fn: Callable[..., tuple[Any, ...]]
    params: Mapping[str, np.ndarray]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    op_counts: Mapping[str, int]
    graph: onnx.GraphProto
    taken: tuple[TensorInfo, ...]
    values: Callable[..., dict[str, Any]]
    head: HostPart | None = None
    tail: HostPart | None = None
    symbols: Mapping[str, Any] = field(default_factory=dict[str, Any])
    singles: bool = False

    def with_params(self, params: Mapping[str, np.ndarray]) -> OnnxModel:
        """The same model with other weights of the same shapes and dtypes.

        Raises:
            ArgumentError: a weight is missing or of another type.
        """
        for name, old in self.params.items():
            new = params.get(name)
            if new is None or new.shape != old.shape or new.dtype != old.dtype:
                got = "nothing" if new is None else f"{new.dtype}{list(new.shape)}"
                raise ArgumentError(f"weight {name!r} needs {old.dtype}{list(old.shape)}, got {got}")
        return replace(self, params={name: params[name] for name in self.params})

    def example_inputs(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Random arguments: normal floats, integers 0 and 1, strings `a` and `b`.

        Raises:
            ArgumentError: they would have more than `MAX_EXAMPLE_BYTES`.
        """
        wanted = sum(math.prod(i.shape) * np.dtype(i.dtype).itemsize for i in self.inputs)
        if wanted > MAX_EXAMPLE_BYTES:
            raise ArgumentError(
                f"random inputs of {self.name} would have {wanted / 2**30:.3g} GiB", hint="pass example inputs"
            )
        rng = np.random.default_rng([seed, 7])
        made: list[np.ndarray] = []
        for info in self.inputs:
            dtype = np.dtype(info.dtype)
            if dtype.kind == "O":
                made.append(np.asarray(rng.choice(["a", "b"], info.shape)).astype(object))
                continue
            noise = rng.standard_normal(info.shape, np.float32) if is_float(dtype) else rng.integers(0, 2, info.shape)
            made.append(np.asarray(noise).astype(dtype))
        return tuple(made)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the model under `jax.jit` with its own weights.

        Raises:
            ArgumentError: the arguments do not fit.
            InputError: an operator that runs on the host fails.
        """
        ready = check_arguments(self, arguments)
        taken = ready if self.head is None else self.head(ready)
        try:
            with jax.enable_x64(True):
                results = jax.block_until_ready(jax_jit(self.fn)(dict(self.params), *taken))
        except JaxRuntimeError as error:
            raise InputError(f"{self.name} cannot be run: {cause_of_run(type(error).__name__, str(error))}") from error
        return results if self.tail is None else self.tail([*results, *ready])


def check_arguments(model: OnnxModel, arguments: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """The arguments as arrays of the types that the model states (int32 is accepted for int64).

    Raises:
        ArgumentError: number, shape or dtype of an argument does not fit.
    """
    if len(arguments) != len(model.inputs):
        wanted = ", ".join(f"{i.name}: {i.dtype}{list(i.shape)}" for i in model.inputs)
        raise ArgumentError(f"{model.name} takes {len(model.inputs)} inputs, got {len(arguments)}", hint=wanted)
    ready: list[np.ndarray] = []
    for info, given in zip(model.inputs, arguments, strict=True):
        array = np.asarray(given)
        if info.dtype == "object" and array.dtype.kind in "OUST" and array.shape == info.shape:
            ready.append(array.astype(object))
            continue
        if array.dtype.kind in "OUST" and info.dtype != "object":
            raise ArgumentError(f"input {info.name!r} is not an array of numbers: {type(given).__name__}")
        integers = array.dtype.kind == "i" and info.dtype in ("int32", "int64")
        if array.shape != info.shape or (array.dtype != np.dtype(info.dtype) and not integers):
            raise ArgumentError(
                f"input {info.name!r} needs {info.dtype}{list(info.shape)}, got {array.dtype}{list(array.shape)}"
            )
        if integers and array.dtype != np.dtype(info.dtype):
            limits = np.iinfo(info.dtype)
            if array.size and (array.min() < limits.min or array.max() > limits.max):
                raise ArgumentError(f"input {info.name!r} has values that {info.dtype} cannot hold")
            array = array.astype(info.dtype)
        ready.append(array)
    return tuple(ready)


def load_model(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    data_root: str | Path | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
    own: bool = True,
    like: Sequence[Any] = (),
    singles: bool = False,
) -> OnnxModel:
    """Read an ONNX model and convert it to a JAX function.

    Args:
        source: a file, its bytes, or a message.
        dims: sizes of symbolic dimensions by their name; `"input:axis"` names one that has none.
        values: inputs to bind to constants (an input that the program's shapes depend on).
        data_root: a folder inside which symbolic links to external data are followed (that of a cache that keeps
            files under their digests); None follows none.
        operators: functions for operators that are not known here, by `domain.Name`.
        own: False leaves large weights in the file as views, so that the file must not change.
        like: example inputs in order; their shapes give symbolic dimensions that `dims` does not.
        singles: compute float16 in float32, as ONNX Runtime does on CPUs: nothing is rounded to float16 but at `Cast`
            and where values leave the program, and nothing overflows in between.  Models that quantise, and those with
            `operators`, are left alone.

    Raises:
        ModelFileError: the file cannot be read (also `UnsupportedOpsetError`, `ExternalDataError`).
        ArgumentError: `dims` or `values` do not fit.
        InputError: an operator is not supported, or operands do not fit it.
    """
    name = _name_of(source)
    with converting(name):
        model, context, within = _read(source, data_root, own)
        single = singles and not operators and _is_plain(model)
        context = replace(context, operators=dict(operators or {}), singles=single)
        return _assemble(model, context, within, (dict(dims or {}), like, {}), dict(values or {}))


def load_symbolic(source: str | Path | bytes | onnx.ModelProto, dims: Mapping[str, int] | None = None) -> OnnxModel:
    """Read an ONNX model at symbolic sizes (of `jax.export`), as the types of its inputs show.

    Args:
        source: a file, its bytes, or a message.
        dims: sizes of the symbolic dimensions that are not left symbolic, as in `load_model`.

    Raises: as `load_model`.
    """
    with converting(_name_of(source)):
        model, context, within = _read(source, None, True)
        sizes = dict(dims or {})
        return _assemble(model, context, within, (sizes, (), _open_sizes(model.graph, sizes)), {})


def _name_of(source: str | Path | bytes | onnx.ModelProto) -> str:
    return shown(Path(source).name) if isinstance(source, str | Path) else "model"


def _read(
    source: str | Path | bytes | onnx.ModelProto, data_root: str | Path | None, own: bool
) -> tuple[onnx.ModelProto, ModelContext, Within | None]:
    """A checked model, the data that its scopes share, and the place of its values inside of the source."""
    name, folder, within = _name_of(source), None, None
    if isinstance(source, onnx.ModelProto):
        model, name = source, shown(source.graph.name or "model")
        check_model(model, name)
    elif isinstance(source, bytes):
        model, within = parse_model(source, name)
    else:
        model, within = read_model(source, own)
        folder = _data_folder(Path(source), data_root, own)
    return model, ModelContext(opsets(model, name), _copies(function_table(model)), folder, name), within


def _is_plain(model: onnx.ModelProto) -> bool:
    """Whether a model has tensors of stated types as outputs, and quantises nothing."""
    tensors = all(o.type.tensor_type.elem_type for o in model.graph.output)
    return tensors and not any("Quantize" in node.op_type or "QLinear" in node.op_type for node in _every(model))


def symbolic_dimensions(source: str | Path | bytes | onnx.ModelProto) -> dict[str, str]:
    """Map names that `dims` takes to the dimension: each has its own name, and one with its input and axis.

    Raises:
        ModelFileError: the file cannot be read.
    """
    name = shown(Path(source).name) if isinstance(source, str | Path) else "model"
    with converting(name):
        if isinstance(source, onnx.ModelProto):
            model = source
        else:
            model = (parse_model(source, name) if isinstance(source, bytes) else read_model(source, False))[0]
        stored = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
        symbols = _symbols(model.graph, stored)
    return symbols


def _data_folder(path: Path, root: str | Path | None, own: bool) -> DataFolder:
    if root is not None and not Path(root).is_dir():
        raise ArgumentError(
            f"data_root {str(root)!r} is not a folder", hint="give the folder that holds what the links lead to"
        )
    return DataFolder(path.absolute().parent, path.resolve().parent, None if root is None else Path(root), own)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a model before it is traced."""

    context: ModelContext
    nodes: list[onnx.NodeProto]
    inputs: list[TensorInfo]
    static: dict[str, Any]
    params: dict[str, np.ndarray]
    outputs: list[str]
    narrow: dict[str, str]
    size: int
    from_host: tuple[TensorInfo, ...] | None = None
    halves: Sequence[Any] = ()  # the type that an output is rounded to; None for others

    @property
    def taken(self) -> tuple[TensorInfo, ...]:
        """The arguments of the function: inputs that are numbers, and values of the host, once these are known."""
        return (*(i for i in self.inputs if i.dtype != "object"), *(self.from_host or ()))


def _assemble(
    model: onnx.ModelProto,
    context: ModelContext,
    within: Within | None,
    sizes: tuple[dict[str, int], Sequence[Any], Mapping[str, Any]],
    values: dict[str, Any],
) -> OnnxModel:
    """Return a model as a function of its weights: tensors read, constants folded, types of results traced."""
    graph, folder, name = model.graph, context.folder, context.name
    places = (folder, within)
    stored: dict[str, np.ndarray] = {}
    for tensor in graph.initializer:
        stored[tensor.name] = tensor_array(tensor, folder, f"initializer {tensor.name!r}", within)
    for sparse in graph.sparse_initializer:
        stored[sparse.values.name] = sparse_array(sparse, folder, f"initializer {sparse.values.name!r}")
    graph = _without_values(graph)
    inputs = _inputs(graph, stored, sizes[:2], sizes[2], values)
    static: dict[str, Any] = {key: _bound(value, key) for key, value in values.items()}
    params: dict[str, np.ndarray] = {}
    nodes = ordered(graph.node, name)
    kept = _fold_constants(nodes, stored, *places)
    wanted = {v for node in kept for v in reads(node)} | {o.name for o in graph.output}
    for key in _only_widened(kept, stored, {o.name for o in graph.output}):
        stored[key] = owned(stored[key]).astype(CARRIER[stored[key].dtype.name])
    narrow: dict[str, str] = {}
    grids = _grids(kept)
    for key, array in stored.items():
        if key in wanted and key not in static:
            if _is_static(array) and not (key in grids and array.any()):
                static[key] = owned(array)
                continue
            if array.dtype.name in CARRIER:
                narrow[key] = array.dtype.name
                array = owned(array).astype(CARRIER[array.dtype.name])
            params[key] = array
    context = replace(context, parameters=params.keys())
    size = sum(1 for _ in _every(model))
    parts = _Parts(context, kept, inputs, static, params, [o.name for o in graph.output], narrow, size)
    if context.singles:
        half = onnx.TensorProto.FLOAT16
        halves = [np.float16 if o.type.tensor_type.elem_type == half else None for o in graph.output]
        parts = replace(parts, halves=halves)
    outputs, parts, head, tail = _trace_types(parts)
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    infos = tuple(
        TensorInfo(o.name, tuple(t.shape), np.dtype(t.dtype).name)
        for o, t in zip(graph.output, outputs, strict=True)
        if t is not None
    )
    if folder is not None:
        folder.opened.clear()
    # the function takes its weights as arguments, and does not keep these
    parts = replace(parts, context=replace(context, parameters=frozenset(params)), params=dict.fromkeys(params))
    return OnnxModel(
        name, _function(parts), params, tuple(inputs), outputs=infos, opset=context.opsets[""], op_counts=counts,
        graph=graph, taken=parts.taken, head=head, tail=tail, symbols=sizes[2], values=_function(parts, every=True),
        singles=context.singles,
    )  # fmt: skip


def _every(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in the file, those of bodies and functions included."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in nodes:
            yield node
            yield from nested(node)


def _only_widened(nodes: Sequence[onnx.NodeProto], stored: Mapping[str, np.ndarray], outputs: set[str]) -> list[str]:
    """Stored tensors of narrow types that are only moved and then widened, so that they may be stored wide."""
    root: dict[str, str] = {key: key for key, array in stored.items() if array.dtype.name in CARRIER}
    refused = {root[name] for name in outputs & root.keys()}
    for node in nodes:
        standard = node.domain in ("", "ai.onnx")
        for i, name in enumerate(node.input):
            if name not in root:
                continue
            if standard and node.op_type in _MOVES and i == 0:
                root.update(dict.fromkeys(node.output, root[name]))
                refused |= {root[name]} if outputs & set(node.output) else set()
            elif not standard or i not in _WIDENS.get(node.op_type, ()):
                refused.add(root[name])
        for name in reads(node):
            if name in root and name not in node.input:
                refused.add(root[name])
    return [key for key in root if root[key] == key and key not in refused]


def _without_values(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A graph without the values of its initializers, which are arrays by now, so that the message can be freed."""
    lean = onnx.GraphProto(name=graph.name)
    for kind in ("node", "input", "output"):
        getattr(lean, kind).extend(getattr(graph, kind))
    for tensor in graph.initializer:
        lean.initializer.add(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    for sparse in graph.sparse_initializer:
        lean.sparse_initializer.add(dims=sparse.dims).values.name = sparse.values.name
    return lean


def _copies(
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto],
) -> dict[tuple[str, str, str], onnx.FunctionProto]:
    copies: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    for key, function in functions.items():
        copies[key] = onnx.FunctionProto()
        copies[key].CopyFrom(function)
    return copies


def _bound(value: Any, name: str) -> Any:
    """A value given for an input: an array, a sequence of arrays, or None for an absent optional."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_bound(v, name) for v in value]
    array = np.asarray(value)
    if array.dtype.kind in "UST":
        return array.astype(object)
    if array.dtype.kind == "O" and not all(isinstance(x, str | bytes) for x in array.flat):
        raise ArgumentError(f"the value given for {name!r} is not an array of numbers or strings")
    return array


def _grids(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Names of scales and zero points, read by nothing but quantisation.

    They count as weights, so that layers that differ in them alone have one kernel.
    """
    grids: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        entry = TABLE.get((domain_of(node), node.op_type))
        places = () if entry is None else entry.grids
        for i, name in enumerate(node.input):
            (grids if i in places else others).add(name)
        others.update(name for inner in nested(node) for name in inner.input)
    return grids - others


def _is_static(array: np.ndarray) -> bool:
    """Whether a stored tensor counts as part of the program rather than as a weight."""
    if array.size <= 1 or array.dtype.kind in "OUST":
        return True
    if array.dtype == np.int64:
        return array.size <= FOLD_LIMIT
    return array.dtype.name in ("int32", "bool") and array.size <= MAX_STATIC_INTS


def _inputs(
    graph: onnx.GraphProto,
    stored: Mapping[str, Any],
    given: tuple[dict[str, int], Sequence[Any]],
    symbols: Mapping[str, Any],
    values: Mapping[str, Any],
) -> list[TensorInfo]:
    """The live inputs, with every dimension known or one of the symbols."""
    dims, like = given
    for key, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"dims[{key!r}] must be a positive integer, got {size!r}")
    known = {v.name for v in graph.input}
    for key in values:
        if key not in known:
            raise ArgumentError(f"a value is given for {key!r}, which is not an input", hint=f"inputs: {_some(known)}")
    used: set[str] = set()
    inputs: list[TensorInfo] = []
    for value in graph.input:
        if value.name in stored or value.name in values:
            continue
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise InputError(
                f"input {value.name!r} is not a tensor ({kind or 'no type'}), and no argument of a program", hint=_BIND
            )
        tensor = value.type.tensor_type
        if not tensor.elem_type:
            raise ModelFileError(f"input {value.name!r} has no element type")
        dtype = numpy_dtype(tensor.elem_type, f"input {value.name!r}")
        if dtype.kind == "c":
            raise InputError(f"input {value.name!r}: element type {dtype.name} is not supported")
        if not tensor.HasField("shape"):
            raise ModelFileError(f"input {value.name!r} has no shape", hint="export the model with input shapes")
        if len(inputs) < len(like):
            dims |= _sizes_of(value, np.shape(like[len(inputs)]), dims)
        shape = tuple(_dim(value.name, i, d, dims, used, symbols) for i, d in enumerate(tensor.shape.dim))
        check_dims(tuple(n for n in shape if not is_symbolic_dim(n)), dtype, f"input {value.name!r}")
        inputs.append(TensorInfo(value.name, shape, dtype.name))
    unknown = set(dims) - used
    if unknown:
        raise ArgumentError(
            f"dims names {min(unknown)!r}, which is not a dimension of the model",
            hint=f"its dimensions: {_some(set(_symbols(graph).values()))}",
        )
    return inputs


def _dim(name: str, axis: int, dim: Any, dims: Mapping[str, int], used: set[str], symbols: Mapping[str, Any]) -> Any:
    if dim.HasField("dim_value"):
        if dim.dim_value < 0:
            raise ModelFileError(f"input {name!r} has a negative dimension: {dim.dim_value}")
        return int(dim.dim_value)
    for key in (f"{name}:{axis}", dim.dim_param):
        if key and key in dims:
            used.add(key)
            return dims[key]
    key = dim.dim_param or f"{name}:{axis}"
    if key in symbols:
        return symbols[key]
    given = f"; given are {_some(set(dims))}" if dims else ""
    raise ArgumentError(
        f"dimension {axis} of input {name!r} is symbolic ({key}){given}",
        hint=f"give its size: dims={{{key!r}: 1}}, or --dims {key}=1",
    )


def _sizes_of(value: onnx.ValueInfoProto, shape: Sequence[int], known: Mapping[str, int]) -> dict[str, int]:
    """The sizes of symbolic dimensions of an input that an example of it determines."""
    axes = value.type.tensor_type.shape.dim
    if len(axes) != len(shape):
        return {}
    keys = [(d.dim_param or f"{value.name}:{i}", f"{value.name}:{i}") for i, d in enumerate(axes)]
    return {
        key: size
        for (key, own), d, size in zip(keys, axes, shape, strict=True)
        if size and not (d.HasField("dim_value") or key in known or own in known)
    }


def _open_sizes(graph: onnx.GraphProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """A new symbolic size for each dimension of an input that has no size and is given none.

    The text of a dimension is an expression if the names in it are dimensions, too; else it is a name.
    """
    dimensions = _symbols(graph, {t.name for t in graph.initializer})
    keys = sorted(set(dimensions.values()) - set(dims))
    if not keys:
        return {}
    plain = {key: name + "_" * (name in FUNCTIONS) for key, name in zip(keys, identifiers(keys), strict=True)}
    texts = [key if _is_expression(key, plain) else plain[key] for key in keys]
    known: dict[str, Any] = dict(zip(keys, export.symbolic_shape(", ".join(texts)), strict=True))
    return known


def _is_expression(text: str, names: Mapping[str, str]) -> bool:
    """Whether a text is an expression over dimensions that have their plain names."""
    if text in names.values():
        return False
    try:
        size = dimension(text)
    except InputError:
        return False
    return isinstance(size, Poly) and all(names.get(s.name) == s.name for s in size.symbols)


def _symbols(graph: onnx.GraphProto, stored: Collection[str] = ()) -> dict[str, str]:
    """Map names of dimensions without a size to the dimension."""
    symbols: dict[str, str] = {}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim if value.name not in stored else ()):
            if not dim.HasField("dim_value"):
                own = f"{value.name}:{axis}"
                symbols |= {own: dim.dim_param or own, dim.dim_param or own: dim.dim_param or own}
    return symbols


def _some(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:8]) + (" ..." if len(shown) > 8 else "") if shown else "none"


def _fold_constants(
    nodes: Sequence[onnx.NodeProto],
    stored: dict[str, np.ndarray],
    folder: DataFolder | None,
    within: Within | None,
) -> list[onnx.NodeProto]:
    """Remove constant tensors from the graph: exporters write weights as nodes too.

    `Constant` tensors become stored ones.  A floating-point `ConstantOfShape` of a stored shape becomes a weight whose
    array is a view of one value, so that nothing is allocated.
    """
    kept: list[onnx.NodeProto] = []
    for node in nodes:
        attrs = {a.name: a for a in node.attribute}
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and "value" in attrs:
            stored[node.output[0]] = attribute(attrs["value"], folder, within)
        elif node.op_type == "ConstantOfShape" and len(node.input) == 1 and node.input[0] in stored:
            shape = owned(stored[node.input[0]])
            value = attribute(attrs["value"], folder).ravel() if "value" in attrs else np.zeros(1, np.float32)
            if value.size != 1 or value.dtype.kind in "iub" or shape.dtype != np.int64 or shape.ndim != 1:
                kept.append(node)
                continue
            sizes = tuple(int(d) for d in shape)
            check_dims(sizes, value.dtype, f"constant {node.output[0]!r}")
            stored[node.output[0]] = np.broadcast_to(value[0], sizes)
        else:
            kept.append(node)
    return kept


def _function(
    parts: _Parts, found: list[tuple[Heads, HostPart | None]] | None = None, *, every: bool = False
) -> Callable[..., Any]:
    """The model as a function of its weights and its `taken` arguments; parts left to the host are appended to `found`.

    With `every` it returns the value of each node by name.
    """
    numbers = len(parts.taken) - len(parts.from_host or ())

    def fn(params: Mapping[str, Any], *inputs: Any) -> Any:
        """Run the nodes of the model."""
        with jax.enable_x64(True):
            allowance = Work(parts.context.name, parts.size)
            heads = Heads(None if parts.from_host is None else inputs[numbers:], opset=parts.context.opsets[""])
            context = replace(parts.context, allowance=allowance, heads=heads, drawn=itertools.count())
            scope = Scope(context, parts.context.opsets)
            scope.values.update(parts.static)
            for key in parts.params:
                held = jnp.asarray(params[key])
                scope.values[key] = held.astype(parts.narrow[key]) if key in parts.narrow else held
            given = iter(inputs)
            for place, info in enumerate(parts.inputs):
                if info.dtype == "object":
                    scope.values[info.name] = HostInput(heads, place, info.shape)
                    continue
                scope.values[info.name] = jnp.asarray(next(given)).astype(info.dtype)
                heads.know(scope.values[info.name], place)
            run_nodes(parts.nodes, scope)
            if every:
                return {name: x for name in scope.producers if isinstance(x := scope.values.get(name), jax.Array)}
            outputs = [in_program(scope.get(name)) for name in parts.outputs]
            results, tail = split_outputs(halved(outputs, parts.halves))
            if found is not None:
                found.append((heads, tail))
            return tuple(map(_result, results))

    kind = inspect.Parameter.POSITIONAL_ONLY
    names = ["params", *identifiers([i.name for i in parts.taken])]
    fn.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    fn.__name__ = identifiers([parts.context.name.removesuffix(".onnx")])[0]
    return fn


def identifiers(names: Sequence[str]) -> list[str]:
    """Distinct Python identifiers close to the names (`gpu_0/data` becomes `gpu_0_data`)."""
    words: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain and not plain[0].isdigit() and not keyword.iskeyword(plain) else f"x_{plain}"
        while plain in words or plain == "params":
            plain += "_"
        words.append(plain)
    return words


def _result(value: Any) -> Any:
    if isinstance(value, list):
        return [_result(v) for v in value]
    return value if value is None else live(value)


def _trace_types(parts: _Parts) -> tuple[list[Any], _Parts, HostPart | None, HostPart | None]:
    """Types of the outputs, the function's parts, and the computations on the host before it and after it.

    Stored tensors that an op needs at conversion move from `params` to `static`.
    """
    while True:
        inputs = [jax.ShapeDtypeStruct(i.shape, np.dtype(i.dtype)) for i in parts.taken]
        weights = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in parts.params.items()}
        steps: list[tuple[Heads, HostPart | None]] = []
        try:
            with jax.enable_x64(True):
                traced = jax.eval_shape(_function(parts, steps), weights, *inputs)
            ((heads, tail),) = steps
            numbers = [place for place, info in enumerate(parts.inputs) if info.dtype != "object"]
            from_host = tuple(
                TensorInfo(d.source.node.output[d.index], tuple(t.shape), np.dtype(t.dtype).name)
                for d, t in zip(heads.noted, heads.types, strict=True)
            )
            types = [t if hasattr(t, "shape") else None for t in traced]
            if tail is not None:
                types = [None if host else types[i] for host, i in tail.places]
            hosted = heads.noted or len(numbers) < len(parts.inputs)
            head = heads.part(numbers, len(parts.inputs)) if hosted else None
            return types, replace(parts, from_host=from_host), head, tail
        except StaticValueError as error:
            if not error.sources or not error.sources <= set(parts.params):
                raise
            for name in error.sources:
                stored = owned(parts.params.pop(name))
                parts.static[name] = stored.astype(np.dtype(parts.narrow.get(name, stored.dtype)))
        except RecursionError as error:
            raise InputError(f"{parts.context.name}: subgraphs are nested too deep") from error
