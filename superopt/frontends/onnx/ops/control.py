"""Control flow, sequences and optional values.

A condition or trip count that is known is decided at conversion: the branch is inlined, a short loop unrolled.
Otherwise `If` is `lax.cond`, a counted loop `lax.scan`, a conditional one `lax.while_loop` (which cannot collect scan
outputs: their number would not be known).  Sequences are Python lists, so their length must be known.  What cannot be
told at conversion is left to the host (`onnx_host`).

A body is converted once, whatever the number of its steps; steps are bounded, those of nested loops together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import core, lax

from superopt.errors import InputError
from superopt.foreign.onnx_values import no_rows
from superopt.frontends.onnx.data import MAX_TENSOR_BYTES
from superopt.frontends.onnx.eval import FOLD_LIMIT, RANDOM, Call, StaticValueError, bounded, op, run_subgraph
from superopt.frontends.onnx.host import HostValueError, in_program
from superopt.frontends.onnx.ops.movement import axis_of, slice_axis
from superopt.frontends.onnx.read import nested
from superopt.frontends.onnx.schema import check_trips

UNROLL = 32
MAX_UNROLL = 4096
# of a loop whose end is known at conversion, with the loops around it: a minute, where a step takes 60 ns
MAX_TRIPS = 10**9


def _known(call: Call, index: int) -> np.ndarray | None:
    value = call.values[index] if index < len(call.values) else None
    return value if isinstance(value, np.ndarray) else None


def _live(values: Sequence[Any]) -> list[Any]:
    values = [in_program(v) for v in values]
    if any(not hasattr(v, "dtype") or v.dtype.kind in "OUST" for v in values):
        raise HostValueError("a sequence or optional value in control flow that is not known at conversion")
    # with a dtype of their own, or the loop would be traced a second time for the type of the first step
    return [jnp.asarray(v, v.dtype) for v in values]


def _holds_sequences(body: onnx.GraphProto) -> bool:
    kinds = {v.type.WhichOneof("value") for v in (*body.input, *body.output)}
    return bool(kinds & {"sequence_type", "optional_type"})


@contextmanager
def _of_one_type() -> Iterator[None]:
    """Leave control flow to the host where its values have another type on each branch or step.

    Bodies raise typed errors; a TypeError is JAX's own, of results that do not fit each other.
    """
    try:
        yield
    except TypeError as error:
        raise HostValueError("values of control flow whose types are not known at conversion") from error


@op("If", sized=True)
def _if(call: Call, condition: Any) -> Any:
    then, other = call.attrs["then_branch"], call.attrs["else_branch"]
    known = _known(call, 0)
    if known is not None:
        return tuple(run_subgraph(then if bool(known.ravel()[0]) else other, call.scope))
    if _holds_sequences(then):
        call.static(condition, "the condition of an If that gives a sequence")
    with _of_one_type():
        return lax.cond(
            condition.reshape(()),
            lambda: tuple(_live(run_subgraph(then, call.scope))),
            lambda: tuple(_live(run_subgraph(other, call.scope))),
        )


@op("Loop", sized=True)
def _loop(call: Call, trip: Any = None, condition: Any = None, *initial: Any) -> Any:
    body = call.attrs["body"]
    carried = list(call.values[2:])
    n = len(carried)
    names = [*([""] * 2), *call.names[2:]]
    count = _known(call, 0)
    start = _known(call, 1) if condition is not None else np.array(True)
    if _holds_sequences(body):
        if trip is not None:
            count = call.static(trip, "the trip count of a loop over sequences")
        if condition is not None:
            start = call.static(condition, "the condition of a loop over sequences")
    if start is not None and not bool(start.ravel()[0]):
        return _collect(carried, [[] for _ in range(len(body.output) - 1 - n)], body, n)
    if count is not None:
        check_trips(call.node, int(count.ravel()[0]), call.scope.trips, MAX_TRIPS)
    # nested loops are unrolled less, or their product could be anything
    if count is not None and start is not None and int(count.ravel()[0]) <= UNROLL >> (3 * call.scope.depth):
        return _unrolled(call, body, int(count.ravel()[0]), carried, names)
    if count is not None and start is not None:
        steady, results = _scanned(call, body, int(count.ravel()[0]), carried, names)
        if results is not None:
            return results
        if not steady or len(body.output) - 1 > n:
            return _unrolled(call, body, int(count.ravel()[0]), carried, names)
        return _while(call, body, trip, condition, carried, names)
    if len(body.output) - 1 > n:
        if trip is None and condition is not None and start is not None:
            return _unrolled(call, body, MAX_UNROLL, carried, names)
        unknown = trip if trip is not None and count is None else condition
        call.static(unknown, "the trip count or condition of a loop with scan outputs")
    return _while(call, body, trip, condition, carried, names)


def _unrolled(call: Call, body: onnx.GraphProto, count: int, carried: list[Any], names: Sequence[str]) -> Any:
    n = len(carried)
    if count > MAX_UNROLL:
        raise InputError(f"a loop of {count} steps whose state changes shape cannot be unrolled")
    collected: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - n)]
    for i in range(count):
        results = run_subgraph(body, call.scope, [np.array(i, np.int64), np.array(True), *carried], names, count, i)
        carried = results[1 : 1 + n]
        for one, value in zip(collected, results[1 + n :], strict=True):
            one.append(value)
        if not isinstance(results[0], np.ndarray):
            raise StaticValueError("the condition of a loop with scan outputs must be known at conversion", frozenset())
        if not bool(results[0].ravel()[0]):
            break
    return _collect(carried, collected, body, n)


def _collect(carried: list[Any], collected: list[list[Any]], body: onnx.GraphProto, n: int) -> Any:
    stacked = []
    for i, one in enumerate(collected):
        if one and all(isinstance(v, np.ndarray) for v in one):
            stacked.append(np.stack(one))
        elif one:
            stacked.append(jnp.stack([jnp.asarray(v) for v in one]))
        else:
            stacked.append(no_rows(body.output[1 + n + i]))
    return (*carried, *stacked)


def _scanned(
    call: Call, body: onnx.GraphProto, count: int, carried: list[Any], names: Sequence[str]
) -> tuple[bool, Any]:
    """Whether the state keeps its types, and the loop as `lax.scan` where it does and the condition cannot change."""
    n = len(carried)
    always = True

    def step(state: tuple[Any, ...], i: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        nonlocal always
        results = run_subgraph(body, call.scope, [i, np.array(True), *state], names, count, i)
        always = always and isinstance(results[0], np.ndarray) and bool(results[0].ravel()[0])
        live = _live(results[1:])
        return tuple(live[:n]), tuple(live[n:])

    start = tuple(_live(carried))
    # the body is converted here, once: bodies within bodies would else be converted twice at each level
    converted, types = jax.make_jaxpr(step, return_shape=True)(start, jax.ShapeDtypeStruct((), np.int64))
    steady = [(t.shape, t.dtype) for t in types[0]] == [(s.shape, s.dtype) for s in start]
    if not always or not steady:
        return steady, None
    bounded(count * sum(t.size * t.dtype.itemsize for t in types[1]), MAX_TENSOR_BYTES, "bytes of a loop's results")

    def again(state: tuple[Any, ...], i: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = core.eval_jaxpr(converted.jaxpr, converted.consts, *state, i)
        return tuple(results[:n]), tuple(results[n:])

    def counted(state: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, results = again(state[1:], state[0])
        return (state[0] + np.int64(1), *values), results

    if count <= FOLD_LIMIT:
        final, stacked = lax.scan(again, start, jnp.arange(count, dtype=np.int64))
        return True, (*final, *stacked)
    # the numbers of very many steps are counted, not stored
    final, stacked = lax.scan(counted, (jnp.zeros((), np.int64), *start), None, length=count)
    return True, (*final[1:], *stacked)


def _while(
    call: Call, body: onnx.GraphProto, trip: Any, condition: Any, carried: list[Any], names: Sequence[str]
) -> Any:
    limit = jnp.asarray(np.iinfo(np.int64).max if trip is None else trip, np.int64).reshape(())
    go = jnp.asarray(True if condition is None else condition, bool).reshape(())

    def step(state: Any) -> Any:
        i, keep, values = state
        results = run_subgraph(body, call.scope, [i, keep, *values], names, 1, i)
        live = _live(results)
        return i + 1, live[0].reshape(()), tuple(live[1:])

    def more(state: Any) -> Any:
        return (state[0] < limit) & state[1]

    with _of_one_type():
        return lax.while_loop(more, step, (jnp.zeros((), np.int64), go, tuple(_live(carried))))[2]


def _draws(body: onnx.GraphProto) -> bool:
    """Whether a body may draw random numbers."""
    nodes = [*body.node, *(inner for node in body.node for inner in nested(node))]
    return any(node.domain not in ("", "ai.onnx") or node.op_type in RANDOM for node in nodes)


@op("Scan", sized=True)
def _scan(call: Call, *operands: Any) -> Any:
    body, scans = call.attrs["body"], call.attrs["num_scan_inputs"]
    batched = call.since < 9
    if batched:
        if operands[0] is not None:
            raise InputError("Scan of opset 8 with sequence lengths is not supported")
        operands, names = operands[1:], call.names[1:]
    else:
        names = call.names
    n = len(operands) - scans
    if not 0 <= n < len(operands) or len(body.input) != len(operands) or len(body.output) < n:
        raise InputError(f"num_scan_inputs is {scans} of {len(operands)} inputs")
    outputs = len(body.output) - n
    flips = call.attrs.get("directions" if batched else "scan_input_directions") or [0] * scans
    in_axes = call.attrs.get("scan_input_axes") or [0] * scans
    out_flips = call.attrs.get("scan_output_directions") or [0] * outputs
    out_axes = call.attrs.get("scan_output_axes") or [0] * outputs

    def whole(states: Sequence[Any], data: Sequence[Any]) -> tuple[Any, ...]:
        xs = tuple(jnp.moveaxis(x, axis_of(a, x.ndim), 0) for x, a in zip(data, in_axes, strict=True))
        xs = tuple(lax.rev(x, (0,)) if f else x for x, f in zip(xs, flips, strict=True))

        def step(state: tuple[Any, ...], at: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            number, *now = at
            results = _live(run_subgraph(body, call.scope, [*state, *now], names, 1, number))
            return tuple(results[:n]), tuple(results[n:])

        numbers = jnp.arange(xs[0].shape[0], dtype=np.int64) if _draws(body) else None
        final, stacked = lax.scan(step, tuple(states), (numbers, *xs))
        turned = [lax.rev(y, (0,)) if f else y for y, f in zip(stacked, out_flips, strict=True)]
        return (*final, *(jnp.moveaxis(y, 0, axis_of(a, y.ndim)) for y, a in zip(turned, out_axes, strict=True)))

    if batched:
        return jax.vmap(lambda *all_values: whole(all_values[:n], all_values[n:]))(*operands)
    return whole(operands[:n], operands[n:])


@op("SequenceEmpty")
def _sequence_empty(call: Call) -> Any:
    return ([],)


@op("SequenceConstruct")
def _sequence_construct(call: Call, *values: Any) -> Any:
    return (list(call.values),)


@op("SequenceInsert", sized=True)
def _sequence_insert(call: Call, sequence: list[Any], value: Any, position: Any = None) -> Any:
    at = len(sequence) if position is None else int(call.static(position, "position").ravel()[0])
    if not -len(sequence) <= at <= len(sequence):
        raise InputError(f"position {at} of a sequence of {len(sequence)}")
    at = at + len(sequence) if at < 0 else at
    return ([*sequence[:at], value, *sequence[at:]],)


@op("SequenceErase", sized=True)
def _sequence_erase(call: Call, sequence: list[Any], position: Any = None) -> Any:
    at = len(sequence) - 1 if position is None else int(call.static(position, "position").ravel()[0])
    at = axis_of(at, len(sequence))
    return ([*sequence[:at], *sequence[at + 1 :]],)


@op("SequenceAt", sized=True)
def _sequence_at(call: Call, sequence: list[Any], position: Any) -> Any:
    return sequence[axis_of(int(call.static(position, "position").ravel()[0]), len(sequence))]


@op("SequenceLength")
def _sequence_length(call: Call, sequence: list[Any]) -> Any:
    return np.array(len(sequence), np.int64)


@op("ConcatFromSequence")
def _concat_from_sequence(call: Call, sequence: list[Any]) -> Any:
    join = jnp.stack if call.attrs["new_axis"] else jnp.concatenate
    return join([jnp.asarray(v) for v in sequence], call.attrs["axis"])


@op("SplitToSequence", sized=True)
def _split_to_sequence(call: Call, x: Any, split: Any = None) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    size = x.shape[axis]
    known = np.array(1) if split is None else call.static(split, "split")
    each = int(known.ravel()[0]) if known.ndim == 0 else 0
    bounded(size // max(each, 1) if not known.ndim else 0, 2**12, "a sequence")
    sizes = [int(v) for v in known] if known.ndim else [min(each, size - i) for i in range(0, size, max(each, 1))]
    if sum(sizes) != size:
        raise InputError(f"cannot split size {size} into {sizes}")
    ends = np.cumsum(sizes)
    parts = [slice_axis(x, axis, int(e) - s, int(e)) for s, e in zip(sizes, ends, strict=True)]
    if split is None and not call.attrs["keepdims"]:
        parts = [p.reshape([d for i, d in enumerate(p.shape) if i != axis]) for p in parts]
    return (parts,)


@op("Optional")
def _optional(call: Call, value: Any = None) -> Any:
    return value


@op("OptionalHasElement")
def _optional_has_element(call: Call, value: Any = None) -> Any:
    return np.array(value is not None)


@op("OptionalGetElement")
def _optional_get_element(call: Call, value: Any) -> Any:
    if value is None:
        raise InputError("an optional value that is absent is read")
    return value if not isinstance(value, list) else (value,)
