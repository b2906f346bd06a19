"""JAX functions as graphs, and optimised programs as the functions that they came from.

`import_function(fn, args)` traces `fn` on abstract values (nothing is computed) and walks the jaxpr.  Arguments named
in `frozen` become frozen inputs, arrays that `fn` closes over become constants of the graph.  Results have the types
that `jax.eval_shape` gives, which is checked.

`wrap_like_original(imported, executable)` gives the executable the calling convention of `fn`: same pytrees in and
out, structure, shapes and dtypes checked, usable under `jit` and `vmap`; derivatives go through `fn` itself.  Frozen
arguments are still passed: as long as they are the very arrays that the program was prepared with nothing is
recomputed, others are prepared first, so that the result is right for any arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

from superopt.errors import ArgumentError, SuperoptError, told
from superopt.frontends.jax_call import wrap_like_original
from superopt.frontends.jax_walk import Importer, keep_function
from superopt.ir.graph import Graph, Node, make_input
from superopt.ir.types import DTYPES, TensorType

__all__ = ["Imported", "count_opaque", "import_function", "wrap_like_original"]

Frozen = int | str | Iterable[int | str] | None
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A function as a graph, with what is needed to call it as before.

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
        dropped: debugging effects left out of the graph.
        refused: (primitive, cause) where an equation has a form in the IR and the op table did not accept it.
        narrowed: positions of the flat arguments of 32 bits that stand for 64-bit ones, values of which must fit.
    """

    graph: Graph
    fn: Function
    in_tree: Any
    out_tree: Any
    names: tuple[str, ...]
    live: tuple[int, ...]
    frozen: tuple[int, ...]
    examples: tuple[Any, ...]
    opaque_ops: Counter[str]
    dropped: Counter[str]
    refused: Counter[tuple[str, str]]
    narrowed: tuple[int, ...] = ()

    @property
    def frozen_values(self) -> dict[str, Any]:
        """Values of the frozen arguments by input name (constants are in `graph.constants`)."""
        return {self.names[i]: self.examples[i] for i in self.frozen}

    @property
    def live_values(self) -> list[Any]:
        """The example values of the live arguments (`ShapeDtypeStruct` where only a type was given)."""
        return [self.examples[i] for i in self.live]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The flat arguments of a call, checked against the types of the import.

        Raises:
            ArgumentError: another structure, shape or dtype.
        """
        leaves, tree = tree_util.tree_flatten(_normal(self.fn, args, kwargs or {}))
        if tree != self.in_tree:
            raise ArgumentError(
                f"the arguments have the structure {tree}, the program was made for {self.in_tree}",
                hint="call with the same pytrees as the example arguments, or optimise again",
            )
        for i in self.live:
            leaves[i] = as_taken(self.names[i], leaves[i], self.graph.inputs[i].dtype, i in self.narrowed)
        for name, leaf, example, node in zip(self.names, leaves, self.examples, self.graph.inputs, strict=False):
            if leaf is not example and (not _is_type(leaf, node) or (_is_number(example) and not _is_weak(leaf))):
                _check_leaf(name, leaf)
                got = _abstract(leaf)
                raise ArgumentError(
                    f"argument {name} is {TensorType(got.shape, str(got.dtype))}, the program was made for {node.type}",
                    hint="call with the shapes and dtypes of the example arguments, or optimise again",
                )
        return leaves

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The result of the function from flat results."""
        return tree_util.tree_unflatten(self.out_tree, results)


def import_function(
    fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, frozen: Frozen = ()
) -> Imported:
    """The graph of a JAX function on example arguments.

    Args:
        fn: any function that `jax.make_jaxpr` traces.
        args: example arguments, any pytrees of arrays and scalars; `jax.ShapeDtypeStruct` where only a type is known.
        kwargs: example keyword arguments.
        frozen: positions or names of arguments whose leaves do not change from call to call.

    Raises:
        ArgumentError: an argument that is not an array, a frozen one without value, or arguments that `fn` refuses.
    """
    kwargs = dict(kwargs or {})
    names_of = _parameter_names(fn, args, kwargs)
    is_frozen = _frozen_parameters(fn, args, kwargs, names_of, frozen)
    normal = _normal(fn, args, kwargs)
    paths, in_tree = tree_util.tree_flatten_with_path(normal)
    leaves = [leaf for _, leaf in paths]
    owners = [_owner(path, names_of) for path, _ in paths]
    names = _unique(".".join([owner, *map(_entry, path[2:])]) for owner, (path, _) in zip(owners, paths, strict=True))
    fixed = [owner in is_frozen for owner in owners]
    for name, leaf, held in zip(names, leaves, fixed, strict=True):
        _check_leaf(name, leaf)
        _check_value(name, leaf)
        if held and isinstance(leaf, jax.ShapeDtypeStruct):
            raise ArgumentError(
                f"the frozen argument {name} has a type but no value", hint="pass the array itself, or do not freeze it"
            )
    avals = [_abstract(leaf) for leaf in leaves]
    closed, out_shape = _trace(fn, tree_util.tree_unflatten(in_tree, avals))
    inputs = [
        make_input(name, tuple(map(int, a.shape)), str(a.dtype), frozen=held)
        for name, a, held in zip(names, avals, fixed, strict=True)
    ]
    importer = Importer(reserved=names)
    outputs = _outputs(importer, fn, closed, inputs)
    wanted = [TensorType(tuple(s.shape), str(s.dtype)) for s in tree_util.tree_leaves(out_shape)]
    if [node.type for node in outputs] != wanted:
        raise SuperoptError(f"the graph gives {[str(n.type) for n in outputs]}, the function {list(map(str, wanted))}")
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
        dropped=importer.dropped,
        refused=importer.refused,
    )


def count_opaque(graph: Graph) -> Counter[str]:
    """Opaque operations of a graph by primitive, bodies of control flow included."""
    count: Counter[str] = Counter()
    todo = [graph]
    while todo:
        for node in todo.pop().nodes():
            if node.op == "opaque" and node["primitive"] != "constant":
                count[node["primitive"]] += 1
            for _, value in node.attrs:
                todo.extend(x for x in (value if isinstance(value, tuple) else (value,)) if isinstance(x, Graph))
    return count


def _outputs(importer: Importer, fn: Function, closed: Any, inputs: Sequence[Node]) -> list[Node]:
    # effects other than debugging are ordered against each other: such a function is kept whole
    if any(type(effect).__name__ != "DebugEffect" for effect in closed.effects):
        types = [TensorType(tuple(a.shape), str(a.dtype)) for a in closed.out_avals]
        return list(keep_function(getattr(fn, "__name__", "function"), closed, inputs, types))
    return importer.run(closed.jaxpr, [importer.constant(c) for c in closed.consts], inputs)


def _trace(fn: Function, avals: Any) -> tuple[Any, Any]:
    args, kwargs = avals
    try:
        return jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    except jax.errors.JAXTypeError as error:  # a traced value where Python needs a concrete one
        first = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"the function cannot be traced: {first}",
            hint="close over the arguments that steer Python control flow (functools.partial)",
        ) from error
    except (TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ArgumentError(
            f"the function does not accept these arguments: {lines[0]}", hint="check the example arguments' shapes"
        ) from error
    except SuperoptError:
        raise
    except Exception as error:  # the user's own; the place is more than its type says
        path = getattr(getattr(fn, "__code__", None), "co_filename", "")
        raise ArgumentError(f"the function fails: {told(error, path)}", hint="jax.jit must accept it") from error


def _normal(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as positional where the signature allows it, so that both ways of passing them are one structure."""
    if not kwargs:
        return tuple(args), {}
    signature = _signature(fn)
    if signature is None:
        return tuple(args), dict(kwargs)
    bound = _bind(signature, args, kwargs)
    return bound.args, dict(bound.kwargs)


@functools.lru_cache(maxsize=64)
def _signature_of(fn: Function) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without signature
        return None


def _signature(fn: Function) -> inspect.Signature | None:
    try:
        return _signature_of(fn)
    except TypeError:  # an unhashable callable
        return _signature_of.__wrapped__(fn)


def _bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"the arguments do not fit the function: {error}", hint=f"it is f{signature}") from error


def _parameter_names(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Name of each positional argument of the normal form."""
    signature = _signature(fn)
    if signature is None:
        return [f"arg{i}" for i in range(len(args))]
    bound = _bind(signature, args, kwargs)
    names: list[str] = []
    for name in bound.arguments:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}{i}" for i in range(len(bound.arguments[name]))]
        elif kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names


def _frozen_parameters(
    fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str], frozen: Frozen
) -> set[str]:
    """Names of the frozen arguments; a position counts the positional parameters."""
    given = (frozen,) if isinstance(frozen, int | str) else tuple(frozen or ())
    keys = [*names, *(k for k in _normal(fn, args, kwargs)[1])]
    found: set[str] = set()
    for item in given:
        if isinstance(item, str):
            if item not in keys:
                raise ArgumentError(f"frozen={item!r} names no argument", hint=f"the arguments are {', '.join(keys)}")
            found.add(item)
        elif isinstance(item, int) and not isinstance(item, bool) and -len(names) <= item < len(names):
            found.add(names[item])
        else:
            raise ArgumentError(
                f"frozen={item!r} is not an argument position", hint=f"there are {len(names)} positional arguments"
            )
    return found


def _owner(path: Sequence[Any], names: Sequence[str]) -> str:
    where, key = path[0].idx, path[1]
    return str(names[key.idx]) if where == 0 else str(key.key)


def _entry(key: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def _unique(names: Iterable[str]) -> list[str]:
    seen: Counter[str] = Counter()
    found: list[str] = []
    for raw in names:
        name = re.sub(r"[^A-Za-z0-9_.]", "_", raw)
        if name[:1].isdigit():
            name = f"_{name}"
        while name in seen:
            seen[name] += 1
            name = f"{name}_{seen[name]}"
        seen[name] += 1
        found.append(name)
    return found


def as_taken(name: str, value: Any, dtype: str, narrowed: bool) -> Any:
    """A NumPy value as an input of this dtype takes it, where JAX would make 32 bits of 64; others as they are.

    Raises:
        ArgumentError: a value does not fit into the 32 bits of an input that stands for one of 64.
    """
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.itemsize < 8:
        return value
    if str(value.dtype) == dtype:
        with jax.enable_x64(True):
            return jax.device_put(value)
    if narrowed and value.dtype.kind == "i" and value.size:
        limits = np.iinfo(dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise ArgumentError(
                f"argument {name} has values that {dtype} cannot hold",
                hint="enable 64-bit types before optimising: jax.config.update('jax_enable_x64', True)",
            )
    return value


def _check_leaf(name: str, leaf: Any) -> None:
    if isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
        dtype = str(leaf.dtype)
        if dtype in DTYPES:
            return
        kind, hint = f"of dtype {dtype}", f"dtypes here are {', '.join(DTYPES)}"
        if dtype.startswith("key<"):
            hint = "pass the key as uint32 data (jax.random.key_data) and wrap it inside (jax.random.wrap_key_data)"
    elif isinstance(leaf, bool | int | float):
        return
    else:
        kind = f"a {type(leaf).__name__}"
        hint = "arguments are pytrees of arrays and numbers; close over everything else (functools.partial)"
    raise ArgumentError(f"argument {name} is {kind}, not an array that can be optimised over", hint=hint)


def _check_value(name: str, leaf: Any) -> None:
    if isinstance(leaf, Tracer):
        raise ArgumentError(
            f"argument {name} is being traced and has no value",
            hint="optimise outside of jit, vmap and grad, and call the result inside",
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ArgumentError(f"argument {name} is an array that was deleted", hint="it was given away by donate_argnums")


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    aval: Any = jax.api_util.shaped_abstractify(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _is_number(leaf: Any) -> bool:
    """A Python int or float: its dtype gives way to that of what it meets (that of a bool does not)."""
    return isinstance(leaf, int | float) and not isinstance(leaf, bool | np.generic)


def _is_weak(leaf: Any) -> bool:
    """A Python number, or what stands for one under a trace."""
    return _is_number(leaf) or bool(getattr(leaf, "weak_type", False))


def _is_type(leaf: Any, node: Node) -> bool:
    if not isinstance(leaf, jax.Array):
        try:
            leaf = jax.api_util.shaped_abstractify(leaf)
        except TypeError:
            return False
    return leaf.shape == node.shape and str(leaf.dtype) == node.dtype
