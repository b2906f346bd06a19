"""Small ONNX models that run on the host, by ONNX's reference evaluator: inside of programs, and after them.

`host_call` binds a primitive whose parameters are the bytes of such a model and the types of its results: pure, without
a derivative, and with all there is to know about it in its bytes, in any process.  A `Tail` is what is computed from
the results of a program where no array of a fixed type can hold it: strings, or results sized by data.

A model may come from a stranger's file: `refusal` says why one is not taken.
"""

from __future__ import annotations

import base64
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import core as jax_core
from jax.extend import core
from jax.interpreters import mlir

from superopt.errors import InputError, MissingExtraError
from superopt.extras import need
from superopt.reading import LIMITS, cause_of, field

PREFIX = "onnx."  # of the names of opaque operations that are nodes of the host
MOST_BYTES = 1 << 24  # of a model: weights are constants of the program, and go in as operands
_PURPOSE = "a program with ONNX operators that run on the host"
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview")
Results = tuple[tuple[tuple[int, ...], str], ...]


def host_call(name: str, model: bytes, results: Results, operands: Sequence[Any]) -> list[Any]:
    """Run a small ONNX model on the host, inside of a traced program.

    Args:
        name: shown in reports (`onnx.NonMaxSuppression`).
        model: bytes of an ONNX model whose inputs are the operands in order.
        results: shapes and dtypes that it gives.
        operands: arrays.
    """
    return primitive_of(name).bind(*operands, model=model, results=results)


@functools.lru_cache(maxsize=1024)
def primitive_of(name: str) -> Any:
    """The primitive of this name: `bind(*operands, model=bytes, results=types)`."""
    primitive = core.Primitive(name)
    primitive.multiple_results = True

    def abstract(*_: Any, model: bytes, results: Results) -> list[Any]:
        return [jax_core.ShapedArray(shape, np.dtype(dtype)) for shape, dtype in results]

    def run(*operands: Any, model: bytes, results: Results) -> list[Any]:
        return [jnp.asarray(x) for x in _checked(model, results, operands)]

    def lower(ctx: Any, *operands: Any, model: bytes, results: Results) -> Any:
        def call(*arrays: Any) -> tuple[Any, ...]:
            return tuple(_checked(model, results, arrays))

        found, _, _ = mlir.emit_python_callback(
            ctx, call, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=False, returns_token=False
        )
        return found

    primitive.def_abstract_eval(abstract)
    primitive.def_impl(run)
    mlir.register_lowering(primitive, lower)
    return primitive


def _checked(model: bytes, results: Results, operands: Sequence[Any]) -> list[np.ndarray]:
    arrays = evaluate(model, [np.asarray(x) for x in operands])
    found: list[np.ndarray] = []
    for array, (shape, dtype) in zip(arrays, results, strict=True):
        value = np.asarray(array)
        if value.shape != shape or value.dtype.name != dtype:
            raise InputError(f"the host gave {value.dtype}{list(value.shape)} for {dtype}{list(shape)}")
        found.append(np.ascontiguousarray(value).reshape(shape))
    return found


@functools.lru_cache(maxsize=256)
def evaluator_of(model: bytes) -> tuple[Any, tuple[str, ...]]:
    need("onnx", _PURPOSE)
    import onnx  # late: an optional dependency
    from onnx.reference import ReferenceEvaluator  # late: loads every operator

    parsed = onnx.load_model_from_string(model)
    return ReferenceEvaluator(parsed), tuple(v.name for v in parsed.graph.input)


def evaluate(model: bytes, operands: Sequence[np.ndarray]) -> list[Any]:
    """Outputs of a small model.

    Raises:
        InputError: the reference evaluator cannot run it.
    """
    try:
        evaluator, names = evaluator_of(model)
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, dict(zip(names, operands, strict=True))))
    except MissingExtraError:
        raise
    except Exception as error:  # the evaluator raises what NumPy, Python and its own operators raise
        raise InputError(f"ONNX's reference evaluator does not run it: {cause_of(error)}") from error


def is_host_call(primitive: Any) -> bool:
    """Is it the primitive of a call of the host?"""
    return primitive.name.startswith(PREFIX) and primitive_of(primitive.name) is primitive


def refusal(model: bytes) -> str:
    """Why a model from a stranger is not run, or an empty text: it may compute, and read nothing."""
    need("onnx", _PURPOSE)
    import onnx  # late: an optional dependency
    from google.protobuf.message import Message

    parsed = onnx.ModelProto()
    try:
        parsed.ParseFromString(model)
    except Exception:  # of many kinds
        return "it is no ONNX model"
    todo: list[Any] = [parsed]
    steps = 0
    while todo:
        message = todo.pop()
        steps += 1
        if steps > LIMITS.nodes:
            return f"it has more than {LIMITS.nodes} parts"
        if isinstance(message, onnx.TensorProto) and (message.external_data or message.data_location):
            return "it reads another file"
        if isinstance(message, onnx.NodeProto) and message.domain not in _DOMAINS:
            return "it holds operators of other makers"
        for descriptor, value in message.ListFields():
            if descriptor.type == descriptor.TYPE_MESSAGE:
                todo += [value] if isinstance(value, Message) else list(value)
    return ""


# ---- what is left after the program


@dataclass(frozen=True, slots=True)
class Tail:
    """What is computed on the host from the values that a program gives.

    Attributes:
        model: bytes of an ONNX model.
        places: of each output of the whole: (False, its place among the program's results), or (True, its place among
            the outputs of `model`).
        reads: places among the program's results of the inputs of `model`.
        ops: how often each operator occurs in it.
    """

    model: bytes
    places: tuple[tuple[bool, int], ...]
    reads: tuple[int, ...]
    ops: Mapping[str, int]

    def __call__(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """All outputs: arrays of NumPy where the host gives them.

        Raises:
            InputError: called inside of a traced function, or the reference evaluator fails.
        """
        needed = [results[i] for i in self.reads]
        if any(isinstance(x, jax_core.Tracer) for x in needed):
            raise InputError(
                f"outputs of {', '.join(sorted(self.ops))} have no fixed shape or type",
                hint="call the program outside of jit, vmap and grad",
            )
        found = evaluate(self.model, [np.asarray(x) for x in needed])
        return tuple(found[i] if host else results[i] for host, i in self.places)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        model = base64.b64encode(self.model).decode()
        return {"model": model, "places": [list(p) for p in self.places], "reads": list(self.reads)}


def read_tail(data: Any, results: int) -> Tail:
    """The tail of a program with so many results, from plain data of a file.

    Raises:
        InputError: it is none, or its model is refused.
    """
    text = field(data, "model", str)
    if len(text) > 2 * MOST_BYTES:
        raise InputError(f"its tail is larger than {MOST_BYTES} bytes")
    model = base64.b64decode(text, validate=True)
    cause = refusal(model)
    if cause:
        raise InputError(f"its tail is refused: {cause}")
    import onnx  # late: an optional dependency

    graph = onnx.load_model_from_string(model).graph
    reads = tuple(field({"reads": i}, "reads", int, 0, results - 1) for i in field(data, "reads", list))
    places: list[tuple[bool, int]] = []
    for place in field(data, "places", list):
        if not isinstance(place, list) or len(place) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise InputError("its tail names a place that is none")
        host = field({"host": place[0]}, "host", bool)
        most = (len(graph.output) if host else results) - 1
        places.append((host, field({"place": place[1]}, "place", int, 0, most)))
    if len(graph.input) != len(reads):
        raise InputError("its tail reads other values than its model takes")
    return Tail(model, tuple(places), reads, dict(Counter(f"{PREFIX}{n.op_type}" for n in graph.node)))
