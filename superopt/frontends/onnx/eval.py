"""Evaluating an ONNX graph on JAX values: the scopes of names, one node at a time.

A value is a NumPy array when it is known at conversion (shapes, axes, small integer arithmetic, scalar constants) and
a JAX array otherwise; sequences are Python lists, absent optional inputs are None.  Ops that are marked `fold` are
written against an array module `call.xp`: NumPy while all operands are known and small, `jax.numpy` otherwise, so that
shape arithmetic never enters the program.  An op that needs a value at conversion asks `call.static(value)`; when the
value is not known the error names the inputs of the model that it depends on.

Ops without an implementation that ONNX defines by a function body, and the model's own functions, are evaluated by
running that body.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.errors import InconclusiveDimensionOperation

from superopt.errors import FileLimitError, InputError, SuperoptError
from superopt.files.reading import LIMITS, Allowance, FileLimits, shown
from superopt.foreign.onnx_calls import spent_s
from superopt.frontends.onnx.data import MAX_TENSOR_BYTES, DataFolder, sparse_array, tensor_array
from superopt.frontends.onnx.host import (
    Deferred,
    Heads,
    HostNode,
    HostValueError,
    captured,
    holds_host_values,
    in_program,
    run_on_host,
)
from superopt.frontends.onnx.read import DOMAINS, label, nested, ordered, reads, subgraphs
from superopt.frontends.onnx.schema import (
    attribute,
    check_call,
    check_ranges,
    check_trips,
    defaults,
    function_body,
    schema_of,
    substitute,
)
from superopt.frontends.onnx.steps import deciding, inside
from superopt.frontends.symbolic.known import SizeArray, has_symbolic, integers, live, number
from superopt.machine.deadline import thread_s

OnnxValue = Any
FOLD_LIMIT = 2**16
EARLY_LIMIT = 256
# bodies may read live values, and random values are drawn when the program runs
RANDOM = frozenset({
    "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Dropout", "Multinomial", "Bernoulli",
})  # fmt: skip
_NEVER_EARLY = RANDOM | {"If", "Loop", "Scan"}
# sequences and optional values are passed on whatever they hold
_CARRIERS = frozenset({
    "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", "Optional",
    "OptionalHasElement", "OptionalGetElement",
})  # fmt: skip
# what may be done to symbolic sizes before the program runs, to all operands or to the first
_COUNTS_SIZES = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max", "Sum", "Concat", "Equal", "Where"})
_MOVES_SIZES = frozenset({
    "Cast", "Gather", "Identity", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
# what to do without operators that no program can have
_INSTEAD = {
    "ZipMap": "it makes dictionaries, and a program gives arrays: export without it (skl2onnx: "
    "options={'zipmap': False}), or remove the node and give what it reads, the array of probabilities",
}
MAX_FUNCTION_DEPTH = 64
MAX_STEPS = 400_000
MAX_HOST_TRIPS = 10**6  # steps of a loop on the host, each of which takes a fraction of a millisecond
# of the thread's own time, so that other work on the machine counts for nothing; a node takes some milliseconds
SECONDS, SECONDS_PER_NODE = 8.0, 0.05
# what JAX and NumPy raise on operands that do not fit
_OPERAND_ERRORS = (
    TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError, NotImplementedError, MemoryError,
    InconclusiveDimensionOperation,
)  # fmt: skip


class Work(Allowance):
    """Work that is left for the conversion of a model of so many nodes, and time, of this thread and of the host."""

    def __init__(self, what: str, nodes: int) -> None:
        super().__init__(what, 0, MAX_STEPS, FileLimits(seconds=SECONDS + SECONDS_PER_NODE * nodes))
        self.thread_until = _own_time() + self.seconds

    def spend(self, work: int = 1) -> None:
        """Use some of it.

        Raises:
            FileLimitError: there is not enough left.
        """
        self.left -= work
        if self.left < 0:
            raise FileLimitError(f"{self.what} takes more than {self.work} evaluations of nodes to convert")
        if _own_time() > self.thread_until:
            raise FileLimitError(f"{self.what} takes more than {self.seconds:.0f} s to convert")


def _own_time() -> float:
    return thread_s() + spent_s()


class UnsupportedOpError(InputError):
    """An ONNX operator that has no implementation here."""

    code = "SO213"


class StaticValueError(InputError):
    """A value that must be known at conversion and depends on inputs of the model.

    Attributes:
        sources: names of those inputs and initializers.
    """

    code = "SO214"

    def __init__(self, message: str, sources: frozenset[str]) -> None:
        names = ", ".join(sorted(sources)[:4])
        super().__init__(message, hint=f"it depends on {names}: give their values at import" if names else "")
        self.sources = sources


@dataclass(frozen=True, slots=True)
class Implementation:
    """One entry of the op table.

    Attributes:
        run: from the call and its operands to the results.
        fold: written against the array module of the call.
        sized: the size of a result may depend on values; where those are not known the host runs the node.
        attributes: defaults of an operator that the `onnx` package does not define.
        wide: it rounds, adds or multiplies more than once: numbers of half precision are computed with in single
            precision and rounded once, as ONNX Runtime does on a CPU.
        grids: positions of its scales and zero points.
    """

    run: Callable[..., Any]
    fold: bool
    sized: bool = False
    attributes: Mapping[str, Any] | None = None
    wide: bool = False
    grids: frozenset[int] = frozenset()


TABLE: dict[tuple[str, str], Implementation] = {}
OperandPart = int | tuple[Any, ...]
"""An argument of a function: an operand by its position, or a record and the positions of its fields."""


def op(
    *names: str,
    domain: str = "",
    fold: bool = False,
    sized: bool = False,
    attributes: Mapping[str, Any] | None = None,
    operands: Sequence[OperandPart] | None = None,
    wide: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into the op table under these names (see `Implementation`).

    `operands` are the parts that it takes, by ascending (first) position; without it, the operands as they come.
    """

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        called = run if operands is None else _of_parts(run, operands)
        for name in names:
            if (domain, name) in TABLE:
                raise ValueError(f"{name} has two implementations")
            TABLE[domain, name] = Implementation(called, fold, sized, attributes, wide, _grids(operands or ()))
        return run

    return enter


def _grids(parts: Sequence[OperandPart]) -> frozenset[int]:
    """Return the positions of operands that a record calls its scale or its zero point."""
    records = [(part[0], part[1:]) for part in parts if not isinstance(part, int)]
    named = [(name, at) for record, ats in records for name, at in zip(signature(record).parameters, ats, strict=True)]
    return frozenset(at for name, at in named if name in ("scale", "zero"))


def _of_parts(run: Callable[..., Any], parts: Sequence[OperandPart]) -> Callable[..., Any]:
    """The function, called with these parts of a node's operands; an absent operand inside a record is None."""
    places = [(None, (part,)) if isinstance(part, int) else (part[0], part[1:]) for part in parts]
    most = 1 + max(at for _, ats in places for at in ats)

    def called(call: Call, *operands: Any) -> Any:
        if len(operands) > most:
            raise InputError(f"{label(call.node)} takes {most} operands, and is given {len(operands)}")
        padded = (*operands, *[None] * most)
        given = [(record, [padded[at] for at in ats]) for record, ats in places if ats[0] < len(operands)]
        return run(call, *[values[0] if record is None else record(*values) for record, values in given])

    return called


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Data that all scopes of one model share.

    Attributes:
        opsets: versions of the operator sets.
        functions: of the model, by domain, name and overload.
        folder: where external data may stand.
        name: of the model.
        operators: functions of the user for operators, by `domain.Name`.
        parameters: names of the stored tensors whose values can be had at conversion.
        heads: what this evaluation takes from the host.
        drawn: numbers of the nodes of this evaluation that draw random numbers.
        allowance: what is left of the work and time of this conversion.
        singles: hold float16 values in float32 between nodes.
    """

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
    folder: DataFolder | None = None
    name: str = "model"
    operators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    parameters: Collection[str] = ()
    heads: Heads = field(default_factory=Heads)
    drawn: Iterator[int] = field(default_factory=itertools.count)
    allowance: Work = field(default_factory=lambda: Work("the model", MAX_STEPS))
    singles: bool = False


@dataclass(slots=True)
class Scope:
    """Names of one graph or function body, with the way back to the names they stand for outside.

    Attributes:
        step: number of the step, of the body of a loop.
        deciding: names of the values whose last digit decides.
    """

    context: ModelContext
    opsets: Mapping[str, int]
    values: dict[str, OnnxValue] = field(default_factory=dict)
    parent: Scope | None = None
    caller: Scope | None = None
    origin: dict[str, tuple[str, ...]] = field(default_factory=dict)
    producers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    depth: int = 0
    trips: int = 1
    step: OnnxValue = None
    deciding: frozenset[str] = frozenset()

    def get(self, name: str) -> OnnxValue:
        """Value of a name, here or in an enclosing graph."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise InputError(f"value {name!r} is read before it exists")

    def sources(self, name: str) -> frozenset[str]:
        """Inputs of the model on which a value depends, not counting what only its shape tells."""
        sources: set[str] = set()
        seen: set[tuple[int, str]] = set()
        work: list[tuple[Scope, str]] = [(self, name)]
        while work:
            scope, one = work.pop()
            if (id(scope), one) in seen:
                continue
            seen.add((id(scope), one))
            if one in scope.producers:
                node = scope.producers[one]
                known = one in scope.values and isinstance(scope.values[one], np.ndarray)
                if node.op_type not in ("Shape", "Size") and not known:
                    work.extend((scope, v) for v in reads(node))
            elif one in scope.origin and scope.caller is not None:
                work.extend((scope.caller, v) for v in scope.origin[one] if v)
            elif one not in scope.values and scope.parent is not None:
                work.append((scope.parent, one))
            elif scope.caller is None and scope.parent is None:
                sources.add(one)
        return frozenset(sources)


@dataclass(slots=True)
class Call:
    """One node being evaluated, as its implementation sees it."""

    node: onnx.NodeProto
    scope: Scope
    attrs: dict[str, Any]
    since: int
    names: Sequence[str]
    values: Sequence[OnnxValue]
    xp: Any
    given: Sequence[OnnxValue] = ()

    @property
    def n_outputs(self) -> int:
        """How many outputs the node lists (trailing unnamed ones left out)."""
        outputs = list(self.node.output)
        while outputs and not outputs[-1]:
            outputs.pop()
        return len(outputs)

    def wants(self, index: int) -> bool:
        """Whether the output at this position is read by anybody."""
        return index < len(self.node.output) and bool(self.node.output[index])

    @property
    def decides(self) -> bool:
        """Whether a step reads a result, so that its last digit counts."""
        return not self.scope.deciding.isdisjoint(self.node.output)

    def static(self, value: OnnxValue, what: str = "") -> np.ndarray:
        """The NumPy value of an operand.

        Raises:
            StaticValueError: it is not known at conversion.
        """
        for i, one in enumerate(self.given):
            if one is value and isinstance(self.values[i], np.ndarray):
                return self.values[i]
        if isinstance(value, np.ndarray):
            return value
        for i, one in enumerate(self.given):
            if one is value:
                name = self.names[i]
                needed = f"{what or 'input'} {name!r}" if name else what
                raise StaticValueError(
                    f"{label(self.node)}: {needed} must be known at conversion", self.scope.sources(name)
                )
        raise StaticValueError(f"{label(self.node)}: {what} must be known at conversion", frozenset())

    def random_key(self) -> Any:
        """The key of random numbers: of the seed, else one for this node and step that is another at each call."""
        if "seed" in self.attrs:
            return jax.random.key(int(np.float32(self.attrs["seed"]).view(np.uint32)))
        context = self.scope.context
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(context.heads.random_key())), next(context.drawn))
        scope: Scope | None = self.scope
        while scope is not None:
            key = key if scope.step is None else jax.random.fold_in(key, scope.step)
            scope = scope.caller
        return key

    def spend(self) -> None:
        """Count one part of a node that is made of many.

        Raises:
            FileLimitError: the conversion takes more work or time than is accepted.
        """
        self.scope.context.allowance.spend()

    def ints(self, value: OnnxValue, what: str = "") -> tuple[int, ...]:
        """The operand's values as Python integers, or symbolic sizes."""
        return tuple(number(v) for v in self.static(value, what).flat)

    def room(self, shape: Sequence[int], *, itemsize_bytes: int = 8) -> Any:
        """The array module for a result of this shape: `xp` while it is small.

        Raises:
            InputError: no machine could hold it.
        """
        if has_symbolic(shape):
            return jnp
        count = math.prod(shape)
        if count * itemsize_bytes > MAX_TENSOR_BYTES:
            raise InputError(f"{label(self.node)}: a result of shape {list(shape)} is too large")
        if any(d < 0 for d in shape):
            raise InputError(f"{label(self.node)}: negative size in shape {list(shape)}")
        return self.xp if count <= FOLD_LIMIT else jnp


def bounded(count: int, limit: int, what: str) -> int:
    """The count, when it is within the limit.

    Raises:
        InputError: it is negative or beyond.
    """
    if not 0 <= count <= limit:
        raise InputError(f"{what} of {count}; 0 to {limit} are accepted")
    return count


def run_graph(graph: onnx.GraphProto, scope: Scope) -> list[OnnxValue]:
    """Outputs of a graph whose inputs stand in the scope."""
    context = scope.context
    for tensor in graph.initializer:
        if tensor.name not in scope.values:
            scope.values[tensor.name] = tensor_array(tensor, context.folder, f"initializer {tensor.name!r}")
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in scope.values:
            scope.values[sparse.values.name] = sparse_array(sparse, context.folder, repr(sparse.values.name))
    results = [o.name for o in graph.output]
    run_nodes(ordered(graph.node, context.name), scope, results)  # the next step of a loop may decide by them
    values = [scope.get(name) for name in results]
    return [_widened(v, _SINGLES) for v in values] if context.singles else values


def run_subgraph(
    graph: onnx.GraphProto,
    outer: Scope,
    arguments: Sequence[OnnxValue] = (),
    names: Sequence[str] = (),
    trips: int = 1,
    step: OnnxValue = None,
) -> list[OnnxValue]:
    """Outputs of the body of a control node, for these values of its inputs; the program runs it `trips` times."""
    inner = Scope(outer.context, outer.opsets, parent=outer, caller=outer, depth=outer.depth + 1, step=step)
    inner.trips = outer.trips * max(trips, 1)
    formals = [v.name for v in graph.input]
    if len(arguments) != len(formals):
        raise InputError(f"a body takes {len(formals)} values and is given {len(arguments)}")
    inner.values.update(zip(formals, arguments, strict=True))
    inner.origin.update({f: (n,) for f, n in zip(formals, names, strict=False)})
    return run_graph(graph, inner)


def run_nodes(nodes: Sequence[onnx.NodeProto], scope: Scope, wanted: Collection[str] = ()) -> None:
    """Evaluate the nodes in order; their results enter the scope.

    `wanted`: those whose last digit decides outside of it.
    """
    scope.deciding = deciding(nodes, wanted, scope.context.functions)
    for node in nodes:
        for name in node.output:
            if name:
                scope.producers[name] = node
        with jax.named_scope(shown(node.name.strip("/"))) if node.name.strip("/") else nullcontext():
            results = _run_node(node, scope)
        for name, value in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = value


def _run_node(node: onnx.NodeProto, scope: Scope) -> Sequence[OnnxValue]:
    """Return the results of a node: of a function of the model, on the host, or in the program."""
    scope.context.allowance.spend()
    given = [scope.get(name) if name else None for name in node.input]
    own = scope.context.functions.get((node.domain, node.op_type, node.overload))
    if own is not None:
        return _run_function(own, node, scope, given)
    values = [in_program(v) for v in given]
    if scope.context.singles:
        values = [_widened(v, _SINGLES) for v in values]
    if node.op_type not in _CARRIERS and any(map(holds_host_values, values)):
        return _on_host(node, scope, given)
    try:
        return _in_program(node, scope, values)
    except HostValueError:
        return _on_host(node, scope, given)
    except UnsupportedOpError as error:
        try:
            return _on_host(node, scope, given)
        except HostValueError:
            raise error from None
    except StaticValueError as error:
        entry = TABLE.get((domain_of(node), node.op_type))
        live = error.sources - set(_parameters(scope))
        sized = entry is not None and entry.sized and (live or not error.sources)
        if sized or _of_data(scope, live) or any(v is not g for v, g in zip(values, given, strict=True)):
            return _on_host(node, scope, given)
        raise


def domain_of(node: onnx.NodeProto) -> str:
    """Return the domain of a node, that of the standard operators as an empty text."""
    return "" if node.domain == "ai.onnx" else node.domain


def _of_data(scope: Scope, sources: Collection[str]) -> bool:
    """Whether one of these inputs is data that nobody binds, as one does shapes: of two or more dimensions."""
    while scope.caller is not None:
        scope = scope.caller
    return any(getattr(scope.values.get(name), "ndim", 0) > 1 for name in sources)


def _parameters(scope: Scope) -> Collection[str]:
    return scope.context.parameters


def _on_host(node: onnx.NodeProto, scope: Scope, values: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
    """The node's results from ONNX's reference evaluator, which checks little of what it is given."""
    domain = domain_of(node)
    schema = schema_of(node.op_type, scope.opsets.get(domain, 1 if domain else scope.context.opsets[""]), domain)
    if schema is not None:
        check_call(node, schema, values)
    for inner in nested(node):
        check_ranges(inner)
    if node.op_type == "Loop" and not domain and isinstance(values[0], np.ndarray) and values[0].size == 1:
        check_trips(node, int(values[0].ravel()[0]), scope.trips, MAX_HOST_TRIPS)
    opsets = {**scope.opsets, "": scope.opsets.get("", scope.context.opsets[""])}
    outside = {name: scope.get(name) for name in sorted(captured(node))}
    functions = tuple(scope.context.functions.values()) if subgraphs(node) else ()
    domains = {"", node.domain, *(f.domain for f in functions)}
    needed = {domain: version for domain, version in opsets.items() if domain in domains}
    return run_on_host(HostNode(node, tuple(values), outside, needed, functions))


def _in_program(node: onnx.NodeProto, scope: Scope, values: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
    domain = domain_of(node)
    custom = scope.context.operators.get(f"{domain}.{node.op_type}" if domain else node.op_type)
    if custom is not None:
        return _run_custom(custom, node, scope, values)
    opset = scope.opsets.get(domain, 1 if domain else scope.context.opsets[""])
    entry = TABLE.get((domain, node.op_type))
    schema = schema_of(node.op_type, opset, domain)
    if schema is None and entry is not None and entry.attributes is not None:
        return _run_undefined(entry, node, scope, values)
    if domain not in DOMAINS:
        raise UnsupportedOpError(
            f"{label(node)} belongs to another maker (domain {shown(domain)})",
            hint="export standard operators, or give its function in Python, to load_model of "
            'superopt.frontends.onnx.frontend: operators={"domain.Name": function}',
        )
    if schema is None:
        raise UnsupportedOpError(f"{label(node)} is not an operator of opset {opset}")
    if schema.deprecated and entry is None:
        raise UnsupportedOpError(f"{label(node)} is deprecated in opset {opset}")
    check_call(node, schema, values)
    if entry is None:
        wide = [_widened(v) for v in values]
        body = function_body(node, schema, opset, wide)
        if body is None:
            raise UnsupportedOpError(
                f"{label(node)} of opset {opset} is not supported", hint=_INSTEAD.get(node.op_type, "")
            )
        return halved(_run_function(body, node, scope, wide), _half_types(node, schema, values))
    attrs = dict(defaults(node.op_type, opset, domain))
    for attr in node.attribute:
        attrs[attr.name] = attribute(attr, scope.context.folder)
    if not entry.wide:
        return _apply(entry, Call(node, scope, attrs, schema.since_version, node.input, values, jnp))
    wide = [_widened(v) for v in values]
    results = _apply(entry, Call(node, scope, attrs, schema.since_version, node.input, wide, jnp))
    return halved(results, _half_types(node, schema, values))


_HALVES = ("float16", "bfloat16")
_SINGLES = ("float16",)  # the halves that `ModelContext.singles` holds in float32


def is_half(value: OnnxValue, kinds: Collection[str] = _HALVES) -> bool:
    """Whether a value is a tensor of numbers of half precision, of one of these types."""
    return getattr(getattr(value, "dtype", None), "name", "") in kinds


def _widened(value: OnnxValue, kinds: Collection[str] = _HALVES) -> OnnxValue:
    return value.astype(np.float32) if is_half(value, kinds) else value


def _half_types(node: onnx.NodeProto, schema: Any, values: Sequence[OnnxValue]) -> list[Any]:
    """The half type of each result that has the type of an operand of half precision; None for others."""
    formals, outputs = schema.inputs, schema.outputs
    bound = {formals[min(i, len(formals) - 1)].type_str: v.dtype for i, v in enumerate(values) if is_half(v)}
    return [bound.get(outputs[min(i, len(outputs) - 1)].type_str) for i in range(len(node.output))]


def halved(results: Sequence[OnnxValue], types: Sequence[Any]) -> list[OnnxValue]:
    """The results with those of single precision rounded to these types."""
    padded = [*types, *[None] * (len(results) - len(types))]
    return [
        r.astype(kind) if kind is not None and getattr(r, "dtype", None) == np.float32 else r
        for r, kind in zip(results, padded, strict=False)
    ]


def _run_undefined(
    entry: Implementation, node: onnx.NodeProto, scope: Scope, values: Sequence[OnnxValue]
) -> Sequence[OnnxValue]:
    """A node of an operator that the `onnx` package does not define."""
    attrs = dict(entry.attributes or {})
    check_ranges(node)
    for attr in node.attribute:
        value = attribute(attr, scope.context.folder)
        known = attrs.get(attr.name)
        if attr.name not in attrs:
            raise UnsupportedOpError(f"{label(node)}: the attribute {attr.name!r} is not supported")
        if isinstance(known, int | float) and not isinstance(value, type(known)):
            raise InputError(f"{label(node)}: attribute {attr.name!r} is of the wrong kind")
        attrs[attr.name] = value
    halves = [v.dtype for v in values if is_half(v)] if entry.wide else []
    given = [_widened(v) for v in values] if halves else values
    results = _apply(entry, Call(node, scope, attrs, 1, node.input, given, jnp))
    return halved(results, halves[:1] * len(results))


def _run_custom(
    run: Callable[..., Any], node: onnx.NodeProto, scope: Scope, values: Sequence[OnnxValue]
) -> Sequence[OnnxValue]:
    """A node of an operator whose function the user gives."""
    attrs = {a.name: attribute(a, scope.context.folder) for a in node.attribute}

    def called(call: Call, *operands: Any) -> Any:
        results = run(*operands, **attrs)
        return tuple(results) if isinstance(results, tuple | list) else results

    return _apply(Implementation(called, False), Call(node, scope, attrs, 1, node.input, values, jnp))


def _apply(entry: Implementation, call: Call) -> Sequence[OnnxValue]:
    """Return the results of an operator: folded with NumPy where values are known, else traced by JAX."""
    values = call.values
    known = all(v is None or isinstance(v, np.ndarray) for v in values)
    try:
        if any(isinstance(v, SizeArray) for v in values):
            results = _of_sizes(entry, call)
        elif entry.fold and known and _count(values) <= FOLD_LIMIT:
            call.xp, call.given = np, values
            with np.errstate(all="ignore"):
                results = entry.run(call, *values)
        elif known and values and _is_early(entry, call):
            with jax.ensure_compile_time_eval():
                call.given = [_as_jax(v) for v in values]
                results = _as_numpy(entry.run(call, *call.given))
        else:
            call.given = [_as_jax(v) for v in values]
            results = entry.run(call, *call.given)
    except SuperoptError:
        raise
    except _OPERAND_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{label(call.node)} does not accept {_types(values)}: {reason}") from error
    outputs = [
        v if v is None or isinstance(v, (list, jax.Array, Deferred, SizeArray)) else np.asarray(v)
        for v in (results if isinstance(results, tuple) else (results,))
    ]
    if any(getattr(v, "ndim", 0) > LIMITS.rank for v in outputs):
        raise InputError(f"{label(call.node)} gives more than {LIMITS.rank} dimensions")
    return outputs


def _of_sizes(entry: Implementation, call: Call) -> Any:
    """Results of a node that reads symbolic sizes: known where the node moves them or counts with them."""
    values, kind = call.values, call.node.op_type
    first = next(v for v in values if isinstance(v, SizeArray))
    moves = kind in _MOVES_SIZES and first is values[0] and not any(isinstance(v, SizeArray) for v in values[1:])
    if all(v is None or isinstance(v, np.ndarray) for v in values) and (kind in _COUNTS_SIZES or moves):
        call.xp, call.given = np, values
        result = entry.run(call, *values)
        return result if isinstance(result, jax.Array) else integers(result, getattr(result, "of", first.of))
    call.given = [_as_jax(v) for v in values]
    return entry.run(call, *call.given)


def _is_early(entry: Implementation, call: Call) -> bool:
    """Whether a node of known values is evaluated at conversion: few values, and few results."""
    if call.node.op_type in _NEVER_EARLY or _count(call.values) > EARLY_LIMIT:
        return False

    def shapes() -> Any:
        call.given = [_as_jax(v) for v in call.values]
        return entry.run(call, *call.given)

    results = jax.tree_util.tree_leaves(jax.eval_shape(shapes))
    return all(r.size <= FOLD_LIMIT for r in results)


def _count(values: Sequence[OnnxValue]) -> int:
    return sum(v.size for v in values if v is not None)


def _as_numpy(results: Any) -> Any:
    if isinstance(results, tuple):
        return tuple(_as_numpy(r) for r in results)
    return np.asarray(results) if isinstance(results, jax.Array) and results.size <= FOLD_LIMIT else results


def _as_jax(value: OnnxValue) -> OnnxValue:
    if isinstance(value, SizeArray):
        return live(value)
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.dtype.kind not in "OUST" else value


def _types(values: Sequence[OnnxValue]) -> str:
    return ", ".join(
        f"{v.dtype}{list(v.shape)}" if hasattr(v, "dtype") else "a sequence" if isinstance(v, list) else "nothing"
        for v in values
    )


def _run_function(
    body: onnx.FunctionProto, node: onnx.NodeProto, scope: Scope, values: Sequence[OnnxValue]
) -> Sequence[OnnxValue]:
    if scope.depth >= MAX_FUNCTION_DEPTH:
        raise InputError(f"{label(node)}: functions are nested more than {MAX_FUNCTION_DEPTH} deep")
    versions = {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in body.opset_import}
    inner = Scope(scope.context, {**scope.opsets, **versions}, caller=scope, depth=scope.depth + 1)
    inner.trips = scope.trips
    formals = list(body.input)
    inner.values.update(zip(formals, [*values, *([None] * (len(formals) - len(values)))], strict=False))
    inner.origin.update({f: (n,) for f, n in zip(formals, node.input, strict=False)})
    actual = {a.name: a for a in body.attribute_proto} | {a.name: a for a in node.attribute}
    schema = schema_of(node.op_type, scope.opsets.get(node.domain, 1), node.domain)
    if schema is not None:
        for name, formal in schema.attributes.items():
            if name not in actual and formal.default_value.name:
                actual[name] = formal.default_value
    nodes = ordered([substitute(n, actual) for n in body.node], body.name)
    run_nodes(nodes, inner, inside(body.output, node.output, scope.deciding))
    return [inner.get(o) if o in inner.values else None for o in body.output]
