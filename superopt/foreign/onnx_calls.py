"""Small ONNX models that run on the host, by ONNX's reference evaluator: inside of programs, and before or after them.

`host_call` binds a primitive whose parameters are the bytes of such a model and the types of its results.  It is pure,
has no derivative, and its bytes define it completely, in any process.  A `HostPart` computes on the arguments of
a program before it, or on its results after it, where no array of a fixed type can hold a value: strings, or results
sized by data.

A model may come from a stranger's file: `refusal` returns the reason why one is not accepted, and
`superopt.foreign.onnx_limits` bounds its work.
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

from superopt.errors import ArgumentError, InputError
from superopt.files.reading import LIMITS, field
from superopt.foreign.onnx_process import EVALUATOR
from superopt.machine.extras import need

PREFIX = "onnx."  # prefix of the names of opaque operations that run on the host
MOST_BYTES = 1 << 24  # of a model: weights are constants of the program, and go in as operands
_PURPOSE = "a program with ONNX operators that run on the host"
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview")
ResultTypes = tuple[tuple[tuple[int, ...], str], ...]


def host_call(name: str, model: bytes, results: ResultTypes, operands: Sequence[Any]) -> list[Any]:
    """Run a small ONNX model on the host, inside of a traced program.

    Args:
        name: shown in reports (`onnx.NonMaxSuppression`).
        model: bytes of an ONNX model whose inputs are the operands in order.
        results: shapes and dtypes of its results.
        operands: arrays.
    """
    return primitive_of(name).bind(*operands, model=model, results=results)


@functools.lru_cache(maxsize=1024)
def primitive_of(name: str) -> Any:
    """The primitive of this name: `bind(*operands, model=bytes, results=types)`."""
    primitive = core.Primitive(name)
    primitive.multiple_results = True

    def abstract(*_: Any, model: bytes, results: ResultTypes) -> list[Any]:
        return [jax_core.ShapedArray(shape, np.dtype(dtype)) for shape, dtype in results]

    def run(*operands: Any, model: bytes, results: ResultTypes) -> list[Any]:
        return [jnp.asarray(x) for x in _checked(model, results, operands)]

    def lower(ctx: Any, *operands: Any, model: bytes, results: ResultTypes) -> Any:
        def call(*arrays: Any) -> tuple[Any, ...]:
            return tuple(_checked(model, results, arrays))

        lowered, _, _ = mlir.emit_python_callback(
            ctx, call, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=False, returns_token=False
        )
        return lowered

    primitive.def_abstract_eval(abstract)
    primitive.def_impl(run)
    mlir.register_lowering(primitive, lower)
    return primitive


def _checked(model: bytes, results: ResultTypes, operands: Sequence[Any]) -> list[np.ndarray]:
    arrays = evaluate(model, [np.asarray(x) for x in operands])
    checked: list[np.ndarray] = []
    for array, (shape, dtype) in zip(arrays, results, strict=True):
        value = np.asarray(array)
        if value.shape != shape or value.dtype.name != dtype:
            raise InputError(f"the host gave {value.dtype}{list(value.shape)} for {dtype}{list(shape)}")
        checked.append(np.ascontiguousarray(value).reshape(shape))
    return checked


def known_types(model: bytes) -> list[tuple[tuple[int, ...], int] | None]:
    """Shape and ONNX element type of each result of a small model's last node; None where they cannot be inferred.

    Raises:
        InputError: the reference evaluator does not have the operator.
        FileLimitError: inferring them takes more time or memory than allowed.
    """
    need("onnx", _PURPOSE)
    types = EVALUATOR.ask(model, task="types")
    return [None if kind is None else (tuple(kind[0].tolist()), int(kind[1])) for kind in types]


def spent_s() -> float:
    """Processor time that models on the host have taken for this thread."""
    return EVALUATOR.spent_s


def evaluate(model: bytes, operands: Sequence[np.ndarray]) -> list[Any]:
    """Outputs of a small model, run in a separate process under limits.

    Raises:
        InputError: the reference evaluator cannot run it.
        FileLimitError: it takes more time or memory than allowed.
    """
    need("onnx", _PURPOSE)
    return EVALUATOR.ask(model, operands)


def is_host_call(primitive: Any) -> bool:
    """Whether a primitive is that of a host call."""
    return primitive.name.startswith(PREFIX) and primitive_of(primitive.name) is primitive


def refusal(model: bytes) -> str:
    """The reason why a stranger's model is not run (it may compute, and read nothing); else an empty text."""
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


# ---- computations before a program and after it


@dataclass(frozen=True, slots=True)
class HostPart:
    """A computation on the host: the head of a program on its arguments, or the tail on its results.

    The values that a tail may read are the results of the program followed by the arguments of the call.

    Attributes:
        model: bytes of an ONNX model.
        places: source of each returned value: (False, index among the values), or (True, index among the outputs of
            `model`).
        reads: for each input of `model`, its index among the values.
        takes: least number of values.
        ops: number of occurrences of each operator in the model.
    """

    model: bytes
    places: tuple[tuple[bool, int], ...]
    reads: tuple[int, ...]
    takes: int
    ops: Mapping[str, int]

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All returned values; arrays of NumPy where the host computes them.

        Raises:
            ArgumentError: fewer values are given.
            InputError: called inside of a traced function, or the reference evaluator fails.
        """
        if len(values) < self.takes:
            raise ArgumentError(f"the program takes {self.takes} inputs, got {len(values)}")
        needed = [values[i] for i in self.reads]
        if any(isinstance(x, jax_core.Tracer) for x in needed):
            raise InputError(
                f"values of {', '.join(sorted(self.ops))} have no fixed shape or type",
                hint="call the program outside of jit, vmap and grad",
            )
        hosted = any(host for host, _ in self.places)
        results = evaluate(self.model, [_as_numbers_or_objects(x) for x in needed]) if hosted else []
        return tuple(results[i] if host else values[i] for host, i in self.places)

    def to_json(self) -> dict[str, Any]:
        """The part as plain data, which `read_part` reads."""
        model = base64.b64encode(self.model).decode()
        return {
            "model": model,
            "places": [list(p) for p in self.places],
            "reads": list(self.reads),
            "takes": self.takes,
        }


def _as_numbers_or_objects(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "UST" else array


def read_part(data: Any, most: int) -> HostPart:
    """Read a host part from plain data of a file, for a program with at most `most` values.

    Raises:
        InputError: it is not a host part, or its model is refused.
    """
    text = field(data, "model", str)
    if len(text) > 2 * MOST_BYTES:
        raise InputError(f"its part on the host is larger than {MOST_BYTES} bytes")
    model = base64.b64decode(text, validate=True)
    cause = refusal(model)
    if cause:
        raise InputError(f"its part on the host is refused: {cause}")
    import onnx  # late: an optional dependency

    graph = onnx.load_model_from_string(model).graph
    takes = field(data, "takes", int, 0, most)
    reads = tuple(field({"reads": i}, "reads", int, 0, takes - 1) for i in field(data, "reads", list))
    places: list[tuple[bool, int]] = []
    for place in field(data, "places", list):
        if not isinstance(place, list) or len(place) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise InputError("its part on the host names a place that is none")
        host = field({"host": place[0]}, "host", bool)
        last = (len(graph.output) if host else takes) - 1
        places.append((host, field({"place": place[1]}, "place", int, 0, last)))
    if len(graph.input) != len(reads):
        raise InputError("its part on the host reads other values than its model takes")
    return HostPart(model, tuple(places), reads, takes, dict(Counter(f"{PREFIX}{n.op_type}" for n in graph.node)))
