"""Reading an ONNX file: from bytes to a checked `ModelProto`, or one typed error.

Nothing of a file is trusted.  Its first bytes must not be those of another format (pickles are named and refused), and
it must parse.  Its opset and operator sets must be known.  Node and value names must be defined once and before use
(nodes are put in topological order; a cycle is refused), and function bodies must not expand without bound.  Tensors
are checked in `onnx_data`, types and shapes of nodes where they are traced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import defs

from superopt.arrays.placing import FileBytes, ShortenedError, mapped
from superopt.errors import InputError, ModelFileError, UnsupportedOpsetError
from superopt.files.reading import LIMITS, plain_file, shown
from superopt.frontends.onnx.data import Within
from superopt.frontends.onnx.wire import lean

MIN_OPSET = 7
MAX_NODES = LIMITS.nodes
MOST_EXPANDED, EXPANDED_PER_NODE = 4000, 50  # after expansion of the model's own functions; per node of the file
MAX_DEPTH = 40
MAX_NAME = 1000  # exporters write scopes of a few hundred characters
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
_PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a program that superopt saved, a PyTorch or a NumPy file?)"),
    (b"\x80\x02", "a pickle"), (b"\x80\x03", "a pickle"), (b"\x80\x04", "a pickle"), (b"\x80\x05", "a pickle"),
    (b"\x93NUMPY", "a NumPy file"), (b"\x89HDF\r\n", "an HDF5 file (Keras?)"), (b"\x7fELF", "a program"),
    (b"GGUF", "a GGUF file"), (b"ML\xefR", "a StableHLO bytecode file"), (b"{", "a JSON file"),
    (b"\x1f\x8b", "a gzip archive"), (b"<", "an XML or HTML file"), (b"version https://git-lfs", "a Git LFS pointer"),
)  # fmt: skip
_EXPORT_HINT = "pickle-based files are never opened; export to ONNX first (torch.onnx.export for PyTorch)"


def read_model(path: str | Path, own: bool = True) -> tuple[onnx.ModelProto, Within | None]:
    """The checked model of a file, and the file's bytes where large tensors were left in them.

    Args:
        path: the file.
        own: whether tensors need memory of their own; else they are views of the file.

    Raises:
        ModelFileError: the file cannot be read as an ONNX model.
        UnsupportedOpsetError: its opset is outside the supported range.
    """
    path = Path(path)
    name = shown(path.name)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise ModelFileError(f"{name} is a {shown(path.suffix)} file, not an ONNX model", hint=_EXPORT_HINT)
    try:
        with plain_file(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size >= 2**31:
                raise ModelFileError(
                    f"{name} has {size / 2**30:.1f} GiB; an ONNX file is at most 2 GiB",
                    hint="save the weights as external data",
                )
            data = mapped(handle.fileno())
        return parse_model(data, name, own)
    except ModelFileError:
        raise
    except ShortenedError as error:
        raise ModelFileError(f"{name} was shortened while it was read") from error
    except InputError as error:
        raise ModelFileError(f"model file {error.args[0]}") from error
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror}") from error


def parse_model(data: bytes | np.ndarray, name: str, own: bool = False) -> tuple[onnx.ModelProto, Within | None]:
    """The checked model in the bytes of a file, and these bytes where large tensors were left in them.

    Raises:
        ModelFileError: as `read_model`.
    """
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    whole = memoryview(data) if isinstance(data, bytes) else FileBytes(data)
    if not raw.size:
        raise ModelFileError(f"{name} is empty")
    first = bytes(whole[:64])
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            raise ModelFileError(f"{name} is {kind}, not an ONNX model", hint=_EXPORT_HINT)
    model = onnx.ModelProto()
    message, place = lean(whole)
    try:
        model.ParseFromString(bytes(message))
    except (DecodeError, RuntimeError, ValueError) as error:
        raise ModelFileError(f"{name} is truncated or not an ONNX model") from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelFileError(f"{name} is truncated or not an ONNX model: it holds no graph")
    check_model(model, name)
    return model, Within(place, raw, own) if place else None


def check_model(model: onnx.ModelProto, name: str) -> None:
    """Refuse a model whose versions or structure cannot be accepted.

    Raises:
        ModelFileError: its structure is not accepted (names, order, size).
        UnsupportedOpsetError: its versions are not accepted.
    """
    if model.ir_version > onnx.IR_VERSION:
        raise ModelFileError(
            f"{name} has IR version {model.ir_version}; onnx {onnx.__version__} reads up to {onnx.IR_VERSION}",
            hint="install a newer onnx package, or export with an older IR version",
        )
    opsets(model, name)
    functions = function_table(model)
    _check_size(model.graph, functions, name)
    _check_text(model, name)
    check_names(model.graph, set(), name)


def _check_text(model: onnx.ModelProto, name: str) -> None:
    """Refuse names that are not UTF-8 (protobuf returns them as bytes), or too long for a message."""
    work = [model.graph]
    texts: list[object] = []
    bodies = [model.graph.node, *(f.node for f in model.functions)]
    for function in model.functions:
        texts += [function.name, function.domain, function.overload, *function.input, *function.output]
    for nodes in bodies:
        for node in nodes:
            work += subgraphs(node)
    while work:
        graph = work.pop()
        texts += [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
        for value in (*graph.input, *graph.output):
            texts += [value.name, *(d.dim_param for d in value.type.tensor_type.shape.dim)]
        bodies.append(graph.node)
        if graph is not model.graph:
            for node in graph.node:
                work += subgraphs(node)
    for nodes in bodies:
        for node in nodes:
            texts += [node.op_type, node.domain, node.name, node.overload, *node.input, *node.output]
            texts += [t for a in node.attribute for t in (a.name, a.ref_attr_name)]
    texts += [model.graph.name, *(o.domain for o in model.opset_import)]
    if not all(isinstance(text, str) for text in texts):
        raise ModelFileError(f"{name} is damaged: a name in it is not text")
    longest = max((len(str(text)) for text in texts), default=0)
    if longest > MAX_NAME:
        raise ModelFileError(f"{name} has a name of {longest} characters; at most {MAX_NAME} are accepted")


def opsets(model: onnx.ModelProto, name: str) -> dict[str, int]:
    """Operator set versions by domain ("" for the standard one).

    Raises:
        UnsupportedOpsetError: the standard operator set is missing, older than 7 or newer than the onnx package.
    """
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        versions[domain] = max(int(entry.version), versions.get(domain, 0))
    if "" not in versions:
        if any(node.domain in ("", "ai.onnx") for node in model.graph.node) or not versions:
            raise UnsupportedOpsetError(f"{name} does not say which ONNX opset it uses")
        versions[""] = defs.onnx_opset_version()
    newest = defs.onnx_opset_version()
    if not MIN_OPSET <= versions[""] <= newest:
        raise UnsupportedOpsetError(
            f"{name} uses ONNX opset {versions['']}; supported are {MIN_OPSET} to {newest}",
            hint="convert it with onnx.version_converter"
            if versions[""] < MIN_OPSET
            else "install a newer onnx package",
        )
    return versions


def function_table(model: onnx.ModelProto) -> dict[tuple[str, str, str], onnx.FunctionProto]:
    """The model's own functions by (domain, name, overload)."""
    return {(f.domain, f.name, f.overload): f for f in model.functions}


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Graphs among the attributes of a node."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graphs.append(attribute.g)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            graphs.extend(attribute.graphs)
    return graphs


def nested(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """All nodes in the bodies of a node, in theirs too."""
    todo = subgraphs(node)
    while todo:
        for inner in todo.pop().node:
            yield inner
            todo += subgraphs(inner)


def _check_size(graph: onnx.GraphProto, functions: dict[tuple[str, str, str], onnx.FunctionProto], name: str) -> None:
    """Bound the number of nodes after expanding the model's own functions (which must not be recursive).

    A few functions that call each other a few times each can expand to any number of nodes.
    """
    sizes: dict[tuple[str, str, str], int | None] = {}
    bodies = [graph.node, *(f.node for f in functions.values())]
    stored = sum(len(nodes) + sum(1 for node in nodes for _ in nested(node)) for nodes in bodies)
    most = min(MAX_NODES, MOST_EXPANDED + EXPANDED_PER_NODE * stored)

    def of_nodes(nodes: Sequence[onnx.NodeProto], depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ModelFileError(f"{name}: subgraphs or functions are nested more than {MAX_DEPTH} deep")
        total = len(nodes)
        if total > MAX_NODES:
            raise ModelFileError(f"{name} has {total} nodes; at most {MAX_NODES} are accepted")
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions:
                total += of_function(key, depth)
            for sub in subgraphs(node):
                total += of_nodes(sub.node, depth + 1)
            if total > most:
                raise ModelFileError(f"{name} expands to more than {most} nodes: its functions call each other")
        return total

    def of_function(key: tuple[str, str, str], depth: int) -> int:
        if key not in sizes:
            sizes[key] = None
            sizes[key] = of_nodes(functions[key].node, depth + 1)
        size = sizes[key]
        if size is None:
            raise ModelFileError(f"{name}: function {key[1]!r} calls itself")
        return size

    of_nodes(graph.node, 0)


def check_names(graph: onnx.GraphProto, outer: set[str], name: str) -> None:
    """Check that every value is produced once, and read where it exists.

    Raises:
        ModelFileError: a duplicate, undefined or cyclic value.
    """
    own = [v.name for v in graph.input]
    inputs = set(own)
    if len(inputs) != len(own):
        raise ModelFileError(f"{name}: input {_duplicate(own)!r} is declared twice")
    stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    if len(set(stored)) != len(stored):
        raise ModelFileError(f"{name}: initializer {_duplicate(stored)!r} is stored twice")
    defined = inputs | set(stored)
    produced: list[str] = [o for node in graph.node for o in node.output if o]
    if len(set(produced)) != len(produced):
        raise ModelFileError(f"{name}: value {_duplicate(produced)!r} is produced twice")
    clash = defined.intersection(produced)
    if clash:
        raise ModelFileError(f"{name}: value {min(clash)!r} is produced by a node and is an input too")
    visible = outer | defined | set(produced)
    for node in graph.node:
        for value in node.input:
            if value and value not in visible:
                raise ModelFileError(f"{name}: {label(node)} reads {value!r}, which nothing produces")
    for output in graph.output:
        if output.name not in visible:
            raise ModelFileError(f"{name}: output {output.name!r} is not produced by any node")
    ordered(graph.node, name)
    for node in graph.node:
        for sub in subgraphs(node):
            check_names(sub, visible, name)


def _duplicate(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for one in names:
        if one in seen:
            return one
        seen.add(one)
    return ""


def free_names(graph: onnx.GraphProto) -> set[str]:
    """Values that a subgraph reads from outside."""
    known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    known |= {o for node in graph.node for o in node.output}
    return {v for node in graph.node for v in reads(node) if v not in known} | {
        o.name for o in graph.output if o.name not in known
    }


def reads(node: onnx.NodeProto) -> Iterable[str]:
    """Values that a node reads, through its subgraphs too."""
    yield from (v for v in node.input if v)
    for sub in subgraphs(node):
        yield from free_names(sub)


def ordered(nodes: Sequence[onnx.NodeProto], name: str) -> list[onnx.NodeProto]:
    """The nodes in an order in which every value is produced before it is read (kept where already so).

    Raises:
        ModelFileError: the nodes form a cycle.
    """
    producer = {o: i for i, node in enumerate(nodes) for o in node.output if o}
    needs = [{producer[v] for v in reads(node) if v in producer} for node in nodes]
    if all(not need or max(need) < i for i, need in enumerate(needs)):
        return list(nodes)
    users: list[list[int]] = [[] for _ in nodes]
    for i, need in enumerate(needs):
        for j in need:
            users[j].append(i)
    missing = [len(need) for need in needs]
    ready = [i for i, n in enumerate(missing) if n == 0][::-1]
    order: list[onnx.NodeProto] = []
    while ready:
        i = ready.pop()
        order.append(nodes[i])
        for j in users[i]:
            missing[j] -= 1
            if missing[j] == 0:
                ready.append(j)
    if len(order) < len(nodes):
        stuck = next(node for node, n in zip(nodes, missing, strict=True) if n > 0)
        raise ModelFileError(f"{name}: the graph has a cycle through {label(stuck)}")
    return order


def label(node: onnx.NodeProto) -> str:
    """The name of a node in messages."""
    kind = shown(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
    if node.name:
        return f"node {shown(node.name)!r} ({kind})"
    return f"{kind} node producing {shown(node.output[0])!r}" if node.output else f"{kind} node"
