"""The node tests that ship with `onnx.backend.test`, run through the ONNX frontend.

Counted are the tests all of whose tensors have element types that JAX has (strings are out).  A test passes when
every output has the expected dtype, shape and values (the tolerances are those of the test suite).  Inputs that an op
needs at conversion (the shape of a Reshape) are bound to the values of the test, as a stored initializer would be;
how many tests need that is reported.

    python -m benchmarks.onnx_nodes [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from superopt.errors import SuperoptError
from superopt.frontends.onnx import StaticValueError, load_model

# random by definition: no values to compare with
RANDOM_OPS = frozenset({"Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"})


@dataclass(frozen=True, slots=True)
class Row:
    """One node test: `ok`, `unsupported` (refused by name), `wrong` (values), `error`, or `excluded` (dtype)."""

    name: str
    ops: tuple[str, ...]
    status: str
    bound: tuple[str, ...] = ()
    reason: str = ""


def cases() -> list[Any]:
    """All node test cases of the installed onnx package."""
    from onnx.backend.test.loader import load_model_tests  # late: generates every case

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in load_model_tests(kind="node") if case.model is not None]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _elem_types(kind: onnx.TypeProto) -> Iterator[int]:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        yield kind.tensor_type.elem_type
    elif which in ("sequence_type", "optional_type"):
        yield from _elem_types(getattr(kind, which).elem_type)


def in_scope(model: onnx.ModelProto) -> bool:
    """Whether JAX has every element type of the inputs and outputs."""
    values = [*model.graph.input, *model.graph.output]
    return not any(t == TensorProto.STRING for v in values for t in _elem_types(v.type))


def _compare(got: Any, wanted: Any, rtol: float, atol: float) -> str:
    """What is wrong with an output; empty when nothing is."""
    if wanted is None or got is None:
        return "" if got is wanted else "presence"
    if isinstance(wanted, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return "sequence length"
        return next((r for g, w in zip(got, wanted, strict=True) if (r := _compare(g, w, rtol, atol))), "")
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype} for {wanted.dtype}"
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} for {list(wanted.shape)}"
    if got.dtype.kind in "iub":
        return "" if np.array_equal(got, wanted) else "values"
    wide = [a if a.dtype.kind == "c" else a.astype(np.float64) for a in (got, wanted)]
    return "" if np.allclose(wide[0], wide[1], rtol=rtol, atol=atol, equal_nan=True) else "values"


def run_case(case: Any) -> Row:
    """Run one node test on all its data sets."""
    model = case.model
    ops = tuple(dict.fromkeys(n.op_type for n in model.graph.node))
    if not in_scope(model):
        return Row(case.name, ops, "excluded", reason="strings")
    bound: tuple[str, ...] = ()
    for inputs, outputs in case.data_sets:
        given = dict(zip([v.name for v in model.graph.input], map(_array, inputs), strict=False))
        outputs = [_array(o) for o in outputs]
        try:
            bound, got = _evaluate(model, given)
        except SuperoptError as error:
            status = "unsupported" if error.code in ("SO213", "SO214") else "error"
            return Row(case.name, ops, status, reason=str(error).splitlines()[0])
        if RANDOM_OPS.intersection(ops):
            same = [(np.shape(g), np.asarray(g).dtype) == (w.shape, w.dtype) for g, w in zip(got, outputs, strict=True)]
            reason = "" if all(same) else "type of a random output"
        else:
            pairs = zip(got, outputs, strict=True)
            reason = next((r for g, w in pairs if (r := _compare(g, w, case.rtol, case.atol))), "")
        if reason:
            return Row(case.name, ops, "wrong", bound, reason)
    return Row(case.name, ops, "ok", bound)


def _evaluate(model: onnx.ModelProto, given: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    """Outputs, with as few inputs bound at conversion as the ops allow."""
    values = {
        v.name: given.get(v.name) for v in model.graph.input if v.type.WhichOneof("value") != "tensor_type"
    }
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
    return tuple(values), loaded(*arguments)


def run(names: str = "") -> dict[str, Any]:
    """Run every node test whose name contains `names`; rows and summary."""
    start = time.perf_counter()
    rows = [run_case(case) for case in cases() if names in case.name]
    counted = [r for r in rows if r.status != "excluded"]
    passed = [r for r in counted if r.status == "ok"]
    failing = Counter(r.ops[-1] if len(r.ops) == 1 else r.name for r in counted if r.status != "ok")
    summary = {
        "tests": len(rows),
        "counted": len(counted),
        "passed": len(passed),
        "pass_percent": round(100 * len(passed) / max(len(counted), 1), 2),
        "passed_with_bound_inputs": sum(bool(r.bound) for r in passed),
        "unsupported": sum(r.status == "unsupported" for r in counted),
        "wrong": sum(r.status == "wrong" for r in counted),
        "error": sum(r.status == "error" for r in counted),
        "seconds": round(time.perf_counter() - start, 1),
    }
    return {
        "suite": "onnx-nodes",
        "machine": platform.machine(),
        "versions": {"onnx": onnx.__version__, "jax": jax.__version__, "numpy": np.__version__},
        "rows": [asdict(r) for r in rows],
        "failing": dict(failing.most_common()),
        "summary": summary,
    }


def main(argv: list[str] | None = None) -> int:
    """Print the figures, or everything as one JSON object."""
    parser = argparse.ArgumentParser(description="ONNX node tests through the frontend")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--names", default="", help="only tests whose name contains this")
    options = parser.parse_args(argv)
    result = run(options.names)
    if options.json:
        print(json.dumps(result))
        return 0
    for row in result["rows"]:
        if row["status"] not in ("ok", "excluded"):
            print(f"{row['status']:12} {row['name']:60} {row['reason']}")
    s = result["summary"]
    print(f"{s['passed']} of {s['counted']} node tests pass ({s['pass_percent']} %) in {s['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
