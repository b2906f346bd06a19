"""Custom calls in the code of a module: only those that JAX itself writes are accepted.

A LAPACK routine fills buffers whose sizes it takes from its operands.  A call with smaller results, or other layouts,
or other values in place of its attributes, lets it write beyond them.  So JAX is made to write its calls of the routine
on operands of these types, with every choice that the routine has.  A call has to be one of them to the last
attribute.  Any other call is unknown, and refused.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import numpy as jnp
from jax.lax import linalg

from superopt.files.reading import shown
from superopt.machine.jitting import jax_jit

_BOTH = (False, True)
_WRITERS: dict[str, Callable[..., Any]] = {
    "potrf": lambda x: linalg.cholesky(x, symmetrize_input=False),
    "getrf": linalg.lu,
    "geqrf": lambda x: linalg.qr(x, full_matrices=False),
    "orgqr": linalg.householder_product,
    "syevd": lambda x: [linalg.eigh(x, lower=low, symmetrize_input=False) for low in _BOTH],
    "geev": lambda x: [
        linalg.eig(x, compute_left_eigenvectors=left, compute_right_eigenvectors=right)
        for left, right in itertools.product(_BOTH, repeat=2)
    ],
    "gesdd": lambda x: [
        linalg.svd(x, full_matrices=full, compute_uv=vectors) for full, vectors in itertools.product(_BOTH, repeat=2)
    ],
    "sytrd": lambda x: [linalg.tridiagonal(x, lower=low) for low in _BOTH],
    "gehrd": linalg.hessenberg,
    "gees": lambda x: [linalg.schur(x, compute_schur_vectors=vectors) for vectors in _BOTH],
    "trsm": lambda a, b: [
        linalg.triangular_solve(
            a, b, left_side=left, lower=low, transpose_a=turned, conjugate_a=turned and conjugate, unit_diagonal=unit
        )
        for left, low, turned, conjugate, unit in itertools.product(_BOTH, repeat=5)
        if a.shape[-1] == b.shape[-2 if left else -1]
    ],
    "gtsv": linalg.tridiagonal_solve,
}
"""Functions of JAX that call each routine, with every choice that it has."""
_COMPLEX_NAMES = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}
_KINDS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
_DTYPES = {"f32": "float32", "f64": "float64", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_TARGETS = {
    f"lapack_{kind}{_COMPLEX_NAMES.get(name, name) if kind in 'cz' else name}_ffi": (name, _KINDS[kind])
    for name, kind in itertools.product(_WRITERS, _KINDS)
}
MOST_CALLS = 64  # different calls in one file, about 0.1 s each; real programs have fewer than 10
Operands = tuple[tuple[tuple[int, ...], str], ...]  # shape and type of elements, as MLIR writes it
Asked = set[tuple[str, Operands]]  # calls that JAX has been made to write for one file
RoutineCall = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]  # attributes with their names, types of the results


def operations(module: Any) -> Iterator[Any]:
    """Every operation of a module, with those in its regions."""
    todo: list[Any] = [module.operation]
    while todo:
        op = todo.pop()
        yield op
        todo.extend(inner.operation for region in op.regions for block in region.blocks for inner in block)


def refusal(op: Any, asked: Asked) -> str:
    """The reason why a custom call is not accepted; else an empty text."""
    from jax.extend.mlir import ir  # late: only where modules are read

    target = ir.StringAttr(op.attributes["call_target_name"]).value
    if target not in _TARGETS:
        return f"it calls {shown(target)!r}, which is none of the routines that are known"
    types = [x.type for x in op.operands]
    if all(isinstance(t, ir.RankedTensorType) and t.has_static_shape for t in types):
        operands = tuple((tuple(t.shape), str(t.element_type)) for t in types)
        asked.add((target, operands))
        if len(asked) > MOST_CALLS:
            return f"it calls routines in more than {MOST_CALLS} ways"
        if _call(op) in _written(target, operands):
            return ""
    return f"it calls {target} in a way that JAX does not"


@functools.lru_cache(maxsize=1024)
def _written(target: str, operands: Operands) -> frozenset[RoutineCall]:
    """The calls of a routine that JAX writes for operands of these types."""
    from jax.extend.mlir.dialects import stablehlo  # late: only where modules are read
    from jax.interpreters import mlir

    name, kind = _TARGETS[target]
    if any(element != kind for _, element in operands):
        return frozenset()
    structs = [jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[kind])) for shape, _ in operands]
    try:
        with jax.enable_x64(True):
            exported = jax.export.export(jax_jit(_WRITERS[name], keep_unused=True), platforms=("cpu",))(*structs)
    except Exception:  # whatever it is: on such operands JAX writes no call
        return frozenset()
    types = [f"tensor<{''.join(f'{n}x' for n in shape)}{element}>" for shape, element in operands]
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        return frozenset(
            _call(op)
            for op in operations(module)
            if op.name == "stablehlo.custom_call" and [str(x.type) for x in op.operands] == types
        )


def _call(op: Any) -> RoutineCall:
    attributes = {name: str(op.attributes[name]) for name in op.attributes if not name.startswith("sdy.")}
    return tuple(sorted(attributes.items())), tuple(str(x.type) for x in op.results)
