"""Validation of an `optimize` result or a saved file, also against the original function where it is given.

A saved file holds the original program as a graph, the returned one, and the plan; validation needs no more.  If the
function or model itself is given, its graph and its constants must be those in the file.  Where all frozen values are
constants, the prepared tensors are computed again and compared bit by bit.  Our kernels are checked as well: the
schedule of each is proved against the denotation of its region.  Its machine code, as this machine writes it, is
validated against that denotation where it can be read and that does not take too long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.backends.xla import build
from superopt.certify.kernels import MOST_VALIDATION_S, ValidatedCode, prove_kernels, validate_code
from superopt.certify.library import ledger_of
from superopt.certify.validate import Validation, validate
from superopt.errors import InputError, UsageError
from superopt.files.reading import typed
from superopt.frontends.jax.boundary import leave
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import Program
from superopt.kernels.choose.specs import KernelSpec
from superopt.machine.deadline import Stopwatch
from superopt.machine.extras import need
from superopt.returned.facts import digest_of
from superopt.returned.saved import Saved, read_whole
from verifier.programs.elements import ElementLabels
from verifier.schedules.ledger import ScheduleLedger

if TYPE_CHECKING:
    from superopt.frontends.jax.jaxpr import Imported
    from superopt.returned.optimized import Optimized
    from superopt.store import Store

_LEAST_ELEMENTS = 2**24  # elements that take some seconds
_ELEMENTS_OF_BYTE = 2**13  # elements per byte of the file; SqueezeNet with its weights needs 4,500
_NOT_COMPUTED = "prepared tensors were not computed again: the values of frozen arguments are not in the file"


def validate_optimized(result: Optimized, original: Any = None, store: Store | None = None) -> Validation:
    """Validate an `optimize` result from its plan."""
    graph = result.imported.graph
    if result.plan is None:
        return _refused("it has no plan")
    if original is not None:
        other = _import(original, graph, result.imported.names, result.imported.in_tree)
        difference = _difference(graph, other.graph, {k: digest_of(v) for k, v in graph.constants.items()})
        if difference:
            return _refused(difference)
    validation = validate(graph, result.program, result.plan, ledger_of(store))
    return _with_kernels(validation, result.program.hot, result.kernels, store, math.inf)


def validate_file(
    path: str | Path, original: Any = None, store: Store | None = None, *, limited: bool = True
) -> Validation:
    """Validate a saved program from its file.

    Args:
        path: the file.
        original: the function or model to compare with as well; None for the one in the file.
        store: the store to look up certificates in.
        limited: refuse a program whose values have many more elements than its file has bytes; labelling such values
            takes as much memory and time as the author of the file likes.

    Raises:
        InputError: the file is not a saved program, or has no plan.
        FileLimitError: the file exceeds a limit.
    """
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}")
    with typed(f"{path} cannot be validated"):
        most = _LEAST_ELEMENTS + _ELEMENTS_OF_BYTE * os.path.getsize(path) if limited else math.inf
        return _validated(path, original, store, most)


def _validated(path: str | Path, original: Any, store: Store | None, most: float) -> Validation:
    """Return the validation of a saved program, also against an original where one is given."""
    saved, source = read_whole(path)
    graph, program, plan, prepared = source.original, source.program, source.plan, saved.prepared
    notes: tuple[str, ...] = ()
    other = None
    unlike = _calls(saved, graph)
    if unlike:
        return _refused(unlike)
    if original is not None:
        other = _import(original, graph, saved.names, saved.in_tree.tree())
        difference = _difference(graph, other.graph, saved.constants)
        if not difference and (tuple(other.names) != saved.names or not saved.out_tree.matches(other.out_tree)):
            difference = "the original takes or returns another structure than the file says"
        if difference:
            return _refused(difference)
    validation = validate(graph, program, plan, ledger_of(store), most)
    if validation.valid and program.prepare is not None and program.prepare.outputs:
        constants = other.graph.constants if other is not None else {}
        if any(node["name"] not in constants for node in program.prepare.inputs):
            notes = (_NOT_COMPUTED,)
        elif not _prepares(program, constants, prepared):
            return _refused("the prepared tensors in the file are not what the original's constants give")
    most_s = math.inf if most == math.inf else MOST_VALIDATION_S
    return _with_kernels(replace(validation, notes=notes), program.hot, saved.kernels, store, most_s)


def _with_kernels(
    found: Validation, hot: Graph, kernels: tuple[KernelSpec, ...], store: Store | None, most_s: float
) -> Validation:
    """The validation with the schedules of the kernels proved as well, and their machine code validated."""
    if not found.valid or not kernels:
        return found

    watch = Stopwatch()
    code = ValidatedCode()
    try:
        count, cause = prove_kernels(hot, kernels, ScheduleLedger(store))
        if not cause:
            code = validate_code(hot, kernels, most_s, beside=True)
            cause = "".join(map(str, [*code.refuted.values()][:1]))
    except InputError as error:
        count, cause = 0, f"its kernels cannot be made on this machine: {error.args[0]}"
    notes = [f"machine code of {_kernels(n)} is not validated: {why}" for why, n in code.unknown.items()]
    seconds = found.seconds + watch.elapsed_s
    exactness = "real" if found.exactness == "exact" else found.exactness  # kernels sum in another order
    return replace(
        found, valid=not cause, cause=cause, kernels=count, code=code.proved, seconds=seconds, exactness=exactness,
        notes=(*found.notes, *notes),
    )  # fmt: skip


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' if count > 1 else ''}"


def _refused(cause: str) -> Validation:
    return Validation(False, cause, 0, {}, "exact", (), 0, 0.0)


def _calls(saved: Saved, graph: Graph) -> str:
    """The reason why a call would pass or return values other than the file's programs state; else empty."""
    taken = graph.inputs[: len(saved.names)]
    if tuple(n["name"] for n in taken) != saved.names:
        return "the file names other arguments than the original takes"
    if saved.live != tuple(i for i, n in enumerate(taken) if not n["frozen"]):
        return "a call would pass other arguments than the returned program takes"
    if saved.out_tree.num_leaves != len(graph.outputs):
        return "the file has another structure of results than the original"
    return ""


def _import(original: Any, graph: Graph, names: tuple[str, ...], tree: Any) -> Imported:
    """The original to compare with, imported on arguments of the types of this graph."""
    import jax  # late: only where another original is compared with

    types = {node["name"]: node.type for node in graph.inputs}
    leaves = [jax.ShapeDtypeStruct(types[n].shape, types[n].dtype) for n in names]
    args, kwargs = leave(jax.tree_util.tree_unflatten(tree, leaves))
    if isinstance(original, str | Path):
        need("onnx", "an ONNX model")
        from superopt.frontends.onnx.frontend import import_onnx  # late: an optional dependency

        return import_onnx(original, *[np.zeros(x.shape, x.dtype) for x in args], singles=True)
    if not callable(original):
        raise UsageError(f"a {type(original).__name__} is neither a function nor a path")
    return import_function(original, args, kwargs)


def _difference(graph: Graph, other: Graph, constants: Mapping[str, str]) -> str:
    """How two originals differ by element labels or digests of constants; an empty text where they agree."""
    if [n.types for n in graph.outputs] != [n.types for n in other.outputs]:
        return "the original has results of other types than the program that was optimised"
    labels = ElementLabels(b"originals")
    for number, (a, b) in enumerate(zip(graph.outputs, other.outputs, strict=True)):
        if a is not b and not all(map(np.array_equal, labels.of_any(a), labels.of_any(b))):
            return f"the original is another program than the one that was optimised: result {number} differs"
    mine = {name: digest_of(value) for name, value in other.constants.items()}
    changed = sorted(name for name in constants.keys() & mine.keys() if constants[name] != mine[name])
    return f"the original has other values in {', '.join(changed[:5])}" if changed else ""


def _prepares(program: Program, constants: Any, prepared: Sequence[np.ndarray]) -> bool:
    assert program.prepare is not None
    with_values = Graph(program.prepare.inputs, program.prepare.outputs, constants)
    made = build(Program(with_values, program.hot), {}).prepared
    return len(made) == len(prepared) and all(
        np.ascontiguousarray(np.asarray(x)).tobytes() == raw.tobytes() for x, raw in zip(made, prepared, strict=True)
    )


__all__ = ["validate_file", "validate_optimized"]
