"""Settings of `jax.jit` for a function and its calls: static arguments, donated arrays, and other settings.

`wrap_static` puts static arguments into the structure of a call, as nodes without leaves.  So all code that flattens
sees arrays alone, and another value is another structure; `superopt.frontends.jax.boundary.leave` takes them out again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import tree_util

from superopt.errors import ArgumentError
from superopt.machine.jitting import SETTINGS, user_contexts


@tree_util.register_static
@dataclass(frozen=True, slots=True)
class StaticValue:
    """A value as a node of a tree without leaves; it must have `==` and `hash`."""

    value: Any
    kind: type  # distinguishes 1, 1.0 and True, which are equal


def static_value(value: Any, name: str = "") -> StaticValue:
    """Wrap a static argument as a node without leaves.

    Raises:
        ArgumentError: it has no hash.
    """
    try:
        hash(value)
    except TypeError as error:
        raise ArgumentError(
            f"the static argument {name} is a {type(value).__name__}, which has no hash",
            hint="static arguments are compared from call to call: pass a tuple for a list",
        ) from error
    return StaticValue(value, type(value))


@dataclass(frozen=True, slots=True)
class JitSettings:
    """Arguments of `jax.jit` for a function, by position and by name, as it infers one from the other.

    Attributes:
        placed: names of the settings that were given of where and how to compile.
    """

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        """Whether there are static arguments."""
        return bool(self.static_argnums or self.static_argnames)

    def takes_alike(self, parameters: Iterable[inspect.Parameter]) -> bool:
        """Whether arguments are static, and donated, by position where they are by name."""
        every = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
        either = {x.name for x in every if x.kind is x.POSITIONAL_OR_KEYWORD}
        pairs = ((self.static_argnums, self.static_argnames), (self.donate_argnums, self.donate_argnames))
        return all(
            either.intersection(every[i].name for i in places if -len(every) <= i < len(every))
            == either.intersection(names)
            for places, names in pairs
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that make another `jax.jit` treat arguments alike."""
        return _unless_empty(static_argnums=self.static_argnums, static_argnames=self.static_argnames) | self.given_away

    @property
    def given_away(self) -> dict[str, Any]:
        """Those of `arguments` that are about donation."""
        return _unless_empty(donate_argnums=self.donate_argnums, donate_argnames=self.donate_argnames)


def _unless_empty(**settings: Any) -> dict[str, Any]:
    return settings if any(settings.values()) else {}  # `jax.jit` infers neither for a function without a signature


NO_SETTINGS = JitSettings()


def settings_of(fn: Callable[..., Any]) -> JitSettings:
    """The `jax.jit` settings of a function; `NO_SETTINGS` for a function that is not jitted."""
    info = getattr(fn, "_jit_info", None)
    if info is None:
        return NO_SETTINGS
    given = {
        "in_shardings": info.user_specified_in_shardings,
        "out_shardings": any(type(x).__name__ != "UnspecifiedValue" for x in info.out_shardings_leaves),
        "device": info.device is not None,
        "backend": info.backend is not None,
        "compiler_options": bool(info.compiler_options_kvs),
    }
    return JitSettings(
        tuple(info.static_argnums),
        tuple(info.static_argnames),
        tuple(info.donate_argnums),
        tuple(info.donate_argnames),
        tuple(name for name, is_given in given.items() if is_given),
    )


def is_jitted(fn: Callable[..., Any]) -> bool:
    """Whether the function comes from `jax.jit`."""
    return hasattr(fn, "_jit_info")


def settings_of_jax() -> tuple[Any, ...]:
    """The settings of JAX, now and in this thread, that change the results or refusals of a function."""
    return (*[getattr(jax.config, name) for name in SETTINGS], *user_contexts())


def is_jit_disabled() -> bool:
    """Whether functions should run op by op (`jax.disable_jit`)."""
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


def unjitted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that was passed to `jax.jit`."""
    return fn.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]


def wrap_static(
    args: Sequence[Any], kwargs: Mapping[str, Any], settings: JitSettings
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with static ones moved into the structure.

    Raises:
        ArgumentError: a static argument has no hash.
    """
    given: list[Any] = list(args)
    count = len(given)
    for place in settings.static_argnums:
        if -count <= place < count:
            given[place] = static_value(given[place], str(place))
    return tuple(given), {k: static_value(v, k) if k in settings.static_argnames else v for k, v in kwargs.items()}
