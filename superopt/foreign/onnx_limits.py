"""Bounds on an ONNX model that runs on the host: results and steps in proportion to its inputs, and no more.

A few bytes of a file can ask for a constant of 10^12 elements, or for a loop of 10^18 steps.  `Bounded` is ONNX's
reference evaluator with an allowance for a run.  Every result of a node costs its elements, before it is computed where
its shape can be known then.  Every node that is run costs what Python takes to run it.  Bodies of loops use the
allowance of the whole model.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_loop, op_non_max_suppression

from superopt.errors import InputError
from superopt.files.reading import cause_of, shown
from superopt.foreign.onnx_values import no_rows

MOST_ELEMENTS = 1 << 27  # elements that a run may create without inputs: 1 GB of float64
PER_ELEMENT = 1 << 17  # further elements per input element: real bodies run fewer than 60 nodes for each
_STEP = 2000  # cost of running a node, in elements: it takes 20 microseconds
_SMALL = 1024  # elements of operands whose values shape inference may read
_MOST_AXES = 128  # entries of a vector of sizes: two pads per axis of a NumPy array
_SIZED_BY_VALUES = frozenset((
    "AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "ConvTranspose", "DFT", "Expand",
    "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "RandomNormal", "RandomUniform",
    "Range", "Resize", "Tile", "Upsample",
))  # fmt: skip
"""Operators whose results may be larger than all combinations of elements of their operands."""
_RUNS = threading.local()  # the allowance of the run of this thread


class _LoopRun(op_loop.Loop):
    """`Loop` that stacks each step's results of any rank along a new first axis, and allows no steps at all."""

    op_domain = ""
    body: Any  # given by the evaluator
    _run_body: Any

    def _run(
        self, trips: Any, condition: Any, *initial: Any, context: Any = None, attributes: Any = None,
        bindings: Any = None, **_: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        names, carried, step = self.body.input_names, list(initial), 0
        rows: list[list[Any]] = [[] for _ in range(self.K)]
        goes_on = condition is None or bool(np.all(condition))
        while goes_on and (trips is None or step < int(np.asarray(trips).item())):
            given = {**(context or {}), names[0]: np.array(step, np.int64), names[1]: np.array(True)}
            given |= zip(names[2:], carried, strict=True)
            going, *results = self._run_body(given, attributes=attributes, bindings=bindings)
            goes_on, step = bool(np.all(going)), step + 1
            carried = results[: self.N]
            for row, value in zip(rows, results[self.N :], strict=True):
                row.append(value)
        kinds = self.body.proto_.output[1 + self.N :]
        made = [np.stack(row) if row else no_rows(kind) for row, kind in zip(rows, kinds, strict=True)]
        return self._check_and_fix_outputs((*carried, *made))


_LoopRun.__name__ = "Loop"  # by which the evaluator knows it


class _NonMaxSuppression(op_non_max_suppression.NonMaxSuppression):
    """`NonMaxSuppression` whose limits are numbers, lists of one number, or left out, as ONNX Runtime accepts them."""

    op_domain = ""
    _unless_given = (np.zeros(1, np.int64), np.zeros(1, np.float32), None)  # boxes of a class, overlap, score

    def _run(self, boxes: Any, scores: Any, *limits: Any, **attributes: Any) -> Any:
        given = (*limits, None, None, None)
        every = [y if x is None else np.reshape(x, -1) for x, y in zip(given, self._unless_given, strict=False)]
        return super()._run(boxes, scores, *every, **attributes)


_NonMaxSuppression.__name__ = "NonMaxSuppression"


class Bounded(ReferenceEvaluator):
    """The reference evaluator with bounds, which also apply to bodies and functions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "new_ops": [_LoopRun, _NonMaxSuppression]})
        for node in self.rt_nodes_:
            node.run = functools.partial(_run, node, node.run)

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the model, or a body or a function of it.

        Raises:
            InputError: it asks for more than its inputs justify.
        """
        if getattr(_RUNS, "left", None) is not None:
            return super().run(*args, **options)
        given = (*args[1].values(), *self.rt_inits_.values())
        _RUNS.left = _RUNS.allowed = MOST_ELEMENTS + PER_ELEMENT * _elements(given)
        try:
            return super().run(*args, **options)
        finally:
            _RUNS.left = None


def _run(node: Any, run: Any, *inputs: Any, **options: Any) -> Any:
    by_values = node.op_type in _SIZED_BY_VALUES
    if by_values or _combinations(inputs) > _RUNS.left:
        asked = _asked(node, inputs)
        if asked is None and by_values:
            asked = _combinations(inputs) * _extents(inputs)
        _check(node, asked or 0)
    try:
        results = run(*inputs, **options)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of many kinds
        raise InputError(f"{_label(node)} cannot be computed from {_kinds(inputs)}: {_words(error)}") from error
    _RUNS.left -= _STEP + _elements(results)
    _check(node, 0)
    return results


def _label(node: Any) -> str:
    name = node.onnx_node.name
    return f"node {shown(name)!r} ({node.op_type})" if name else node.op_type


def _kinds(inputs: Iterable[Any]) -> str:
    kinds = (f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray | np.generic) else "a sequence" for x in inputs)
    return ", ".join(kinds) or "nothing"


def _words(error: Exception) -> str:
    """An exception of the evaluator's own code as a message for its caller."""
    if isinstance(error, IndexError):
        return "an index or a size in it is out of range"
    if isinstance(error, KeyError):
        return f"it has no entry for {shown(error.args[0] if error.args else '')}"
    return cause_of(error)


def _check(node: Any, elements: float) -> None:
    if elements > _RUNS.left:
        raise InputError(f"{node.op_type} asks for more than the {_RUNS.allowed} elements and steps that inputs allow")


def _combinations(inputs: Iterable[Any]) -> int:
    """An upper bound on the elements that broadcasting, multiplying or joining these inputs can yield."""
    return math.prod(max(_elements([x]), 2) for x in inputs if x is not None)


def _extents(inputs: Iterable[Any]) -> float:
    """An upper bound on the factor by which sizes, scales and steps among the inputs can enlarge a result."""
    short = [np.asarray(x).ravel() for x in inputs if x is not None and np.ndim(x) <= 1 and np.size(x) <= _MOST_AXES]
    values = [abs(float(v)) for x in short if x.dtype.kind in "iuf" for v in x]
    return math.prod(max(v, 1 / v) for v in values if v > 0)


def _elements(values: Iterable[Any]) -> int:
    """Elements of arrays and sequences of them; strings count by their length."""
    total = 0
    for x in values:
        if isinstance(x, list | tuple):
            total += len(x) + _elements(x)
        elif isinstance(x, np.ndarray):
            total += x.size
            if x.dtype.kind in "OUST":
                total += sum(len(text) for text in x.ravel() if isinstance(text, str | bytes)) // 8
    return total


def _asked(node: Any, inputs: Sequence[Any]) -> int | None:
    """Elements of the results of a node on these operands; None where only running it can tell."""
    schema = getattr(node, "_schema", None)
    given = ((name, x) for name, x in zip(node.input, inputs, strict=False) if isinstance(x, np.ndarray | np.generic))
    named = [(name, np.asarray(x)) for name, x in given]
    if schema is None:
        return None
    types = {name: helper.make_tensor_type_proto(_kind(x), x.shape) for name, x in named}
    data = {name: numpy_helper.from_array(x, name) for name, x in named if x.size <= _SMALL and x.dtype != object}
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, node.onnx_node, types, data)
    except Exception:  # inference may raise anything: the size is unknown
        return None
    tensors = [kind.tensor_type for kind in inferred.values()]
    if not all(t.HasField("shape") and all(d.HasField("dim_value") for d in t.shape.dim) for t in tensors):
        return None
    return sum(math.prod(d.dim_value for d in t.shape.dim) for t in tensors)


def _kind(x: np.ndarray) -> int:
    return onnx.TensorProto.STRING if x.dtype.kind in "OUST" else helper.np_dtype_to_tensor_dtype(x.dtype)
