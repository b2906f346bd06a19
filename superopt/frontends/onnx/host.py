"""Nodes that have no form in JAX, run on the host by ONNX's reference evaluator.

Some operators work on strings or images, some give as many results as their data say.  Such a node is not evaluated
where it stands: its results are `Deferred` values, and so are those of every node that reads one.  As soon as shape
inference knows the type of a deferred value (a `Size` or a `ReduceSum` behind a `NonZero`), the nodes that lead to it
become one call of the host inside the program.  It is a primitive whose parameters are the bytes of an ONNX model.
What is still deferred at the outputs of the model is computed after the program, from the values that the program gives
and the arguments of the call.  What is made of strings that a call gives is computed before the program, which takes it
as an argument (`Heads`).  Where everything that a node reads is known, it is run at conversion.

What runs them is `superopt.foreign.onnx_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper, numpy_helper

from superopt.errors import FileLimitError, InputError
from superopt.foreign.onnx_calls import PREFIX, HostPart, evaluate, host_call, known_types
from superopt.frontends.onnx.read import free_names, label, subgraphs
from superopt.frontends.symbolic.known import SizeArray
from superopt.ir.types import DTYPES

MAX_RESULT_BYTES = 2**30  # of what the host computes at conversion


@dataclass(frozen=True, slots=True, eq=False)
class HostNode:
    """A node to be run on the host.

    Attributes:
        node: as in the model.
        operands: what its inputs are.
        captured: what its bodies read from outside.
        opsets: versions of the operator sets around it.
        functions: those of the model.
    """

    node: onnx.NodeProto
    operands: tuple[Any, ...]
    captured: Mapping[str, Any]
    opsets: Mapping[str, int]
    functions: tuple[onnx.FunctionProto, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Deferred:
    """One result of a node of the host.

    Attributes:
        source: the node.
        index: of the result.
        value: the result of a call of the host in the program, where its type is known.
        before: whether that is computed before the program.
    """

    source: HostNode
    index: int
    value: Any = None
    before: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class HostInput:
    """Strings that a call gives.

    Attributes:
        heads: what is computed from them before the program.
        place: among the inputs of the model.
        shape: theirs.
    """

    heads: Heads
    place: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """That of strings."""
        return np.dtype(object)


@dataclass(slots=True)
class Heads:
    """The values that a program takes from the host, in the order in which its trace asks for them.

    Attributes:
        given: those values; None in a trace that finds out which there are.
        places: of the inputs of the model, by the identity of their values in this trace.
        kept: these values, so that their identities stay theirs.
        noted: what was asked for.
        types: of that.
        key: two random words of the call, where they were asked for.
        opset: of the standard operators.
    """

    given: Sequence[Any] | None = None
    places: dict[int, int] = field(default_factory=dict[int, int])
    kept: list[Any] = field(default_factory=list[Any])
    noted: list[Deferred] = field(default_factory=list["Deferred"])
    types: list[jax.ShapeDtypeStruct] = field(default_factory=list[jax.ShapeDtypeStruct])
    key: Any = None
    opset: int = 1

    def random_key(self) -> Any:
        """Two random words, others at each call."""
        if self.key is None:
            words = helper.make_node("RandomUniform", [], ["words"], shape=[2], high=float(2**24))
            cast = helper.make_node("Cast", ["words"], ["random_key"], to=onnx.TensorProto.UINT32)
            opsets = {"": self.opset}
            drawn = Deferred(HostNode(words, (), {}, opsets), 0)
            begin = len(self.noted)
            self.noted.append(Deferred(HostNode(cast, (drawn,), {}, opsets), 0))
            self.types.append(jax.ShapeDtypeStruct((2,), np.uint32))
            self.key = np.zeros(2, np.uint32) if self.given is None else self.given[begin]
        return self.key

    def know(self, value: Any, place: int) -> None:
        """Note the value of an input of the model."""
        self.places[id(value)] = place
        self.kept.append(value)

    def give(self, values: Sequence[Deferred], types: Sequence[jax.ShapeDtypeStruct], live: Sequence[Any]) -> list[Any]:
        """The values in the program of what the host makes of these live ones.

        Raises:
            HostValueError: it reads what the program computes.
        """
        if not all(isinstance(x, HostInput) or id(x) in self.places for x in live):
            node = values[0].source.node
            raise HostValueError(f"{label(node)} reads strings of the call together with values that are computed")
        begin = len(self.noted)
        self.noted += values
        self.types += types
        if self.given is None:
            return [jnp.zeros(t.shape, t.dtype) for t in types]
        return list(self.given[begin:][: len(types)])

    def part(self, numbers: Sequence[int], inputs: int) -> HostPart:
        """The part before the program, which takes those inputs of the model that are numbers and the rest."""
        model, live = _island(self.noted)
        model.ir_version = min(model.ir_version, onnx.IR_VERSION)
        reads = tuple(x.place if isinstance(x, HostInput) else self.places[id(x)] for x in live)
        places = (*((False, i) for i in numbers), *((True, i) for i in range(len(self.noted))))
        ops = Counter(f"{PREFIX}{n.op_type}" for n in model.graph.node)
        return HostPart(model.SerializeToString(deterministic=True), places, reads, inputs, dict(ops))


class HostValueError(InputError):
    """A value that only the host has, where the program needs one of its own."""

    code = "SO213"


@dataclass(slots=True)
class _HostPart:
    """A small model under construction: the nodes of the host that lead to some values."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    live: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # ids in `names` stay valid while their objects live
    opsets: dict[str, int] = field(default_factory=dict)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)

    def name(self, value: Any) -> str:
        """The name of a value that is no result of a node yet to come."""
        if value is None:
            return ""
        if isinstance(value, Deferred):
            return f"{self.names[id(value.source)]}_{value.index}"
        if id(value) in self.names:
            return self.names[id(value)]
        fresh = f"v{len(self.names)}"
        self.names[id(value)] = fresh
        self.kept.append(value)
        if isinstance(value, list):
            parts = [self.name(v) for v in value]
            op = helper.make_node("SequenceConstruct", parts, [fresh]) if parts else None
            self.nodes.append(op or helper.make_node("SequenceEmpty", [], [fresh]))
        elif isinstance(value, np.ndarray):
            self.stored.append(numpy_helper.from_array(value, fresh))
        else:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
            self.inputs.append(helper.make_tensor_value_info(fresh, kind, value.shape))
            self.live.append(value)
        return fresh

    def add(self, source: HostNode) -> None:
        """Add a node whose operands have names."""
        for domain, version in source.opsets.items():
            if self.opsets.setdefault(domain, version) != version:
                raise InputError(f"{label(source.node)} stands among nodes of another operator set")
        self.functions.update({f"{f.domain}.{f.name}.{f.overload}": f for f in source.functions})
        node = onnx.NodeProto()
        node.CopyFrom(source.node)
        del node.input[:], node.output[:]
        node.input.extend(self.name(v) for v in source.operands)
        outer = {name: self.name(value) for name, value in source.captured.items()}
        for graph in subgraphs(node):
            _rename(graph, outer)
        own = f"n{len(self.names)}"
        self.names[id(source)] = own
        self.kept.append(source)
        node.output.extend(f"{own}_{i}" if name else "" for i, name in enumerate(source.node.output))
        self.nodes.append(node)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The model that gives these values."""
        wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "host", self.inputs, wanted, self.stored)
        imports = [helper.make_opsetid(domain, version) for domain, version in sorted(self.opsets.items())]
        return helper.make_model(graph, opset_imports=imports, functions=list(self.functions.values()))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename what a body reads from outside."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {o for node in graph.node for o in node.output}
    names = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        for inner in subgraphs(node):
            _rename(inner, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def _island(values: Sequence[Any]) -> tuple[onnx.ModelProto, list[Any]]:
    """The model that gives some deferred values, and the live values that it reads."""
    island = _HostPart()
    done: set[int] = set()
    work: list[tuple[HostNode, bool]] = [(v.source, False) for v in reversed(values) if isinstance(v, Deferred)]
    while work:
        source, ready = work.pop()
        if id(source) in done:
            continue
        if ready:
            done.add(id(source))
            island.add(source)
            continue
        work.append((source, True))
        for operand in (*source.operands, *source.captured.values()):
            parts = operand if isinstance(operand, list) else [operand]
            work += [(p.source, False) for p in parts if isinstance(p, Deferred)]
    outputs = [island.name(v) for v in values]
    return island.model(outputs), island.live


def holds_host_values(value: Any) -> bool:
    """Whether JAX cannot hold the value: deferred, strings, or a sequence of such."""
    if isinstance(value, list):
        return any(map(holds_host_values, value))
    return isinstance(value, Deferred | HostInput) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "OUST" and not isinstance(value, SizeArray)
    )


def in_program(value: Any) -> Any:
    """The value with those of the host replaced by calls of the host, where their types are known."""
    if isinstance(value, list):
        return [in_program(v) for v in value]
    return value.value if isinstance(value, Deferred) and value.value is not None else value


def is_known(value: Any) -> bool:
    """Whether the value is known at conversion."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return value is None or isinstance(value, np.ndarray)


def run_on_host(source: HostNode) -> list[Any]:
    """Results of a node: known ones where all that it reads is, else deferred ones.

    Raises:
        HostValueError: the reference evaluator does not have the operator.
        InputError: it does not accept the operands.
    """
    outside = {name: _taken(v) for name, v in source.captured.items()}
    source = replace(source, operands=tuple(map(_taken, source.operands)), captured=outside)
    deferred = [Deferred(source, i) if name else None for i, name in enumerate(source.node.output)]
    wanted = [d for d in deferred if d is not None]
    model, _ = _island(wanted)
    data = model.SerializeToString(deterministic=True)
    if all(is_known(v) for v in (*source.operands, *source.captured.values())):
        results = iter(evaluate(data, ()))
        return [None if d is None else _plain(next(results), source.node) for d in deferred]
    try:
        known = iter(known_types(data))
    except FileLimitError:
        raise
    except InputError as error:
        raise HostValueError(
            f"{label(source.node)} has no implementation here, and none in ONNX's reference evaluator",
            hint='give one to load_model: operators={"domain.Name": function}',
        ) from error
    types = [None if d is None else _type(next(known)) for d in deferred]
    ready = [d for d, t in zip(deferred, types, strict=True) if d is not None and t is not None]
    values, before = _called(ready, [t for t in types if t is not None]) if ready else ([], False)
    made = iter(values)
    return [
        d if d is None or t is None else replace(d, value=next(made), before=before)
        for d, t in zip(deferred, types, strict=True)
    ]


def _taken(value: Any) -> Any:
    """A value with those that are computed before the program as arguments of it."""
    if isinstance(value, list):
        return [_taken(v) for v in value]
    return value.value if isinstance(value, Deferred) and value.before else value


def _plain(value: Any, node: onnx.NodeProto) -> Any:
    if isinstance(value, list):
        return [_plain(v, node) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    if array.nbytes > MAX_RESULT_BYTES:
        raise InputError(f"{label(node)}: a result of shape {list(array.shape)} is too large")
    return array


def _type(kind: tuple[tuple[int, ...], int] | None) -> jax.ShapeDtypeStruct | None:
    """The type of a value, where it is a tensor of numbers that a program can hold."""
    if kind is None:
        return None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind[1]))
    return jax.ShapeDtypeStruct(kind[0], dtype) if dtype.name in DTYPES else None


# ---- calls inside of programs


def _called(values: Sequence[Deferred], types: Sequence[jax.ShapeDtypeStruct]) -> tuple[list[Any], bool]:
    """The values in the program, and whether they are computed before it."""
    model, live = _island(values)
    for x in live:
        if isinstance(x, HostInput):
            return x.heads.give(values, types, live), True
    ops = sorted({n.op_type for n in model.graph.node})
    name = f"{PREFIX}{values[0].source.node.op_type}" if len(ops) == 1 else f"{PREFIX}{'+'.join(ops)[:60]}"
    results = tuple((tuple(t.shape), np.dtype(t.dtype).name) for t in types)
    data = model.SerializeToString(deterministic=True)
    return host_call(name, data, results, [jnp.asarray(x) for x in live]), False


def split_outputs(values: Sequence[Any]) -> tuple[list[Any], HostPart | None]:
    """Results of the program, and the part on the host that reads them and strings of the call.

    Args:
        values: the outputs of the model as its nodes give them.
    """
    if not any(map(holds_host_values, values)):
        return list(values), None
    hosted = [v for v in values if holds_host_values(v)]
    flat = [v for v in values if not holds_host_values(v)]
    model, live = _island(hosted)
    model.ir_version = min(model.ir_version, onnx.IR_VERSION)
    places: list[tuple[bool, int]] = []
    for value in values:
        host = holds_host_values(value)
        places.append((host, sum(h == host for h, _ in places)))
    results = [*flat, *(x for x in live if not isinstance(x, HostInput))]
    computed = iter(range(len(flat), len(results)))
    reads = tuple(len(results) + x.place if isinstance(x, HostInput) else next(computed) for x in live)
    ops = Counter(f"{PREFIX}{n.op_type}" for n in model.graph.node)
    data = model.SerializeToString(deterministic=True)
    takes = max((len(results), *(i + 1 for i in reads)))
    return results, HostPart(data, tuple(places), reads, takes, dict(ops))


def captured(node: onnx.NodeProto) -> set[str]:
    """Names that the bodies of a node read from outside."""
    return {name for graph in subgraphs(node) for name in free_names(graph)}
