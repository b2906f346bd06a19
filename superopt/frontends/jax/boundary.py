"""Arguments and results that are no tensors: PRNG keys, and leaves that are part of the program.

Inside, a program takes and returns tensors.  A typed key stands in a structure as `Keys`, a node over its data.  A
function, a name or a dtype within a container (an activation in a module, say) stands there as `Static`, a node without
leaves.  So both belong to the structure that calls are checked against, as static arguments do
(`superopt.frontends.jax.jit_settings`).  `Inside` is the user's function as the program sees it, `outside` makes a
program callable as the user calls it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from superopt.frontends.jax.jit_settings import NO_SETTINGS, JitSettings, StaticValue, wrap_static
from superopt.frontends.jax.keys import data_of, is_key, kind_of, with_kind

UserFunction = Callable[..., Any]


@tree_util.register_pytree_with_keys_class
class Keys:
    """Typed keys as their data; `kind` is their implementation."""

    __slots__ = ("data", "kind")

    def __init__(self, data: Any, kind: Any) -> None:
        self.data, self.kind = data, kind

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        """The data as the one child."""
        return ((tree_util.GetAttrKey("key"), self.data),), self.kind

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The data as the one child."""
        return (self.data,), self.kind

    @classmethod
    def tree_unflatten(cls, kind: Any, children: Sequence[Any]) -> Keys:
        """Rebuild keys of this kind from their data."""
        return cls(children[0], kind)


@tree_util.register_pytree_node_class
class Static:
    """A leaf that is part of the program: calls must pass an equal one."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """The leaf as static data, without children."""
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, children: Sequence[Any]) -> Static:
        """Rebuild the wrapped leaf."""
        return cls(value)


def is_static(leaf: object) -> bool:
    """Whether a leaf of a container is part of the program: a function, a name, an enum member, or a dtype."""
    if isinstance(leaf, str | bytes | enum.Enum | np.dtype | type):
        return True
    return callable(leaf) and not isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct)


def enter(tree: Any) -> Any:
    """A structure of the user's in the program's form: keys and static leaves wrapped."""
    return tree_util.tree_map(_wrapped, tree)


def leave(tree: Any) -> Any:
    """A structure of the program in the user's form: keys and static leaves unwrapped."""
    return tree_util.tree_map(_bare, tree, is_leaf=lambda x: isinstance(x, Keys | Static | StaticValue))


def leave_keys(tree: Any) -> Any:
    """As `leave`, but keeps static leaves wrapped, since a traced function may return arrays and keys alone."""
    return tree_util.tree_map(lambda x: _bare(x) if isinstance(x, Keys) else x, tree, is_leaf=_is_keys)


def fix(args: Sequence[Any], kwargs: Any, settings: JitSettings) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with all leaves that are no arrays moved into their structure; keys stay keys."""
    args, kwargs = wrap_static(args, kwargs, settings)
    return tuple(map(_fixed, args)), {name: _fixed(x) for name, x in kwargs.items()}


def holds_static(tree: object) -> bool:
    """Whether a structure contains leaves that are no arrays, apart from static arguments."""
    return any(isinstance(x, Static) for x in tree_util.tree_leaves(tree, is_leaf=lambda x: isinstance(x, Static)))


def _is_keys(x: object) -> bool:
    return isinstance(x, Keys)


def _fixed(argument: Any) -> Any:
    """An argument with static leaves wrapped, in containers alone: a bare function or text is a mistake."""
    if tree_util.all_leaves((argument,)):
        return argument
    return tree_util.tree_map(lambda x: Static(x) if is_static(x) and not is_key(x) else x, argument)


def _wrapped(leaf: Any) -> Any:
    if is_key(leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return Keys(jax.eval_shape(data_of, leaf), kind_of(leaf))
        return Keys(data_of(leaf), kind_of(leaf))
    return Static(leaf) if is_static(leaf) else leaf


def _bare(leaf: Any) -> Any:
    if isinstance(leaf, Keys) and isinstance(leaf.data, jax.ShapeDtypeStruct):
        return jax.eval_shape(lambda data: with_kind(data, leaf.kind), leaf.data)
    if isinstance(leaf, Keys):
        return with_kind(leaf.data, leaf.kind)
    return leaf.value if isinstance(leaf, Static | StaticValue) else leaf


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


FUNCTIONS = _name(Static)
"""Name of the node type that wraps leaves that are no arrays."""
ADAPTED = (_name(Keys), FUNCTIONS)
"""Names of the node types that wrap leaves that are no tensors."""


class Inside:
    """The user's function as the program sees it."""

    def __init__(self, fn: UserFunction, settings: JitSettings = NO_SETTINGS) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn, self.settings = fn, settings

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = leave((args, kwargs))
        return enter(self.fn(*args, **kwargs))


def user_function(fn: UserFunction) -> UserFunction:
    """The function that the user passed."""
    return fn.fn if isinstance(fn, Inside) else fn


def outside(fn: UserFunction, program: UserFunction) -> UserFunction:
    """A program made of `Inside(fn)` in the user's form; a program of `fn` itself unchanged."""
    if not isinstance(fn, Inside):
        return program
    settings = fn.settings

    @functools.wraps(fn.fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = enter(wrap_static(args, kwargs, settings))
        return leave(program(*args, **kwargs))

    return call
