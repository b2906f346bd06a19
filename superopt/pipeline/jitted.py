"""`superopt.jit`: what `jax.jit` is to XLA, with an optimisation for each structure, shape and dtype of the arguments.

A call takes the shortest way that it can: it is a call of one jitted function whose cache knows the types, and which
has the program for each of them inside.  Another type makes that function trace, which looks the type up and, where it
is new, refuses.  Only then are the arguments looked at one by one here.  Programs that cannot be inside of another
function (with options of the compiler, frozen arguments or large prepared tensors) are found by the types of the
arguments.

The budget is one for all types: each new one has half of what is left.  Where that is too little, the call is left to
`jax.jit`.  So are sharded arguments, arguments that are written to, and functions that call back into Python: what
these print or count is seen as often as their user calls them.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

import jax
import numpy as np
from jax import lax, tree_util
from jax.core import Tracer

from superopt.errors import ArgumentError, ProgramError
from superopt.frontends.jax.boundary import fix, holds_static
from superopt.frontends.jax.call import REFUSED, OtherTypesError, unless_sharded
from superopt.frontends.jax.jaxpr import positional
from superopt.frontends.jax.jit_settings import (
    NO_SETTINGS,
    is_jit_disabled,
    is_jitted,
    settings_of,
    settings_of_jax,
    unjitted,
)
from superopt.frontends.jax.opaque_eqns import calls_python
from superopt.frontends.jax.placed import is_placed
from superopt.machine.jitting import jax_jit
from superopt.machine.shared import Unique
from superopt.pipeline.optimizer import OptimizeOptions, optimize
from superopt.pipeline.shares import DEFAULT_BUDGET, Shares
from superopt.returned.optimized import Optimized

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")


class JitOptions(OptimizeOptions, total=False):
    """Options of `superopt.jit`: those of `jax.jit` and those of `superopt.optimize`."""

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    inline: bool
    in_shardings: Any
    out_shardings: Any
    device: Any
    backend: str | None
    compiler_options: dict[str, Any] | None


_MOST_TOLD = 4  # types of arguments in a line of progress
_MOST_LEFT = 4096  # of these: some hundred bytes each
_LEFT = dict[tuple[Any, ...], None]()
"""Functions of which nothing came, by `_closure` and types: a loop that makes them again does not pay again.

Identities may be used again: that costs a function its optimisation, nothing more."""
_OF_OPTIMIZE = frozenset(OptimizeOptions.__annotations__)
with jax.ensure_compile_time_eval():  # where this is imported while a function is traced
    _ARRAY = type(jax.device_put(0.0))


@overload
def jit(fn: Callable[P, R], /, **options: Unpack[JitOptions]) -> Jitted[P, R]: ...
@overload
def jit(**options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Like `jax.jit`: optimise on the first call for each structure, shape and dtype of the arguments.

    Args:
        fn: the function, which may be jitted already; without it `jit` makes a decorator.
        options: those of `jax.jit`, which mean what they mean there, and those of `optimize`.  A function with
            shardings, a device, a backend or options of the compiler of its own is left to `jax.jit`, with a warning.
            A budget of seconds is one for the function: each new structure, shape and dtype has a half of what is left;
            one of steps is for each of them, so that their order does not matter.

    Calls under a JAX trace before the first concrete call run the original, and so do sharded arguments, a `Ref`,
    functions that call back into Python, and types for which the budget has nothing left.  One thread optimises at a
    time, others wait for it; where it takes more than three seconds a line says so.  `lower`, `trace` and `eval_shape`
    are those of `jax.jit`: they say what the original is.

    Raises (when called):
        Exception: what `jax.jit` raises for arguments that are no arrays and not static, or that the function refuses.
    """
    if fn is None:
        return functools.partial(jit, **options)
    return Jitted(fn, options)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A program with the arguments that it is for.

    Attributes:
        tree: their structure.
        avals: their abstract values, in order.
        context: what else of JAX decides over programs.
        made: what was returned for them; None where they are left to `jax.jit`.
        inside: the program as a part of a function that is traced; None where it is called by itself.
    """

    tree: Any
    avals: list[Any]
    context: Any
    made: Optimized | None
    inside: Callable[..., Any] | None

    def fits(self, tree: Any, avals: list[Any], context: Any, *, weakly: bool = False) -> bool:
        """Whether it is for such arguments; with `weakly`, whichever of them are weakly typed."""
        if len(avals) != len(self.avals) or context != self.context or tree != self.tree:
            return False
        same = _same_but_weak if weakly else _same
        return avals == self.avals or all(map(same, avals, self.avals))


class Jitted(Unique, Generic[P, R]):
    """A function under `superopt.jit`: called like the function, optimised on first calls."""

    def __init__(self, fn: Callable[P, R], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        of_jit = {k: v for k, v in options.items() if k not in _OF_OPTIMIZE}
        jitted: Any = fn._jax if isinstance(fn, Jitted) else fn
        self._jax: Any = jitted if is_jitted(jitted) and not of_jit else jax_jit(jitted, **of_jit)
        self._options = {k: v for k, v in options.items() if k in _OF_OPTIMIZE}
        self._settings = settings_of(self._jax)
        self._entries: tuple[_Entry, ...] = ()  # replaced as a whole: threads read it without the lock
        self._table: dict[Any, Callable[..., Any]] = {}  # replaced as a whole, too
        self._frozen: frozenset[int] = frozenset()
        self._budget = Shares(self._options.get("budget", DEFAULT_BUDGET))
        self._lock = threading.RLock()
        self._refused = False  # types by the dispatcher since its cache was cleared
        self._dispatch = self._dispatcher()
        self._likely: Callable[..., Any] = self._jax if self._settings.placed else self._found
        if self._settings.placed:
            warnings.warn(f"{', '.join(self._settings.placed)}: the function is left to jax.jit as it is", stacklevel=3)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the program for arguments like these, made on the first call."""
        try:
            results = self._likely(*args, **kwargs)
            return self._found(*args, **kwargs) if results is REFUSED else results
        except (OtherTypesError, TypeError):  # the latter for what is no array
            return self._found(*args, **kwargs)
        except FloatingPointError:  # of `jax_debug_nans`, whose user knows the operations of the function
            return self._jax(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Jitted[P, R]: ...
    @overload
    def __get__(self: Jitted[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method where the function is one: its object is the first argument, as with `jax.jit`."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<superopt.jit of {getattr(self, '__name__', self._jax)}: {len(self.programs)} programs>"

    @property
    def programs(self) -> tuple[Optimized[P, R], ...]:
        """The programs made so far, with their reports."""
        return tuple({id(entry.made): entry.made for entry in self._entries if entry.made is not None}.values())

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """The original lowered for arguments like these, as `jax.jit(fn).lower`."""
        return self._jax.lower(*args, **kwargs)

    def trace(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """The original traced on arguments like these, as `jax.jit(fn).trace`."""
        return self._jax.trace(*args, **kwargs)

    def eval_shape(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Shapes and dtypes of the results, as `jax.jit(fn).eval_shape`."""
        return self._jax.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget the programs made so far, and what `jax.jit` compiled."""
        with self._lock:
            self._jax.clear_cache()
            self._dispatch.clear_cache()
            self._table = {}
            self._take(())

    def _found(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call whose arguments are looked at one by one."""
        try:
            return self._looked_at(args, kwargs)
        except ArgumentError:
            self._jax(*args, **kwargs)  # what the function itself does not take raises what its user knows
            raise

    def _looked_at(self, args: Any, kwargs: Any) -> Any:
        if self._settings.placed or is_jit_disabled():
            return self._jax(*args, **kwargs)
        leaves, tree = self._flat(args, kwargs)
        if is_placed(leaves):
            return self._jax(*args, **kwargs)
        avals, context = _avals(leaves), settings_of_jax()
        entry = None if avals is None else self._entry(tree, avals, context, leaves)
        if entry is None:
            if any(isinstance(x, Tracer) for x in leaves) or isinstance(lax.iota(np.int32, 1), Tracer):
                return (unjitted(self._jax) if holds_static(fix(args, kwargs, NO_SETTINGS)) else self._jax)(
                    *args, **kwargs
                )
            if avals is None:
                return self._jax(*args, **kwargs)  # which raises what its user knows
            with self._lock:
                entry = self._entry(tree, avals, context, leaves)
                if entry is None:
                    try:
                        entry = self._made(args, kwargs, tree, avals, context)
                    except ProgramError:
                        return self._jax(*args, **kwargs)  # which raises what the function itself does
        if entry.inside is not None:
            self._forget_refusals()
            return self._dispatch(*args, **kwargs)
        assert entry.made is not None
        self._frozen = _frozen_places(entry.made)
        key = self._key(args, kwargs)
        if key is not None and entry.made.direct is not None:
            with self._lock:
                self._table = {**self._table, key: entry.made.direct}
        return entry.made(*args, **kwargs)

    def _flat(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        args, kwargs = fix(args, kwargs, self._settings)
        return tree_util.tree_flatten(positional(self._jax, args, kwargs))

    def _entry(self, tree: Any, avals: list[Any], context: Any, leaves: Sequence[Any]) -> _Entry | None:
        """The program for such arguments, if there is one; weak types matter only where they make another program."""
        for entry in self._entries:
            if entry.fits(tree, avals, context):
                return entry
        for entry in self._entries:
            if not entry.fits(tree, avals, context, weakly=True) or entry.made is None:
                continue
            if entry.made.imported.weak_results(leaves) is not None:
                found = replace(entry, avals=avals)
                with self._lock:
                    self._take((found, *self._entries))
                return found
        return None

    def _made(self, args: Any, kwargs: Any, tree: Any, avals: list[Any], context: Any) -> _Entry:
        options = dict(self._options)
        asked = (*_closure(unjitted(self._jax)), repr(options), tree, tuple(avals), context)
        left = asked in _LEFT or self._calls_python(args, kwargs)
        share = None if left else self._budget.next()
        if share is None:
            entry = _Entry(tree, avals, context, None, self._jax)
        else:
            options["budget"] = share
            with self._budget.spending(f"{getattr(self, '__name__', 'a function')} of {_told(avals)}", share):
                made = optimize(self._jax, *args, kwargs=kwargs, **options).without_examples()
            if made.report.original_returned:
                _leave(asked)
            plain = not made.imported.functions and not made.executable.options
            inside = self._jax if made.report.original_returned and plain else made.inside
            if made.executable.wide and not context[0]:  # its types are none of the process
                inside = None
            entry = _Entry(tree, avals, context, made, inside)
        self._take((entry, *self._entries))
        return entry

    def _calls_python(self, args: Any, kwargs: Any) -> bool:
        """Whether the function calls back into Python; raises what it raises for such arguments."""
        if holds_static(fix(args, kwargs, NO_SETTINGS)):  # `optimize` takes these, `jax.jit` does not
            return False
        return calls_python(self._jax.trace(*args, **kwargs).jaxpr)

    def _take(self, entries: tuple[_Entry, ...]) -> None:
        self._entries = entries
        self._likely = self._found
        if entries and all(entry.inside is not None for entry in entries):
            self._likely = unless_sharded(self._dispatch)
        elif len(entries) == 1 and (made := entries[0].made) and not made.executable.wide:
            self._likely = made.direct or self._found  # which does not see what JAX is set to
        elif entries:
            self._likely = self._by_types

    def _by_types(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call of the program that was found for such arguments before."""
        key = self._key(args, kwargs)
        direct = None if key is None else self._table.get(key)
        return self._found(*args, **kwargs) if direct is None else direct(*args, **kwargs)

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The types of arguments, frozen ones aside; None for other than arrays by position.

        Programs refuse arguments of other types themselves, so that what is left out costs time alone.
        """
        if kwargs or self._settings.static:
            return None
        key: list[Any] = []
        for place, given in enumerate(args):
            if place in self._frozen:
                continue
            for x in (given,) if type(given) is _ARRAY else tree_util.tree_leaves(given):
                if type(x) is not _ARRAY:
                    return None
                aval = x.aval
                key.append((aval.shape, aval.dtype, aval.weak_type))
        return tuple(key)

    def _forget_refusals(self) -> None:
        """Clear the compiled part of the dispatcher's cache: JAX takes types that raised once the slow way for ever."""
        if self._refused:
            self._refused = False
            getattr(self._dispatch, "_clear_cache", self._dispatch.clear_cache)()

    def _dispatcher(self) -> Any:
        """A jitted function with the programs for all types inside."""

        def body(*args: Any, **kwargs: Any) -> Any:
            if is_jit_disabled():
                raise OtherTypesError
            leaves, tree = self._flat(args, kwargs)
            if is_placed(leaves):
                return self._jax(*args, **kwargs)
            avals, context = _avals(leaves) or [], settings_of_jax()
            for entry in self._entries:
                if entry.inside is not None and entry.fits(tree, avals, context):
                    return entry.inside(*args, **kwargs)
            self._refused = True
            raise OtherTypesError

        functools.update_wrapper(body, unjitted(self._jax), updated=())
        return jax_jit(body, **self._settings.arguments)


def _closure(fn: Any) -> tuple[Any, ...]:
    """The code of a function and what it holds, by identity: equal for functions that a loop makes again."""
    if isinstance(fn, functools.partial):
        return (*_closure(fn.func), *map(id, fn.args), *fn.keywords, *map(id, fn.keywords.values()))
    held = (*(getattr(fn, "__closure__", None) or ()), *(getattr(fn, "__defaults__", None) or ()))
    return (getattr(fn, "__code__", id(fn)), *(id(_content(x)) for x in held))


def _content(held: Any) -> Any:
    try:
        return held.cell_contents if isinstance(held, types.CellType) else held
    except ValueError:  # of a cell that has none yet
        return None


def _leave(asked: tuple[Any, ...]) -> None:
    """Note that such a function is left to `jax.jit` for such arguments."""
    _LEFT[asked] = None
    while len(_LEFT) > _MOST_LEFT:
        _LEFT.pop(next(iter(_LEFT)), None)


def _frozen_places(made: Optimized) -> frozenset[int]:
    """Which arguments by position are frozen."""
    imported, found, first = made.imported, set[int](), 0
    for place, tree in enumerate(imported.in_tree.children()[0].children()):
        if first in imported.frozen and tree.num_leaves:
            found.add(place)
        first += tree.num_leaves
    return frozenset(found)


def _told(avals: Sequence[Any]) -> str:
    """The types of arguments in a line."""
    texts = [str(x) for x in avals[:_MOST_TOLD]]
    return ", ".join([*texts, f"{len(avals) - _MOST_TOLD} more"] if len(avals) > _MOST_TOLD else texts) or "nothing"


def _avals(leaves: Sequence[Any]) -> list[Any] | None:
    """Abstract values of arguments; None where one is no array."""
    try:
        return [x.aval if type(x) is _ARRAY else jax.api_util.shaped_abstractify(x) for x in leaves]
    except TypeError:
        return None


def _same_but_weak(a: Any, b: Any) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype)


def _same(a: Any, b: Any) -> bool:
    return a is b or (_same_but_weak(a, b) and a.weak_type == b.weak_type)
