"""An executable called like the function that it was made from.

Outside of a trace a call flattens its arguments, runs the hot part and unflattens the results.  Under `jit`, `vmap` or
`grad` it is a `custom_jvp` function whose value is the hot part and whose derivative is that of the original function,
so that every derivative is the original one.

Prepared tensors are kept for the frozen arrays last seen, compared by identity: arrays declared frozen do not
change.  Frozen arguments that are traced are prepared inside the trace.

Small programs run in tens of microseconds, in which every line of Python shows.  So the usual call is one jitted call:
its cache knows the types that the program was made for, and tracing refuses others.  Where arguments are frozen, this
serves if they are the same arrays as in the call before.  Results are computed asynchronously, so the call starts first
and the frozen arrays are compared while it runs; results for other arrays are discarded.  Types that it does not take
are cached as well, with `REFUSED` as their result: an exception out of a trace costs milliseconds at each call.

A program can also be traced into another function (`Direct.inside`).  Several programs of one original are then called
through one jitted function, whose cache chooses among them.  Their prepared tensors are constants there, so this is for
small ones alone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax import lax, tree_util
from jax.core import Tracer

from superopt.frontends.jax.arguments import widened_in_trace
from superopt.frontends.jax.boundary import Inside, enter, fix, holds_static, leave, leave_keys, outside
from superopt.frontends.jax.jit_settings import (
    NO_SETTINGS,
    JitSettings,
    is_jit_disabled,
    is_jitted,
    settings_of_jax,
    wrap_static,
)
from superopt.frontends.jax.placed import has_several_devices, is_placed, is_sharded
from superopt.machine.jitting import jax_jit

if TYPE_CHECKING:
    from superopt.frontends.jax.jaxpr import Imported

_MOST_CONSTANT_BYTES = 1 << 16  # largest prepared tensors that become constants in the code of a function


class Runnable(Protocol):
    """The interface of an executable that jitted calls need."""

    @property
    def packed(self) -> tuple[Any, ...]:
        """The prepared tensors in the form that `run_packed` takes."""
        ...

    @property
    def options(self) -> dict[str, bool | str]:
        """Options of the compiler in use."""
        ...

    def jit(self, fn: Callable[..., Any], **given_away: Any) -> Callable[..., Any]:
        """Compile a function around `run_packed` as the hot part is compiled; donated arguments are named as in
        `jax.jit`."""
        ...

    def run_packed(self, *arrays: Any) -> tuple[Any, ...]:
        """Results for live inputs and packed tensors, for use inside of a trace."""
        ...

    def pack(self, prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Prepared tensors in the form that `run_packed` takes."""
        ...

    def hot(self, live: Sequence[Any], prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Results for live inputs and prepared tensors."""
        ...


class Prepared(Runnable, Protocol):
    """The interface of an executable that calls of a function need, which prepare tensors of new frozen values."""

    prepared: tuple[Any, ...]

    @property
    def wide(self) -> bool:
        """Whether it runs with 64-bit types whatever the process has enabled."""
        ...

    def prepare(self, frozen: Sequence[Any]) -> tuple[Any, ...]:
        """Prepared tensors for frozen values."""
        ...


def calls_of_import(imported: Imported, executable: Prepared) -> tuple[Direct | None, Callable[..., Any]]:
    """Two functions with the arguments, results and derivatives of the original, which run the executable.

    The first is the direct call, where there is one; the second checks everything.

    Raises (when called, the second one):
        ArgumentError: arguments have another structure, shape or dtype than at import.
    """
    remembered = ([imported.examples[i] for i in imported.frozen], executable.prepared)

    def prepared_for(frozen: list[Any]) -> tuple[Any, ...]:
        nonlocal remembered
        known, prepared = remembered
        if not all(map(_same, frozen, known)):
            prepared = executable.prepare(frozen)
            remembered = (frozen, prepared)
        return prepared

    def original(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(imported.in_tree, leaves)
        return tree_util.tree_leaves(imported.fn(*args, **kwargs))

    @functools.lru_cache(1)
    def jitted() -> Callable[..., Any]:
        return imported.fn if is_jitted(imported.fn) else jax_jit(imported.fn, **imported.settings.given_away)

    def placed(*args: Any, **kwargs: Any) -> Any:
        return jitted()(*args, **kwargs)

    def merged(live: Sequence[Any], frozen: Sequence[Any]) -> list[Any]:
        leaves: list[Any] = [None] * (len(live) + len(frozen))
        for i, x in zip((*imported.live, *imported.frozen), (*live, *frozen), strict=True):
            leaves[i] = x
        return leaves

    def traced(live: list[Any], frozen: list[Any]) -> list[Any]:
        if any(isinstance(x, Tracer) for x in frozen):

            def fast(live: list[Any], frozen: list[Any]) -> list[Any]:
                return imported.results(executable.hot(live, executable.prepare(frozen)))

            def slow(live: list[Any], frozen: list[Any]) -> list[Any]:
                return original(merged(live, frozen))

            return with_derivative(fast, slow)(live, frozen)
        prepared = prepared_for(frozen)

        def fast_live(live: list[Any]) -> list[Any]:
            return imported.results(executable.hot(live, prepared))

        def slow_live(live: list[Any]) -> list[Any]:
            return original(merged(live, frozen))

        return with_derivative(fast_live, slow_live)(live)

    def general(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves = imported.flatten(args, kwargs)
        if imported.closes_over and is_placed(leaves):
            return placed(*args, **kwargs)
        live, frozen = [leaves[i] for i in imported.live], [leaves[i] for i in imported.frozen]
        if any(isinstance(x, Tracer) for x in leaves):
            return imported.unflatten(traced(live, frozen), imported.weak_results(leaves))
        results = executable.hot(live, prepared_for(frozen))
        return imported.unflatten(imported.results(results), imported.weak_results(leaves))

    @functools.wraps(imported.fn, updated=())
    def checked(*args: Any, **kwargs: Any) -> Any:
        """Call with any arguments, in the general way, which checks them."""
        return general(args, kwargs)

    direct = None if imported.frozen else _without_frozen(imported, executable)
    return direct or _with_frozen(imported, executable, lambda: remembered), checked


def with_derivative(fast: Callable[..., list[Any]], slow: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A function with the value of `fast` and the derivatives of `slow`."""
    run = jax.custom_jvp(fast)

    @run.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return jax.jvp(slow, primals, tangents)

    return run


class OtherTypesError(Exception):
    """The arguments are not of the types that the program was made for; raised where a program is traced."""


@tree_util.register_static
@dataclass(frozen=True, slots=True)
class NotTaken:
    """The result of a direct call whose arguments are not of the types that the program was made for."""


REFUSED = NotTaken()


def first_of(direct: Callable[..., Any], general: Callable[..., Any]) -> Callable[..., Any]:
    """A call that tries `direct` first and falls back to `general` for arguments that it refuses."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            results = direct(*args, **kwargs)
        except TypeError:  # for arguments that are no arrays; `general` names them
            return general(*args, **kwargs)
        return general(*args, **kwargs) if results is REFUSED else results

    return call


@dataclass(frozen=True, slots=True)
class Convention:
    """Calling convention of a program without frozen arguments, for functions and files alike.

    Attributes:
        flatten: traced arguments and keywords -> flat ones, and the other argument of `unflatten`.
        unflatten: flat results and that other argument -> results.
        slow: flat arguments -> flat results with the derivatives of the original; None where the program has them.
        adapted: whether arguments or results can be keys, or contain leaves that are no arrays.
        functions: whether containers of arguments contain leaves that are no arrays.
        returns_static: whether results do.
        settings: static and donated arguments.
    """

    flatten: Callable[[tuple[Any, ...], dict[str, Any]], tuple[list[Any], Any]]
    unflatten: Callable[[list[Any], Any], Any]
    slow: Callable[[list[Any]], Sequence[Any]] | None
    adapted: bool
    functions: bool
    returns_static: bool
    settings: JitSettings = NO_SETTINGS


@dataclass(frozen=True, slots=True)
class Direct:
    """A program as one jitted call.

    Attributes:
        call: the call with the user's arguments, which returns `REFUSED` for those of other types.
        inside: the same for use within a function that is being traced, which raises `OtherTypesError` for them; None
            where it works only by itself.
    """

    call: Callable[..., Any]
    inside: Callable[..., Any] | None = None


def direct_call(convention: Convention, executable: Runnable) -> Direct:
    """A program without frozen arguments as one jitted call.

    It donates the arguments that the original donates.
    """
    settings, adapted, slow = convention.settings, convention.adapted, convention.slow

    def fast(packed: Sequence[Any], leaves: list[Any]) -> list[Any]:
        return list(executable.run_packed(*leaves, *packed))

    run = fast if slow is None else with_derivative(fast, lambda packed, leaves: list(slow(leaves)))

    def body(packed: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        if is_jit_disabled():
            raise OtherTypesError
        if adapted:
            args, kwargs = enter((args, kwargs))
        leaves, rest = convention.flatten(args, kwargs)
        if is_placed(leaves):
            raise OtherTypesError
        results = convention.unflatten(run(packed, leaves), rest)
        return leave_keys(results) if adapted else results

    def answered(packed: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return body(packed, *args, **kwargs)
        except OtherTypesError:
            return REFUSED

    jitted = executable.jit(
        answered, donate_argnums=tuple(i + 1 for i in settings.donate_argnums), donate_argnames=settings.donate_argnames
    )
    packed = executable.packed

    def inside(*args: Any, **kwargs: Any) -> Any:
        constants = lax.optimization_barrier(packed) if packed else packed  # what was built reads them as arguments
        return body(constants, *args, **kwargs)

    alone = convention.functions or executable.options or sum(x.nbytes for x in packed) > _MOST_CONSTANT_BYTES
    if not (convention.functions or settings.static):
        return Direct(unless_sharded(functools.partial(jitted, packed)), None if alone else inside)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = fix(args, kwargs, settings) if convention.functions else wrap_static(args, kwargs, settings)
        results = jitted(packed, *args, **kwargs)
        return leave(results) if convention.returns_static else results

    def held_inside(*args: Any, **kwargs: Any) -> Any:
        """Call inside of a transformation, which sees no static argument."""
        args, kwargs = wrap_static(args, kwargs, settings)
        return inside(*args, **kwargs)

    return Direct(unless_sharded(call), None if alone or convention.returns_static else held_inside)


def _without_frozen(imported: Imported, executable: Prepared) -> Direct | None:
    """The direct call of an optimised function.

    None where more checks are needed: for effects (not every one may be inside of a function with its own derivative).
    """
    if imported.effects or imported.whole:
        return None
    context = (True, *imported.context[1:]) if executable.wide else imported.context

    def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tuple[bool, ...]]:
        if settings_of_jax() != context:
            raise OtherTypesError
        return _leaves_of_types(imported, args, kwargs)

    def slow(leaves: list[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(imported.in_tree, leaves)
        return tree_util.tree_leaves(imported.fn(*args, **kwargs))

    out = tree_util.tree_unflatten(imported.out_tree, [0] * imported.out_tree.num_leaves)
    convention = Convention(
        flatten,
        imported.unflatten,
        slow,
        adapted=isinstance(imported.fn, Inside),
        functions=imported.functions,
        returns_static=holds_static(out),
        settings=imported.settings,
    )
    return direct_call(convention, executable)


def _leaves_of_types(
    imported: Imported, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], tuple[bool, ...]]:
    """Traced arguments flat, and which results are weakly typed.

    Raises:
        OtherTypesError: they are not of the types of the import.
    """
    given, tree = tree_util.tree_flatten(imported.positional(args, kwargs))
    inputs = imported.graph.inputs[: len(given)]
    if tree != imported.in_tree:
        raise OtherTypesError
    leaves = widened_in_trace(given, [n.dtype for n in inputs], imported.widened)
    if [(x.shape, str(x.dtype)) for x in leaves] != [(n.shape, n.dtype) for n in inputs]:
        raise OtherTypesError
    weak = imported.weak_results(given)
    if weak is None:
        raise OtherTypesError
    return leaves, weak


@dataclass(frozen=True, slots=True)
class Usual:
    """Calling convention of a program with frozen arguments, for functions and files alike.

    Attributes:
        tree: structure of the arguments and keywords.
        names: the name of each argument; empty where they are passed by position alone.
        frozen: positions of the flat arguments that are frozen.
        types: shape and dtype of each other one.
        remembered: the frozen arguments last seen, and the tensors prepared from them.
        finish: traced flat arguments without frozen ones -> a function that turns outputs into results.
        pure: whether a call has no effects.
        given_away: positions of the donated arguments.
    """

    tree: Any
    names: tuple[str, ...]
    frozen: frozenset[int]
    types: Sequence[tuple[Any, str]]
    remembered: Callable[[], tuple[list[Any], Any]]
    finish: Callable[[list[Any]], Callable[[Sequence[Any]], Any]]
    pure: bool = True
    given_away: tuple[int, ...] = ()


def usual_call(usual: Usual, executable: Runnable) -> Callable[..., Any] | None:
    """A program with frozen arguments as one jitted call, valid where these are the same arrays as in the call before.

    It returns `REFUSED` for other types.  None where arguments are passed by name alone.
    """
    positional, named = usual.tree.children()
    trees, remembered = positional.children(), usual.remembered
    places, first = list[int](), 0
    for place, tree in enumerate(trees):
        kinds = {i in usual.frozen for i in range(first, first + tree.num_leaves)}
        assert len(kinds) < 2, "arguments are frozen as a whole"
        if kinds == {False}:
            places.append(place)
        first += tree.num_leaves
    if named.num_leaves:
        return None
    example = tuple(tree_util.tree_unflatten(tree, [0] * tree.num_leaves) for tree in trees)
    live, others = _picker(places), _picker([i for i in range(len(trees)) if i not in places])
    flatten = tree_util.default_registry.flatten
    structure, held = tree_util.tree_structure(live(example)), tree_util.tree_structure(others(example))
    types, names = list(usual.types), usual.names
    bare = all(tree_util.treedef_is_leaf(trees[i]) for i in places)
    concrete, count = frozenset((type(jax.device_put(0.0)), np.ndarray, int, float)), len(trees)
    last: tuple[list[Any], Any] = ([], executable.packed)  # replaced as a whole: threads may share the function
    pure = usual.pure  # discarded calls must have no effects
    steady = False

    def body(packed: tuple[Any, ...], *args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        fits = tree == structure and [(x.shape, str(x.dtype)) for x in leaves] == types
        if not fits or is_placed(leaves) or is_jit_disabled():
            return REFUSED
        try:
            finish = usual.finish(leaves)
        except OtherTypesError:
            return REFUSED
        return finish(executable.run_packed(*leaves, *packed))

    given_away = [i for i in usual.given_away if i in places]
    jitted = executable.jit(body, donate_argnums=tuple(1 + places.index(i) for i in given_away))
    pure = pure and not given_away

    def call(*args: Any, **kwargs: Any) -> Any:
        """Call with arguments of the usual kind, or return `REFUSED`."""
        nonlocal last, steady
        if kwargs:
            args = _in_order(names, args, kwargs)
        if len(args) != count:
            return REFUSED
        changing = live(args)
        for leaf in changing if bare else flatten(changing)[0]:
            if type(leaf) not in concrete:
                return REFUSED
        if not steady:
            known, prepared = remembered()
            if known is not last[0]:
                last = (known, executable.pack(prepared))
            leaves, tree = flatten(others(args))
            if tree != held or not all(map(operator.is_, leaves, known)):
                return REFUSED
            steady = pure
        known, packed = last
        result = jitted(packed, *changing)
        leaves, tree = flatten(others(args))
        if tree == held and all(map(operator.is_, leaves, known)):
            return result
        steady = False
        return REFUSED

    return unless_sharded(call)


def unless_sharded(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, made to return `REFUSED` for sharded arguments, on machines that can have them."""
    if not has_several_devices():
        return call

    def looked_at(*args: Any, **kwargs: Any) -> Any:
        if is_sharded(tree_util.tree_leaves((args, kwargs))):
            return REFUSED
        return call(*args, **kwargs)

    return looked_at


def _in_order(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, those passed by name behind the others; too few where the names are other ones."""
    rest = names[len(args) :]
    if len(kwargs) != len(rest) or not all(map(kwargs.__contains__, rest)):
        return ()
    return (*args, *[kwargs[name] for name in rest])


def _with_frozen(
    imported: Imported, executable: Prepared, remembered: Callable[[], tuple[list[Any], tuple[Any, ...]]]
) -> Direct | None:
    """The direct call of an optimised function with frozen arguments, or of one with effects."""
    context = (True, *imported.context[1:]) if executable.wide else imported.context

    def finish(leaves: list[Any]) -> Callable[[Sequence[Any]], Any]:
        every = list(imported.examples)
        for i, x in zip(imported.live, leaves, strict=True):
            every[i] = x
        weak = imported.weak_results(every)
        if weak is None or (context and settings_of_jax() != context):
            raise OtherTypesError
        return lambda outputs: imported.unflatten(imported.results(outputs), weak)

    usual = Usual(
        imported.in_tree,
        imported.by_name,
        frozenset(imported.frozen),
        [(imported.graph.inputs[i].shape, imported.graph.inputs[i].dtype) for i in imported.live],
        remembered,
        finish,
        pure=not (imported.opaque_ops or imported.effects),
        given_away=imported.settings.donate_argnums,
    )
    call = usual_call(usual, executable)
    return None if call is None else Direct(outside(imported.fn, call))


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function from a tuple to the tuple of its items at these places."""
    if list(places) == list(range(places[0], places[0] + len(places)) if places else []):
        first = places[0] if places else 0
        return operator.itemgetter(slice(first, first + len(places)))
    return operator.itemgetter(*places)


def _same(a: Any, b: Any) -> bool:
    number = isinstance(a, bool | int | float) and type(a) is type(b)
    return a is b or (number and repr(a) == repr(b))  # of 0.0 and -0.0, which are equal, quotients are not
