"""The node tests that ship with `onnx.backend.test`, run through the ONNX frontend.

A test passes when the imported graph, lowered back to JAX, returns every output with the expected dtype, shape and
values (the tolerances are those of the test suite).  Dtypes that graphs lack (8-bit floats, 4- and 2-bit integers,
strings) run as the JAX function with its parts on the host, and are reported apart.  Inputs that an op needs at
conversion (the shape of a Reshape) are bound to the values of the test, as a stored initializer would be; the number of
such tests is reported.

    superopt bench --suite onnx-nodes [--json]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from superopt.backends.xla import to_jax
from superopt.errors import SuperoptError
from superopt.frontends.onnx.frontend import OnnxModel, StaticValueError, import_model, load_model
from superopt.ir.types import DTYPES
from superopt.machine.jitting import jit_quickly

# random by definition: no values to compare with
RANDOM_OPS = frozenset({"Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"})


@dataclass(frozen=True, slots=True)
class NodeTestRow:
    """One node test.

    `status`: `ok` (the imported graph returns the expected outputs), `function` (the JAX function does, but graphs lack
    such a dtype), `unsupported` (refused by name), `wrong` (other outputs), or `error`.
    """

    name: str
    ops: tuple[str, ...]
    status: str
    bound: tuple[str, ...] = ()
    wholly_bound: bool = False
    reason: str = ""


def node_cases() -> list[Any]:
    """All node test cases of the installed onnx package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in load_model_tests(kind="node") if case.model is not None]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _compare(got: Any, wanted: Any, rtol: float, atol: float) -> str:
    """The kind of difference of an output; empty when there is none."""
    if wanted is None or got is None:
        return "" if got is wanted else "presence"
    if isinstance(wanted, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return "sequence length"
        return next((r for g, w in zip(got, wanted, strict=True) if (r := _compare(g, w, rtol, atol))), "")
    got, wanted = np.asarray(got), np.asarray(wanted)
    if {got.dtype.kind, wanted.dtype.kind} <= set("OUST"):
        return "" if got.shape == wanted.shape and (got == wanted).all() else "values"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype} for {wanted.dtype}"
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} for {list(wanted.shape)}"
    if got.dtype.kind in "iub":
        return "" if np.array_equal(got, wanted) else "values"
    wide = [a if a.dtype.kind == "c" else a.astype(np.float64) for a in (got, wanted)]
    return "" if np.allclose(wide[0], wide[1], rtol=rtol, atol=atol, equal_nan=True) else "values"


def run_case(case: Any) -> NodeTestRow:
    """Run one node test on all its data sets."""
    model = case.model
    ops = tuple(dict.fromkeys(n.op_type for n in model.graph.node))
    bound: tuple[str, ...] = ()
    as_graph = True
    for inputs, outputs in case.data_sets:
        given = dict(zip([v.name for v in model.graph.input], map(_array, inputs), strict=False))
        outputs = [_array(o) for o in outputs]
        try:
            bound, got, through_graph = run_model(model, given)
            as_graph = as_graph and through_graph
        except SuperoptError as error:
            status = "unsupported" if error.code in ("SO213", "SO214") else "error"
            return NodeTestRow(case.name, ops, status, reason=str(error).splitlines()[0])
        if RANDOM_OPS.intersection(ops):
            same = [(np.shape(g), np.asarray(g).dtype) == (w.shape, w.dtype) for g, w in zip(got, outputs, strict=True)]
            reason = "" if all(same) else "type of a random output"
        else:
            pairs = zip(got, outputs, strict=True)
            reason = next((r for g, w in pairs if (r := _compare(g, w, case.rtol, case.atol))), "")
        if reason:
            return NodeTestRow(case.name, ops, "wrong", bound, reason=reason)
    return NodeTestRow(
        case.name,
        ops,
        "ok" if as_graph else "function",
        bound,
        wholly_bound=bool(bound) and len(bound) == len(model.graph.input),
    )


def run_model(model: onnx.ModelProto, given: dict[str, Any]) -> tuple[tuple[str, ...], Any, bool]:
    """Outputs, with as few inputs bound at conversion as the ops allow, and whether the graph computed them."""
    values = {v.name: given.get(v.name) for v in model.graph.input if v.type.WhichOneof("value") != "tensor_type"}
    dims = {
        d.dim_param: given[v.name].shape[i]
        for v in model.graph.input
        if v.name in given and v.name not in values
        for i, d in enumerate(v.type.tensor_type.shape.dim)
        if d.dim_param
    }
    while True:
        try:
            loaded = load_model(model, values=values, dims=dims)
            break
        except StaticValueError as error:
            more = [n for n in error.sources if n in given and n not in values]
            if not more:
                raise
            values |= {n: given[n] for n in more}
    arguments = [given[i.name] for i in loaded.inputs]
    types = (*loaded.inputs, *loaded.outputs)
    if any(t.dtype not in DTYPES for t in types) or any(v.dtype.name not in DTYPES for v in loaded.params.values()):
        return tuple(values), loaded(*arguments), False
    return tuple(values), _run_graph(loaded, arguments), True


def _run_graph(loaded: OnnxModel, arguments: Sequence[Any]) -> Any:
    """Outputs of the imported graph, lowered back to JAX."""
    with jax.enable_x64(True):
        imported = import_model(loaded, *arguments)
        names = [node["name"] for node in imported.graph.inputs[len(imported.examples) :]]
        arrays = [*imported.examples, *(imported.graph.constants[name] for name in names)]
        results = imported.unflatten(jit_quickly(to_jax(imported.graph))(*arrays))
        return results if imported.tail is None else imported.tail([*results, *arguments])


def run(
    *, budget: str = "", cases: Sequence[str] = (), seed: int = 0, say: Callable[[str], None] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Run every node test whose name contains one of `cases` (all when there are none): rows, summary and text.

    `budget` and `seed` are arguments of all suites; nothing here depends on them.
    """
    start = time.perf_counter()
    rows: list[NodeTestRow] = []
    for case in node_cases():
        if not cases or any(part in case.name for part in cases):
            rows.append(run_case(case))
            if say is not None and len(rows) % 200 == 0:
                say(f"{len(rows)} node tests")
    passed = [r for r in rows if r.status == "ok"]
    summary = {
        "tests": len(rows),
        "passed": len(passed),
        "pass_percent": round(100 * len(passed) / max(len(rows), 1), 2),
        "passed_as_function": len(passed) + sum(r.status == "function" for r in rows),
        "passed_with_bound_inputs": sum(bool(r.bound) for r in passed),
        "passed_wholly_bound": sum(r.wholly_bound for r in passed),
        "unsupported": sum(r.status == "unsupported" for r in rows),
        "wrong": sum(r.status == "wrong" for r in rows),
        "error": sum(r.status == "error" for r in rows),
        "seconds": round(time.perf_counter() - start, 1),
    }
    lines = [f"{r.status:12} {r.name:60} {r.reason}" for r in rows if r.status not in ("ok", "function")]
    lines.append(
        f"{summary['passed']} of {summary['tests']} node tests pass as graphs ({summary['pass_percent']} %), "
        f"{summary['passed_as_function']} as JAX functions, "
        f"in {summary['seconds']} s"
    )
    return [asdict(r) for r in rows], summary, "\n".join(lines)
