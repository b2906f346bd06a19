"""Equations kept verbatim: one without a form in the op table becomes an opaque node of its name, operands and types.

The node is named by the module that the equation is exported as (`superopt.foreign.modules`), so that it can be saved,
stored and sent like the rest of the program.  Equations without a module (effects, callbacks into Python) exist in this
process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp
from jax.extend import core

from superopt.foreign import modules
from superopt.foreign.onnx_calls import is_host_call
from superopt.frontends.jax.keys import data_of, data_type, kind_of, with_kind
from superopt.frontends.jax.sizes import has_symbols
from superopt.ir import opaque
from superopt.ir.graph import Node, mk
from superopt.ir.types import TensorType

_KNOWN: dict[Any, str] = {}  # (primitive, parameters, types) -> key
_MOST_KNOWN = 4096
_KNOWN_TO_PROVER = (lax.sort_p, lax.top_k_p)
_CALLBACKS = frozenset({"pure_callback", "io_callback"})  # debugging callbacks happen once per call anyway


def calls_python(closed: core.ClosedJaxpr) -> bool:
    """Whether an equation, also within a body, calls a Python function of the user's."""
    return any(eqn.primitive.name in _CALLBACKS for eqn in equations(closed))


def equations(closed: core.ClosedJaxpr) -> Iterator[core.JaxprEqn]:
    """Yield the equations of a jaxpr and of the bodies in it."""
    todo: list[Any] = [closed]
    while todo:
        x = todo.pop()
        if isinstance(x, core.ClosedJaxpr | core.Jaxpr):  # one type from jax 0.11 on
            for eqn in x.eqns:
                yield eqn
                todo += eqn.params.values()
        elif isinstance(x, tuple | list):
            todo += x


def types_of(eqn: core.JaxprEqn) -> tuple[TensorType, ...]:
    """Types of the results of an equation, keys as their data."""
    return tuple(data_type(v.aval) for v in eqn.outvars)


def results_of(node: Node) -> tuple[Node, ...]:
    """The results of a node as nodes of one type each."""
    return (node,) if len(node.types) == 1 else tuple(mk("result", node, index=i) for i in range(len(node.types)))


def keep(eqn: core.JaxprEqn, xs: Sequence[Node], out: Sequence[TensorType]) -> tuple[Node, ...]:
    """The equation verbatim, as an opaque node."""
    if not out:
        return ()
    params = dict(eqn.params)
    kinds = tuple(kind_of(v.aval) for v in eqn.invars)
    primitive = eqn.primitive

    def call(*operands: Any) -> Sequence[Any]:
        given = [with_kind(jnp.asarray(x), kind) for x, kind in zip(operands, kinds, strict=True)]
        results = primitive.bind(*given, **primitive.get_bind_params(params))  # jaxprs as functions, where it holds any
        return [data_of(x) for x in (results if primitive.multiple_results else (results,))]

    host = params["model"] if is_host_call(primitive) else b""
    nodes = _node(primitive.name, (primitive, _identity(params), kinds), call, xs, out, not eqn.effects, host)
    if primitive in _KNOWN_TO_PROVER:
        whole = nodes[0].inputs[0] if nodes[0].op == "result" else nodes[0]
        opaque.state(whole["params_key"], params)
    return nodes


def keep_function(
    name: str, closed: core.ClosedJaxpr, xs: Sequence[Node], out: Sequence[TensorType], vmap: str = ""
) -> tuple[Node, ...]:
    """A whole jaxpr as one opaque node: it has effects whose order matters, or its own rule for `vmap`, named here."""
    kinds = [kind_of(a) for a in closed.in_avals]
    run = core.jaxpr_as_fun(closed)

    def call(*operands: Any) -> Sequence[Any]:
        given = [with_kind(x, kind) for x, kind in zip(operands, kinds, strict=True)]
        return [data_of(x) for x in run(*given)]

    kept = modules.without_vmap(call, vmap) if vmap else call
    return _node(name, Same(closed), kept, xs, out, not closed.effects, vmap=vmap)


def keep_call(
    name: str, identity: Any, call: Callable[..., Sequence[Any]], xs: Sequence[Node], out: Sequence[TensorType]
) -> tuple[Node, ...]:
    """A function of ours as an opaque node; equal name and identity must mean the same function."""
    return _node(name, identity, call, xs, out, pure=True)


def _node(
    name: str,
    identity: Any,
    call: Callable[..., Sequence[Any]],
    xs: Sequence[Node],
    out: Sequence[TensorType],
    pure: bool,
    host: bytes = b"",
    vmap: str = "",
) -> tuple[Node, ...]:
    """Return the results of an opaque operation as nodes; a pure one at given sizes is exported as a module, once."""
    operands, results = tuple(x.type for x in xs), tuple(out)
    if not pure or any(has_symbols(t.shape) for t in (*operands, *results)):
        key = opaque.register(name, identity, call)
    else:
        known = (name, identity, operands, results)
        key = _KNOWN.get(known)
        if key is None:
            exported = modules.export_model(host, name, operands, results) if host else None
            module = modules.export(call, operands, results, vmap) if exported is None else exported
            key = opaque.register_module(name, module, call) if module else opaque.register(name, identity, call)
            while len(_KNOWN) >= _MOST_KNOWN:
                del _KNOWN[next(iter(_KNOWN))]
            _KNOWN[known] = key
    return results_of(mk("opaque", *xs, primitive=name, params_key=key, result_types=results))


class Same:
    """Equal only to itself, whatever the equality of its content."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __repr__(self) -> str:
        return type(self.held).__name__


def _identity(params: Mapping[str, Any]) -> Any:
    items = tuple(sorted(params.items()))
    try:
        hash(items)
    except TypeError:
        return Same(items)
    return items
