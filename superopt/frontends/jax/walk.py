"""Walks a jaxpr and builds the graph of its computation.

Calls (`jit`, `custom_jvp_call`, `custom_vjp_call`, `remat`, `closed_call` ...) and the branch of a `cond` that is known
are walked in place, with an explicit stack of frames.  `scan`, `while` and `cond` become control nodes whose bodies are
graphs.  Arrays that a body closes over are lifted out of it, so that bodies have no constants and equal bodies are one
object.  Body inputs that are the same on every iteration and depend on frozen inputs alone are flagged frozen.

Debugging effects (`jax.debug.print`) are no part of the graph.  Their operands are outputs, and the effects are
performed with them after the call, in their order.  A function with other effects, or with effects inside of equations
with results, is kept whole.  Every other equation goes through `jax_ops.IMPORT`; one without a form there is kept
verbatim as an opaque node that binds the same primitive with the same parameters.  Each refusal of the op table is
counted with its cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend import core

from superopt.errors import ShapeError
from superopt.frontends.jax.builders import broadcast, full, reshape, scalar, window
from superopt.frontends.jax.derivatives import own_derivative
from superopt.frontends.jax.keys import data_of, data_type, is_key, kind_of
from superopt.frontends.jax.linear import linear_call
from superopt.frontends.jax.opaque_eqns import keep, keep_call, results_of, types_of
from superopt.frontends.jax.ops import IMPORT
from superopt.frontends.jax.sizes import size
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.index import greatest
from superopt.ir.types import DTYPES, TensorType

# call primitive -> the parameter that holds its jaxpr
INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
JaxprAtom = core.Var | core.Literal
DEBUG = ("DebugEffect", "OrderedDebugEffect")  # effects that may happen after the results


class KeptWhole(Exception):
    """The function is left as it is, for its effects or its own rule for `vmap`; the message names them."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An equation without results, to be bound after a call; `kinds` of keys among its operands (None: an array)."""

    primitive: core.Primitive
    params: Mapping[str, Any]
    kinds: tuple[Any, ...]


class Importer:
    """Builds nodes for one scope: the program, or one body, whose constants belong to the scope around it.

    Attributes:
        constants: lifted arrays by their input node, in order.
        effects: debugging effects with their operands, in their order.
        refused: (primitive, cause) of equations that the op table did not accept although they have an entry.
        scopes: node -> the named scopes in which the program computes it first (`jax.named_scope`); none for others.
        own_derivatives: derivatives that the function defines or stops itself.
        same: inputs of a body that are the same on every iteration.
    """

    def __init__(self, outer: Importer | None = None, reserved: Iterable[str] = ()) -> None:
        self._names = set(reserved)
        self.constants: dict[Node, np.ndarray] = {}
        self.effects: list[tuple[Effect, Sequence[Node]]] = []
        self.refused: Counter[tuple[str, str]] = outer.refused if outer else Counter()
        self.scopes: dict[Node, str] = {}
        self.own_derivatives: set[str] = outer.own_derivatives if outer else set()
        self.same: set[Node] = set()
        self._known: dict[Any, Node] = {}
        self._varies: dict[Node, bool] = {}
        self._changes: dict[Node, bool] = {}

    def constant(self, value: Any) -> Node:
        """The node of an array that came with the program: a literal, a broadcast literal, or a frozen input."""
        value = data_of(value)
        dtype = str(value.dtype if hasattr(value, "dtype") else jnp.result_type(value))
        array = np.asarray(value, jnp.dtype(dtype))
        if array.ndim == 0 and dtype in DTYPES:
            return scalar(array.item(), dtype)
        # one array gets one input, in whatever objects jax wraps it
        where = (array.__array_interface__["data"][0], array.shape, array.strides, dtype)
        known = self._known.get(where)
        if known is None:
            if dtype in DTYPES and _uniform(array):
                return full(array.shape, array.flat[0].item() if array.size else 0, dtype)
            name = f"const{len(self.constants)}"
            while name in self._names:
                name += "_"
            known = self._known[where] = make_input(name, array.shape, dtype, frozen=True)
            self.constants[known] = array  # kept alive here, so that its address stays its own
        return known

    def varies(self, node: Node) -> bool:
        """Whether a node depends on an input that is not frozen."""
        return _depends(node, self._varies, lambda x: not x["frozen"])

    def changes(self, node: Node) -> bool:
        """Whether a node depends on an input that is neither frozen nor the same on every iteration."""
        return _depends(node, self._changes, lambda x: not x["frozen"] and x not in self.same)

    def run(self, jaxpr: core.Jaxpr, consts: Sequence[Node], args: Sequence[Node]) -> list[Node]:
        """The results of a jaxpr on these nodes."""
        frames = [_Frame(jaxpr, [*consts, *args], ())]
        while True:
            frame = frames[-1]
            if frame.at == len(frame.jaxpr.eqns):
                results = [self._read(frame, atom) for atom in frame.jaxpr.outvars]
                frames.pop()
                if not frames:
                    return results
                frames[-1].env.update(zip(frame.dest, results, strict=True))
                continue
            eqn = frame.jaxpr.eqns[frame.at]
            frame.at += 1
            name = eqn.primitive.name
            xs = [self._read(frame, atom) for atom in eqn.invars]
            if own := own_derivative(eqn):
                self.own_derivatives.add(own)
            scope = "/".join(filter(None, (frame.scope, str(eqn.source_info.name_stack))))
            inner = eqn.params.get(INLINED[name]) if name in INLINED else None
            if name == "cond" and xs[0].op == "literal":
                branches, (index, *xs) = eqn.params["branches"], xs
                inner = branches[min(max(int(index["value"]), 0), len(branches) - 1)]
            if eqn.effects and inner is None:
                self._effect(eqn, xs, frame)
                continue
            linear = linear_call(eqn, inner, xs) if inner is not None else None
            if linear is not None and (linear.op == "inverse" or self.changes(xs[0])):
                nodes: Sequence[Node] = [linear]  # what is left to factorise once is not one op with its right side
            elif inner is not None:
                closed = hasattr(inner, "consts")
                held = [self.constant(c) for c in inner.consts] if closed else []
                frames.append(_Frame(inner.jaxpr if closed else inner, [*held, *xs], eqn.outvars, scope))
                continue
            else:
                nodes = self._equation(eqn, name, xs)
            frame.env.update(zip(eqn.outvars, nodes, strict=True))
            if scope:
                for node in nodes:
                    self.scopes.setdefault(node, scope)

    def _effect(self, eqn: core.JaxprEqn, xs: Sequence[Node], frame: _Frame) -> None:
        name, made = eqn.primitive.name, set(eqn.outvars)
        readers = [*(e.invars for e in frame.jaxpr.eqns[frame.at :]), frame.jaxpr.outvars]
        if any(not isinstance(x, core.Literal) and x in made for read in readers for x in read):
            raise KeptWhole(f"{name} computes something and has effects besides")
        if not of_debugging(eqn.effects) or any(x.dtype not in DTYPES for x in xs):
            raise KeptWhole(f"{name} has effects")
        kinds = tuple(kind_of(v.aval) for v in eqn.invars)
        self.effects.append((Effect(eqn.primitive, dict(eqn.params), kinds), xs))

    def _read(self, frame: _Frame, atom: JaxprAtom) -> Node:
        if not isinstance(atom, core.Literal):
            return frame.env[atom]
        value: Any = atom.val
        dtype = str(getattr(atom.aval, "dtype", ""))
        return scalar(value, dtype) if dtype in DTYPES and not np.shape(value) else self.constant(value)

    def _equation(self, eqn: core.JaxprEqn, name: str, xs: Sequence[Node]) -> Sequence[Node]:
        out = types_of(eqn)
        if name in ("random_wrap", "random_unwrap"):  # a graph holds the data of keys
            return xs
        if name in ("squeeze", "expand_dims", "slice") and is_key(eqn.invars[0].aval):
            return [_key_part(eqn, xs[0], out[0])]
        native = all(str(getattr(v.aval, "dtype", "")) in DTYPES for v in (*eqn.invars, *eqn.outvars))
        entry, control = IMPORT.get(name) if native else None, _CONTROL.get(name)
        try:
            got = entry(eqn.params, xs, out) if entry else control(self, eqn, xs) if control else None
        except ShapeError as error:
            self.refused[name, str(error)] += 1
            got = None
        if got is None:
            return keep(eqn, xs, out)
        nodes = (got,) if isinstance(got, Node) else tuple(got)
        if len(nodes) == len(out):
            nodes = tuple(map(_of_known_size, nodes, out))
        if tuple(n.type for n in nodes) != out:
            self.refused[name, f"import gives {[str(n.type) for n in nodes]}, wanted {[str(t) for t in out]}"] += 1
            return keep(eqn, xs, out)
        return nodes

    def body(self, closed: core.ClosedJaxpr, inputs: Sequence[Node], scope: Importer) -> tuple[Node, ...]:
        """The results of a body's jaxpr on its own inputs, with closed-over arrays taken from `scope`."""
        return tuple(scope.run(closed.jaxpr, [scope.constant(c) for c in closed.consts], inputs))


def _depends(node: Node, known: dict[Node, bool], wanted: Callable[[Node], bool]) -> bool:
    """Whether a node depends on an input that is wanted; `known` keeps the answers."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top in known:
            stack.pop()
        elif top.op == "input":
            known[top] = wanted(top)
        else:
            waiting = [x for x in top.inputs if x not in known]
            stack.extend(waiting)
            if not waiting:
                known[top] = any(known[x] for x in top.inputs)
    return known[node]


def _of_known_size(node: Node, wanted: TensorType) -> Node:
    """The node as max(0, n) where JAX knows from constraints that a size n of the wanted type is not negative."""
    if node.type == wanted or node.dtype != wanted.dtype or node.type.rank != wanted.rank:
        return node
    known = all(n == m or n == greatest(m, 0) for n, m in zip(node.shape, wanted.shape, strict=True))
    return window(node, (0,) * wanted.rank, wanted.shape) if known else node


class _Frame:
    """A jaxpr being walked: its variables so far, the next equation, the place of its results, its named scopes."""

    __slots__ = ("at", "dest", "env", "jaxpr", "scope")

    def __init__(self, jaxpr: core.Jaxpr, values: Sequence[Node], dest: Sequence[core.Var], scope: str = "") -> None:
        self.jaxpr, self.at, self.dest, self.scope = jaxpr, 0, dest, scope
        self.env: dict[core.Var, Node] = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))


def of_debugging(effects: Iterable[core.Effect]) -> bool:
    """Whether all effects are for debugging, so that nothing waits for them."""
    return all(type(effect).__name__ in DEBUG for effect in effects)


def _uniform(array: np.ndarray) -> bool:
    """Whether all elements have the same bit pattern."""
    if array.size == 0:
        return True
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((flat[-1] == flat[0]).all() and (flat[array.size // 2] == flat[0]).all() and (flat == flat[0]).all())


def _body_inputs(avals: Sequence[Any], frozen: Sequence[bool]) -> list[Node]:
    types = map(data_type, avals)
    return [
        make_input(f"arg{i}", t.shape, t.dtype, frozen=f) for i, (t, f) in enumerate(zip(types, frozen, strict=True))
    ]


def _key_part(eqn: core.JaxprEqn, x: Node, out: TensorType) -> Node:
    """One or some of several keys, as a part of their data."""
    if eqn.primitive.name != "slice":
        return reshape(x, out.shape)
    start, limit, strides = (eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    own = x.shape[len(start) :]
    steps = strides or (1,) * len(start)
    return window(x, (*start, *(0 for _ in own)), (*limit, *own), (*steps, *(1 for _ in own)))


def _select(which: Node, then: Node, orelse: Node) -> Node:
    """`then` where the selector holds, else `orelse`."""
    if then.dtype in DTYPES:
        return mk("select_n", which, orelse, then)

    def call(*operands: Any) -> Sequence[Any]:
        return (lax.select_n(*operands),)

    (node,) = keep_call("select_n", "masked", call, [which, orelse, then], [then.type])
    return node


def _scan(outer: Importer, eqn: core.JaxprEqn, xs: Sequence[Node]) -> Sequence[Node]:
    p, closed = eqn.params, eqn.params["jaxpr"]
    if "ft_in" in p:  # jax 0.11
        fixed, carries, _ = map(len, p["ft_in"].unpack())
    else:
        fixed, carries = int(p["num_consts"]), int(p["num_carry"])
    frozen = [i < fixed and not outer.varies(x) for i, x in enumerate(xs)]
    scope = Importer(outer)
    inputs = _body_inputs(closed.in_avals, frozen)
    scope.same.update(inputs[:fixed])
    outputs = outer.body(closed, inputs, scope)
    lifted = [outer.constant(c) for c in scope.constants.values()]
    node = mk(
        "scan",
        *lifted,
        *xs,
        body=Graph((*scope.constants, *inputs), outputs),
        num_consts=fixed + len(lifted),
        num_carry=carries,
        length=size(p["length"]),
        reverse=bool(p["reverse"]),
        unroll=int(p["unroll"]),
    )
    return results_of(node)


def _while(outer: Importer, eqn: core.JaxprEqn, xs: Sequence[Node]) -> Sequence[Node]:
    """A loop; under `vmap` its condition is one bit per element, and elements that are done keep their state."""
    p = eqn.params
    of_cond, of_body = int(p["cond_nconsts"]), int(p["body_nconsts"])
    cond_consts, body_consts, state = xs[:of_cond], xs[of_cond : of_cond + of_body], xs[of_cond + of_body :]
    batched = bool(p["cond_jaxpr"].out_avals[0].shape)

    def cond(scope: Importer, inputs: Sequence[Node]) -> tuple[Node, ...]:
        (going,) = outer.body(p["cond_jaxpr"], inputs, scope)
        return (mk("reduce_or", going, axes=tuple(range(len(going.shape)))) if batched else going,)

    def body(scope: Importer, inputs: Sequence[Node]) -> tuple[Node, ...]:
        if not batched:
            return outer.body(p["body_jaxpr"], inputs, scope)
        held, old = inputs[:of_cond], inputs[of_cond + of_body :]
        (going,) = outer.body(p["cond_jaxpr"], [*held, *old], scope)
        new = outer.body(p["body_jaxpr"], inputs[of_cond:], scope)
        kept = [broadcast(going, a.shape, range(len(going.shape))) for a in old]
        return tuple(_select(which, b, a) for which, a, b in zip(kept, old, new, strict=True))

    graphs: list[Graph] = []
    operands: list[list[Node]] = []
    kinds = [*p["cond_jaxpr"].in_avals[:of_cond], *p["body_jaxpr"].in_avals]
    first = 0 if batched else of_cond  # the body of a batched loop evaluates the condition too
    both = [*cond_consts, *body_consts]
    for results, consts, avals in (
        (cond, cond_consts, p["cond_jaxpr"].in_avals), (body, both[first:], kinds[first:])
    ):  # fmt: skip
        scope = Importer(outer)
        frozen = [*(not outer.varies(x) for x in consts), *(False for _ in state)]
        inputs = _body_inputs(avals, frozen)
        scope.same.update(inputs[: len(consts)])
        outputs = results(scope, inputs)
        graphs.append(Graph((*scope.constants, *inputs), outputs))
        operands.append([*(outer.constant(c) for c in scope.constants.values()), *consts])
    node = mk(
        "while",
        *operands[0],
        *operands[1],
        *state,
        cond=graphs[0],
        body=graphs[1],
        cond_nconsts=len(operands[0]),
        body_nconsts=len(operands[1]),
    )
    return results_of(node)


def _cond(outer: Importer, eqn: core.JaxprEqn, xs: Sequence[Node]) -> Sequence[Node]:
    index, *operands = xs
    scope = Importer(outer)  # shared: all branches take the same operands
    frozen = [not outer.varies(x) for x in operands]
    bodies: list[tuple[list[Node], tuple[Node, ...]]] = []
    for closed in eqn.params["branches"]:
        inputs = _body_inputs(closed.in_avals, frozen)
        scope.same.update(n for n, x in zip(inputs, operands, strict=True) if not outer.changes(x))
        bodies.append((inputs, outer.body(closed, inputs, scope)))
    lifted = [outer.constant(c) for c in scope.constants.values()]
    branches = tuple(Graph((*scope.constants, *inputs), outputs) for inputs, outputs in bodies)
    return results_of(mk("cond", index, *lifted, *operands, branches=branches))


_CONTROL = {"scan": _scan, "while": _while, "cond": _cond}
