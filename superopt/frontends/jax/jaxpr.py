"""JAX functions as graphs, and optimised programs as the functions that they came from.

`import_function(fn, args)` traces `fn` on abstract values (nothing is computed) and walks the jaxpr.  Arguments named
in `frozen` become frozen inputs, arrays that `fn` closes over become constants of the graph.  Results have the types
of `jax.eval_shape`, which is checked.

`call.wrap_like_original(imported, executable)` gives the executable the calling convention of `fn`: same pytrees in and
out, structure, shapes and dtypes checked, usable under `jit` and `vmap`; derivatives go through `fn` itself.  Frozen
arguments are still passed.  As long as they are the very arrays that the program was prepared with, nothing is
recomputed.  Others are prepared first, so that the result is right for any arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.extend import core

from superopt.errors import ArgumentError, InputError, SuperoptError, one_line_with_place
from superopt.files.trees import misfit, parameters_of, tree_data
from superopt.foreign.onnx_calls import HostPart
from superopt.frontends.jax.arguments import abstract, as_taken, as_weak, check_leaf, check_value, is_type, is_weak
from superopt.frontends.jax.boundary import Inside, UserFunction, enter, is_static, user_function
from superopt.frontends.jax.derivatives import own_vmap
from superopt.frontends.jax.jit_settings import (
    NO_SETTINGS,
    JitSettings,
    is_jitted,
    settings_of,
    settings_of_jax,
    unjitted,
    wrap_static,
)
from superopt.frontends.jax.keys import is_key, with_kind
from superopt.frontends.jax.opaque_eqns import equations, keep_function
from superopt.frontends.jax.walk import Effect, Importer, KeptWhole, of_debugging
from superopt.ir.graph import Graph, Node, bodies_of, make_input
from superopt.ir.types import TensorType

Frozen = int | str | Iterable[int | str] | None


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A function as a graph, with the data needed to call it as before.

    Attributes:
        graph: inputs are the flattened arguments in order, then the constants.
        fn: the function.
        in_tree: structure of `(args, kwargs)`.
        out_tree: structure of the result.
        names: name of each flat argument (`params.layers.0.w`), also the name of its input node.
        live: positions of the flat arguments that change from call to call.
        frozen: positions of the flat arguments that do not.
        examples: the flat example arguments.
        opaque_ops: primitives that are kept verbatim, in bodies too.
        effects: debugging effects to perform after a call; their operands are the last outputs of the graph.
        whole: why the function is kept whole, as one opaque node; empty where it is not.
        refused: (primitive, cause) where an equation has a form in the IR and the op table did not accept it.
        widened: positions of the flat arguments of 64-bit integers for which 32-bit ones may be given.
        weakness: which flat arguments may be weakly typed together, and which results then are; None where weak types
            do not matter (models).
        settings: static and donated arguments, of a jitted function.
        functions: whether the arguments' containers contain leaves that are no arrays.
        context: the settings of JAX at the import.
        head: computation on the host from the arguments before a call, outside of any trace (see
            `superopt.foreign.onnx_calls`).
        tail: computation on the host from the results after a call, likewise.
        placed: position of a frozen argument -> its value in a file (`superopt.pipeline.weights`), read in place of the
            example.
        remarks: what the frontend says of the import, for the report.
        scopes: node of the graph -> the name that the program gives it: named scopes, or the node of the model.
        own_derivatives: derivatives that the function defines or stops itself (`jax.custom_vjp of f`).
        titles: names of the results in the file of a model; empty for a function.
    """

    graph: Graph
    fn: UserFunction
    in_tree: Any
    out_tree: Any
    names: tuple[str, ...]
    live: tuple[int, ...]
    frozen: tuple[int, ...]
    examples: tuple[Any, ...]
    opaque_ops: Counter[str]
    refused: Counter[tuple[str, str]]
    widened: tuple[int, ...] = ()
    weakness: dict[tuple[bool, ...], tuple[bool, ...] | None] | None = None
    settings: JitSettings = NO_SETTINGS
    functions: bool = False
    context: tuple[Any, ...] = ()
    head: HostPart | None = None
    tail: HostPart | None = None
    effects: tuple[Effect, ...] = ()
    whole: str = ""
    placed: Mapping[int, Any] = field(default_factory=dict[int, Any])
    remarks: tuple[str, ...] = ()
    scopes: Mapping[Node, str] = field(default_factory=dict[Node, str])
    own_derivatives: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the import for the report."""
        if not self.effects:
            return self.remarks
        names = ", ".join(f"{name} x{n}" for name, n in Counter(e.primitive.name for e in self.effects).items())
        return (*self.remarks, f"effects are kept: {names} in their order, after the results of a call are computed")

    @property
    def closes_over(self) -> bool:
        """Whether the function closes over the arrays that come with the graph (those of a model are its arguments)."""
        return self.weakness is not None

    @property
    def frozen_values(self) -> dict[str, Any]:
        """Values of the frozen arguments by input name (constants are in `graph.constants`)."""
        return {self.names[i]: self.placed.get(i, self.examples[i]) for i in self.frozen}

    @property
    def live_values(self) -> list[Any]:
        """The example values of the live arguments, of the types that the graph takes.

        Where only a type was given it is a `ShapeDtypeStruct`.
        """
        return [_of_type(self.examples[i], self.graph.inputs[i].dtype) for i in self.live]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The flat arguments of a call, checked against the types of the import.

        Raises:
            ArgumentError: they have another structure, shape or dtype.
        """
        leaves, tree = tree_util.tree_flatten(positional(self.fn, args, kwargs or {}))
        if tree != self.in_tree:
            raise ArgumentError(
                self._misfit(args, kwargs or {}),
                hint="call with the same pytrees as the example arguments, or optimise again",
            )
        for i in self.live:
            leaves[i] = as_taken(leaves[i], self.graph.inputs[i].dtype, i in self.widened)
        for name, leaf, example, node in zip(self.names, leaves, self.examples, self.graph.inputs, strict=False):
            if leaf is not example and not is_type(leaf, node):
                check_leaf(name, leaf)
                got = abstract(leaf)
                raise ArgumentError(
                    f"argument {name} is {TensorType(got.shape, str(got.dtype))}, the program was made for {node.type}",
                    hint="call with the shapes and dtypes of the example arguments, or optimise again",
                )
        if self.weak_results(leaves) is None:
            self._refuse_weak(leaves)
        return leaves

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            return misfit(tree_data(self.in_tree), self.parameters, *positional(self.fn, args, kwargs))
        except InputError:  # arguments that cannot be described
            return "the arguments have another structure than the program was made for"

    @property
    def parameters(self) -> list[str]:
        """The name of each positional argument: the one in its leaves' names, else the function's own.

        Raises:
            InputError: an argument cannot be described.
        """
        positions, named = self.in_tree.children()
        declared = _parameter_names(self.fn, [None] * len(positions.children()), dict.fromkeys(named.node_data()[1]))
        return [
            name or other
            for name, other in zip(parameters_of(tree_data(self.in_tree), self.names), declared, strict=True)
        ]

    @property
    def by_name(self) -> tuple[str, ...]:
        """The name of each argument, where each may be passed by name; else nothing."""
        signature = _normal_signature(self.fn)
        taken = () if signature is None else tuple(signature.parameters.values())
        named = all(x.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for x in taken)
        return tuple(x.name for x in taken) if named else ()

    def positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call in the form of `in_tree`."""
        return positional(self.fn, args, kwargs)

    def weak_results(self, leaves: Sequence[Any]) -> tuple[bool, ...] | None:
        """Which results are weakly typed for these flat arguments; None where the program would be another one.

        A Python number takes the dtype of the other operand and an array does not, but in most functions that makes no
        difference.  Then either may be passed (a counter that begins as 0 and comes back as an array).  Unknown cases
        are settled by tracing the function.
        """
        if self.weakness is None:
            return ()
        weak = tuple(map(is_weak, leaves))
        if weak not in self.weakness:
            self.weakness[weak] = self._traced_weak(weak)
        return self.weakness.get(weak)

    def _traced_weak(self, weak: Sequence[bool]) -> tuple[bool, ...] | None:
        types = map(abstract, self.examples)
        leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=w) for a, w in zip(types, weak, strict=True)]
        try:
            closed, _ = _trace(self.fn, tree_util.tree_unflatten(self.in_tree, leaves))
            importer = Importer(reserved=self.names)
            outputs, _ = _outputs(importer, self.fn, closed, self.graph.inputs[: len(self.names)], self.whole)
        except SuperoptError:  # it does not take them so
            return None
        constants = {node["name"]: array for node, array in importer.constants.items()}
        same = tuple(outputs) == self.graph.outputs and _equal(constants, self.graph.constants)
        return _weak_flags(closed) if same else None

    def _refuse_weak(self, leaves: Sequence[Any]) -> None:
        for name, leaf, example in zip(self.names, leaves, self.examples, strict=True):
            if is_weak(example) and not is_weak(leaf):
                raise ArgumentError(
                    f"argument {name} is an array, the program was made for a number, whose dtype gives way",
                    hint="optimise with an array in its place: jax.numpy.asarray of the number",
                )
            if is_weak(leaf) and not is_weak(example):
                raise ArgumentError(
                    f"argument {name} is a number, whose dtype gives way, the program was made for an array",
                    hint="call with an array in its place: jax.numpy.asarray of the number, with its dtype",
                )

    def without_examples(self) -> Imported:
        """The same with types in place of the example values that are not frozen."""
        examples = tuple(x if i in self.frozen else abstract(x) for i, x in enumerate(self.examples))
        return replace(self, examples=examples)

    def results(self, outputs: Sequence[Any]) -> list[Any]:
        """The flat results of the function from the outputs of its graph; performs its effects."""
        results, rest = list(outputs[: self.out_tree.num_leaves]), list(outputs[self.out_tree.num_leaves :])
        for effect in self.effects:
            count = len(effect.kinds)
            effect.primitive.bind(*map(with_kind, rest[:count], effect.kinds), **effect.params)
            del rest[:count]
        return results

    def unflatten(self, results: Sequence[Any], weak: Sequence[bool] | None = ()) -> Any:
        """The result of the function from flat results, with those marked in `weak` weakly typed."""
        if weak and any(weak):
            results = [as_weak(x) if w else x for x, w in zip(results, weak, strict=True)]
        return tree_util.tree_unflatten(self.out_tree, results)


def import_function(
    fn: UserFunction,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    frozen: Frozen = (),
    whole: str = "",
) -> Imported:
    """The graph of a JAX function on example arguments.

    Args:
        fn: any function that `jax.make_jaxpr` traces.
        args: example arguments, any pytrees of arrays and scalars; `jax.ShapeDtypeStruct` where only a type is known.
        kwargs: example keyword arguments.
        frozen: positions or names of arguments whose leaves do not change from call to call.
        whole: why the function is kept whole in any case.

    Raises:
        ArgumentError: an argument is not an array, a frozen one has no value, or `fn` refuses the arguments.
    """
    kwargs = dict(kwargs or {})
    names_of = _parameter_names(fn, args, kwargs)
    is_frozen = _frozen_parameters(fn, args, kwargs, names_of, frozen)
    settings = settings_of(fn)
    normal = positional(fn, *wrap_static(args, kwargs, settings))
    paths, in_tree = tree_util.tree_flatten_with_path(normal)
    functions = any(len(path) > 2 and is_static(leaf) for path, leaf in paths)
    if functions and is_jitted(fn):  # which would not take them
        fn = unjitted(fn)
    if functions or settings.static or any(is_key(leaf) for _, leaf in paths):
        fn, normal = Inside(fn, settings), enter(normal)
        paths, in_tree = tree_util.tree_flatten_with_path(normal)
    leaves = [leaf for _, leaf in paths]
    owners = [_owner(path, names_of) for path, _ in paths]
    names = _unique(".".join([owner, *map(_entry, path[2:])]) for owner, (path, _) in zip(owners, paths, strict=True))
    fixed = [owner in is_frozen for owner in owners]
    for name, leaf, held in zip(names, leaves, fixed, strict=True):
        check_leaf(name, leaf)
        check_value(name, leaf)
        if held and isinstance(leaf, jax.ShapeDtypeStruct):
            raise ArgumentError(
                f"the frozen argument {name} has a type but no value", hint="pass the array itself, or do not freeze it"
            )
    avals = [abstract(leaf) for leaf in leaves]
    closed, out_shape = _trace(fn, tree_util.tree_unflatten(in_tree, avals))
    if any(map(is_key, closed.out_avals)):  # made inside
        fn = Inside(fn, settings)
        closed, out_shape = _trace(fn, tree_util.tree_unflatten(in_tree, avals))
    inputs = [
        make_input(name, tuple(map(int, a.shape)), str(a.dtype), frozen=held)
        for name, a, held in zip(names, avals, fixed, strict=True)
    ]
    importer = Importer(reserved=names)
    outputs, whole = _outputs(importer, fn, closed, inputs, whole)
    results = outputs[: len(closed.out_avals)]
    wanted = [TensorType(tuple(s.shape), str(s.dtype)) for s in tree_util.tree_leaves(out_shape)]
    if [node.type for node in results] != wanted:
        raise SuperoptError(f"the graph gives {[str(n.type) for n in results]}, the function {list(map(str, wanted))}")
    constants = {node["name"]: array for node, array in importer.constants.items()}
    graph = Graph((*inputs, *importer.constants), tuple(outputs), constants)
    return Imported(
        graph=graph,
        fn=fn,
        in_tree=in_tree,
        out_tree=tree_util.tree_structure(out_shape),
        names=tuple(names),
        live=tuple(i for i, held in enumerate(fixed) if not held),
        frozen=tuple(i for i, held in enumerate(fixed) if held),
        examples=tuple(leaves),
        opaque_ops=count_opaque(graph),
        refused=importer.refused,
        own_derivatives=tuple(sorted(importer.own_derivatives)),
        effects=tuple(effect for effect, _ in importer.effects),
        whole=whole,
        weakness={tuple(map(is_weak, avals)): _weak_flags(closed)},
        settings=settings,
        functions=functions,
        context=settings_of_jax(),
        scopes={node: scope for node, scope in importer.scopes.items() if node.op not in ("input", "literal")},
    )


def _of_type(x: Any, dtype: str) -> Any:
    """An example as JAX takes it: other 64-bit numbers, those of Python among them, in the type of the graph."""
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct) or getattr(x, "dtype", None) == dtype:
        return x
    return np.asarray(x).astype(jax.numpy.dtype(dtype))


def _weak_flags(closed: core.ClosedJaxpr) -> tuple[bool, ...]:
    return tuple(bool(getattr(a, "weak_type", False)) for a in closed.out_avals)


def count_opaque(graph: Graph) -> Counter[str]:
    """Opaque operations of a graph by primitive, bodies of control flow included."""
    count: Counter[str] = Counter()
    todo = [graph]
    while todo:
        for node in todo.pop().nodes():
            if node.op == "opaque" and node["primitive"] != "constant":
                count[node["primitive"]] += 1
            todo += bodies_of(node)
    return count


def _outputs(
    importer: Importer, fn: UserFunction, closed: core.ClosedJaxpr, inputs: Sequence[Node], whole: str
) -> tuple[list[Node], str]:
    """The results and the operands of effects as nodes, and why the function is kept whole (`whole`) if it is."""
    vmap = next(filter(None, map(own_vmap, equations(closed))), "")
    try:
        if whole:
            raise KeptWhole(whole)
        if vmap:
            raise KeptWhole(f"it defines vmap itself ({vmap})")
        if not of_debugging(closed.effects):  # these are ordered against each other
            raise KeptWhole("it has effects besides its results")
        results = importer.run(closed.jaxpr, [importer.constant(c) for c in closed.consts], inputs)
        return [*results, *(x for _, xs in importer.effects for x in xs)], ""
    except KeptWhole as cause:
        importer.constants.clear()
        importer.effects.clear()
        types = [TensorType(tuple(a.shape), str(a.dtype)) for a in closed.out_avals]
        return list(keep_function(getattr(fn, "__name__", "function"), closed, inputs, types, vmap)), str(cause)


def _trace(fn: UserFunction, avals: Any) -> tuple[Any, Any]:
    args, kwargs = avals
    try:
        return jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    except jax.errors.JAXTypeError as error:  # a traced value where Python needs a concrete one
        first = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"the function cannot be traced: {first}",
            hint="close over the arguments that steer Python control flow (functools.partial)",
        ) from error
    except SuperoptError:
        raise
    except Exception as error:  # an error of the user's code; its place helps more than its type
        raise ArgumentError(
            f"the function fails on these arguments: {one_line_with_place(error, _PACKAGES)}",
            hint="check the example arguments; jax.jit must accept the function",
        ) from error


_PACKAGES = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]))


def _equal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """Whether the constants have the same names, types and bytes."""
    return a.keys() == b.keys() and all(
        x.shape == b[name].shape and x.dtype == b[name].dtype and x.tobytes() == b[name].tobytes()
        for name, x in a.items()
    )


def positional(
    fn: UserFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as positional where the signature allows it, so that both ways of passing them are one structure."""
    if not kwargs:
        return tuple(args), {}
    signature = _normal_signature(fn)
    if signature is None:
        return tuple(args), dict(kwargs)
    bound = _bind(signature, args, kwargs)
    return bound.args, dict(bound.kwargs)


@functools.lru_cache(maxsize=64)
def _signature_of(fn: UserFunction) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without signature
        return None


def _signature(fn: UserFunction) -> inspect.Signature | None:
    try:
        return _signature_of(fn)
    except TypeError:  # an unhashable callable
        return _signature_of.__wrapped__(fn)


def _normal_signature(fn: UserFunction) -> inspect.Signature | None:
    """The signature of a function for which it does not matter whether arguments are passed by position or by name."""
    signature = _signature(fn)
    alike = signature is not None and settings_of(user_function(fn)).takes_alike(signature.parameters.values())
    return signature if alike else None


def _bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"the arguments do not fit the function: {error}", hint=f"it is f{signature}") from error


def _parameter_names(fn: UserFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Name of each positional argument of the normal form."""
    signature = _signature(fn)
    if signature is None:
        return [f"arg{i}" for i in range(len(args))]
    bound = _bind(signature, args, kwargs)
    bound = signature.bind_partial(*args) if _normal_signature(fn) is None else bound
    names: list[str] = []
    for name in bound.arguments:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}{i}" for i in range(len(bound.arguments[name]))]
        elif kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names


def _frozen_parameters(
    fn: UserFunction, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str], frozen: Frozen
) -> set[str]:
    """Names of the frozen arguments; a position counts the positional parameters."""
    try:
        given = (frozen,) if isinstance(frozen, int | str) else () if frozen is None else tuple(frozen)
    except TypeError:
        raise ArgumentError(
            f"frozen={frozen!r} is neither a position nor a name, nor several", hint="frozen=0 or frozen=('params',)"
        ) from None
    keys = [*names, *(k for k in positional(fn, args, kwargs)[1])]
    parameters: set[str] = set()
    for item in given:
        if isinstance(item, str):
            if item not in keys:
                raise ArgumentError(f"frozen={item!r} names no argument", hint=f"the arguments are {', '.join(keys)}")
            parameters.add(item)
        elif isinstance(item, int) and not isinstance(item, bool) and -len(names) <= item < len(names):
            parameters.add(names[item])
        else:
            raise ArgumentError(
                f"frozen={item!r} is not an argument position", hint=f"there are {len(names)} positional arguments"
            )
    return parameters


def _owner(path: Sequence[Any], names: Sequence[str]) -> str:
    where, key = path[0].idx, path[1]
    return str(names[key.idx]) if where == 0 else str(key.key)


def _entry(key: object) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _unique(names: Iterable[str]) -> list[str]:
    seen: Counter[str] = Counter()
    fresh: list[str] = []
    for raw in names:
        name = re.sub(r"[^A-Za-z0-9_.]", "_", raw)
        if name[:1].isdigit():
            name = f"_{name}"
        while name in seen:
            seen[name] += 1
            name = f"{name}_{seen[name]}"
        seen[name] += 1
        fresh.append(name)
    return fresh
