"""Structures of arguments and results as plain data, for files.

    "*"                                               A leaf.
    null                                              None, which has no leaves.
    {"tuple": [...]}                                  A tuple; also "list".
    {"dict": [[key, ...]]}                            A dict; keys are texts or integers, in order.
    {"type": "module:Name", "aux": ..., "children"}   Any other node: named tuples, dataclasses, modules of a library.

A call's structure is compared with a file's in this form, so arguments are never constructed.  Results are constructed.
Their types are found by name, and must be imported already and registered with JAX as nodes.  The auxiliary data of
such a node are plain, or those of a node of the arguments with an equal description.  So a file can cause no other
import, call or look-up by name.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.files.reading import LIMITS, depth_of, shown

_LEAF = "*"
STATIC = "superopt.frontends.jax.jit_settings:StaticValue"
"""Name of the node that stands for a static argument."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_DESCRIBED, _MOST_PARTS = 30, 10_000  # levels and parts of a node's auxiliary data
_MOST_TEXT = 1000  # characters of a repr: longer ones may be abbreviated


class Structure:
    """A structure of a file, in its plain form.

    Attributes:
        data: its plain form.
        num_leaves: its number of leaves.
    """

    def __init__(self, data: Any) -> None:
        """Raises `InputError` where the data are no plain form."""
        depth_of(data, "a structure of arguments", LIMITS.depth)
        self.data = data
        self.num_leaves = _leaves(data)
        self._known: list[Any] = []
        self._made: tuple[Any, Any] | None = None

    def matches(self, tree: Any) -> bool:
        """Whether a structure of JAX (`PyTreeDef`) has this plain form."""
        if any(tree == known for known in self._known):
            return True
        if tree.num_leaves != self.num_leaves or not self._is_form_of(tree):
            return False
        self._known = [tree, *self._known[:7]]
        return True

    def _is_form_of(self, tree: Any) -> bool:
        try:
            return tree_data(tree) == self.data
        except InputError:  # a structure that cannot be described was never written
            return False

    def tree(self, given: Any = None) -> Any:
        """The structure of JAX that this form describes.

        Args:
            given: a structure whose nodes are used where their descriptions are equal.

        Raises:
            InputError: a type in it was not imported, or a node's auxiliary data cannot be constructed.
        """
        made = self._made
        if made is None or made[0] != given:
            nodes = {} if given is None else {_described(tree): tree for tree in _nodes(given)}
            made = self._made = (given, _built(self.data, nodes))
        return made[1]

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the types of nodes that are not Python's own."""
        return tuple(dict.fromkeys(_types(self.data)))


def tree_data(tree: Any) -> Any:
    """A structure of JAX (`PyTreeDef`) as plain data.

    Raises:
        InputError: a node's auxiliary data can neither be written nor be identified by a description.
    """
    node = tree.node_data()
    if node is None:
        return _LEAF if tree.num_leaves else None
    kind, aux = node
    children = [tree_data(child) for child in tree.children()]
    if kind is type(None):
        return None
    if kind in (tuple, list):
        return {kind.__name__: children}
    if kind is dict and all(type(key) in (str, int) for key in aux):
        return {"dict": [[key, child] for key, child in zip(aux, children, strict=True)]}
    return {"type": _name(kind), "aux": _plain(aux), "children": children}


def read_tree(data: Any) -> Structure:
    """The structure with this plain form, as `tree_data` wrote it.

    Raises:
        InputError: the data are no plain form.
    """
    return Structure(data)


# ---- calls: the structure of (arguments, keywords), with a name for each leaf


def bound(
    data: Any, parameters: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with arguments given by keyword moved to their positions, as far as they follow the positional ones.

    Args:
        data: structure of (arguments, keywords).
        parameters: the name of each positional argument; empty where it has none.
        args: positional arguments.
        kwargs: keywords.
    """
    (positions, keywords), rest = _call(data), dict(kwargs)
    given = list(args)
    while len(given) < len(positions) and (name := parameters[len(given)]) in rest and name not in keywords:
        given.append(rest.pop(name))
    return tuple(given), rest


def held_back(
    data: Any, parameters: Sequence[str], count: int, kwargs: Mapping[str, Any], known: frozenset[int]
) -> Iterator[tuple[str, Structure]]:
    """Names and structures of arguments that a call leaves out and whose leaves are all known.

    Args:
        data: structure of (arguments, keywords).
        parameters: the name of each positional argument; empty where it has none.
        count: number of positional arguments given.
        kwargs: keywords given.
        known: positions of the known leaves.
    """
    positions, keywords = _call(data)
    end = 0
    for i, (name, child) in enumerate((*zip(parameters, positions, strict=True), *keywords.items())):
        begin, end = end, end + _leaves(child)
        given = i < min(count, len(positions)) or name in kwargs
        if name and not given and end > begin and known.issuperset(range(begin, end)):
            yield name, Structure(child)


def count_positions(data: Any) -> int:
    """The number of positional arguments in a structure of (arguments, keywords).

    Raises:
        InputError: it is not the structure of a call.
    """
    return len(_call(data)[0])


def places_of(data: Any, kind: str) -> tuple[list[int], list[str]]:
    """Positions and keywords of the arguments that are nodes of the type of this name."""
    positions, keywords = _call(data)
    of_kind = [isinstance(child, dict) and child.get("type") == kind for child in (*positions, *keywords.values())]
    names = list(keywords)
    return (
        [i for i, is_kind in enumerate(of_kind[: len(positions)]) if is_kind],
        [names[i] for i, is_kind in enumerate(of_kind[len(positions) :]) if is_kind],
    )


def misfit(data: Any, parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The reason why a call has another structure: its first argument that is missing, superfluous or different."""
    positions, keywords = _call(data)
    parameters = [name or f"number {i}" for i, name in enumerate(parameters)]
    takes = f"the program takes {', '.join((*parameters, *map(str, keywords))) or 'none'}"
    if len(args) > len(positions):
        return f"{len(args)} arguments are given; {takes}"
    absent = [*parameters[len(args) :], *(str(key) for key in keywords if key not in kwargs)]
    if absent:
        return f"argument {absent[0]} is missing; {takes}"
    unknown = [key for key in kwargs if key not in keywords]
    if unknown:
        return f"there is no argument {shown(unknown[0])} to be given by name; {takes}"
    pairs = [*zip(parameters, args, positions, strict=True), *((k, kwargs[k], child) for k, child in keywords.items())]
    misfits = (text for name, value, wanted in pairs if (text := _differs(str(name), value, wanted)))
    return next(misfits, "the arguments have another structure than the program was made for")


def _call(data: Any) -> tuple[list[Any], dict[Any, Any]]:
    """The structures of the arguments, and of the keywords by name.

    Raises:
        InputError: the structure is not that of a call.
    """
    match data:
        case {"tuple": [{"tuple": list(positions)}, {"dict": list(items)}]}:
            keywords = _dictionary(items)
            if all(isinstance(key, str) for key in keywords):
                return positions, keywords
        case _:
            pass
    raise InputError("its structure of arguments is not that of a call")


def parameters_of(data: Any, names: Sequence[str]) -> list[str]:
    """The name of each positional argument: the common first part of its leaves' names; empty where it has none."""
    missing: list[str] = []
    at = 0
    for child in _call(data)[0]:
        count = _leaves(child)
        alone = child == _LEAF
        missing.append("" if not count else names[at] if alone else names[at].partition(".")[0])
        at += count
    return missing


def _differs(name: str, value: Any, wanted: Any) -> str:
    kind, want = _kind(value), _kind_of(wanted)
    if kind != want:
        return f"argument {name} is {kind}, the program was made for {want}"
    inner: list[tuple[Any, Any, Any]] = []
    if type(value) is dict:
        inner = [(key, value[key], child) for key, child in _dictionary(wanted["dict"]).items()]
    elif type(value) in (list, tuple):
        inner = [(i, x, child) for i, (x, child) in enumerate(zip(value, wanted[type(value).__name__], strict=True))]
    return next((text for key, x, child in inner if (text := _differs(f"{name}.{key}", x, child))), "")


def _kind(value: Any) -> str:
    import jax  # late: importing this module costs nothing

    if value is None:
        return "None"
    if type(value) is dict:
        return _keys(value)
    if type(value) in (list, tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if jax.tree_util.all_leaves([value]):
        return "an array"
    if _name(type(value)) == STATIC:
        return shown(repr(_plain(value.value)))
    return _of_type(type(value).__name__)


def _kind_of(data: Any) -> str:
    match data:
        case "*":
            return "an array"
        case None:
            return "None"
        case {"dict": list(items)}:
            return _keys(_dictionary(items))
        case {"type": str(name), "aux": {"of": [{"list": ["value", value]}, *_]}} if name == STATIC:
            return shown(repr(value))
        case {"type": str(name)}:
            return _of_type(name.rpartition(":")[2].rpartition(".")[2])
        case _:
            ((kind, items),) = data.items()
            return f"a {kind} of {len(items)}"


def _of_type(name: str) -> str:
    return "an array of typed keys" if name == "Keys" else f"a {name}"


def _keys(found: Mapping[Any, Any]) -> str:
    return f"a dictionary of {shown(', '.join(sorted(map(str, found)))) if found else 'nothing'}"


def _leaves(data: Any) -> int:
    match data:
        case "*":
            return 1
        case None:
            return 0
        case {"tuple": list(items), **rest} if not rest:
            return sum(map(_leaves, items))
        case {"list": list(items), **rest} if not rest:
            return sum(map(_leaves, items))
        case {"dict": list(items), **rest} if not rest:
            return sum(_leaves(child) for child in _dictionary(items).values())
        case {"type": str(), "aux": _, "children": list(items), **rest} if not rest:
            return sum(map(_leaves, items))
        case _:
            raise InputError(f"{shown(data)} is no structure of arguments")


def _dictionary(items: list[Any]) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for item in items:
        match item:
            case [str() | int() as key, child] if not isinstance(key, bool) and key not in entries:
                entries[key] = child
            case _:
                raise InputError(f"{shown(item)} is no entry of a dictionary of arguments")
    if len({type(key) for key in entries}) > 1:
        raise InputError("a dictionary of arguments has keys of two kinds")
    return entries


def _types(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        kind: Any = data.get("type")
        if isinstance(kind, str):
            yield kind
        for value in data.values():
            yield from _types(value)
    elif isinstance(data, list):
        for item in data:  # pyright: ignore[reportUnknownVariableType]
            yield from _types(item)


# ---- making


def _built(data: Any, nodes: dict[str, Any]) -> Any:
    """Return the structure of arguments that plain data describes."""
    import jax  # late: importing this module costs nothing

    util = jax.tree_util
    match data:
        case "*":
            return util.tree_structure(0)
        case None:
            return util.tree_structure(None)
        case {"type": str(name), "aux": aux, "children": list(items)}:
            like, made = nodes.get(_text(name, aux, len(items))), [_built(child, nodes) for child in items]
            if like is not None and like.children() == made:  # of a registered named tuple JAX makes no other
                return like
            held = (_type(name), _held(aux, name)) if like is None else like.node_data()
            try:
                return util.PyTreeDef.from_node_data_and_children(util.default_registry, held, made)
            except (RuntimeError, TypeError, ValueError) as error:
                raise InputError(f"{shown(name)} is no type of nodes: {error}") from error
        case {"dict": list(items)}:
            entries = _dictionary(items)
            children, held = [_built(child, nodes) for child in entries.values()], (dict, list(entries))
        case {"tuple": list(items)}:
            children, held = [_built(child, nodes) for child in items], (tuple, None)
        case _:
            children, held = [_built(child, nodes) for child in data["list"]], (list, None)
    return util.PyTreeDef.from_node_data_and_children(util.default_registry, held, children)


def _type(name: str) -> type:
    """A class that the process has imported already; looking it up imports and runs nothing."""
    module, _, path = name.partition(":")
    kind: Any = sys.modules.get(module)
    for part in path.split("."):
        kind = None if kind is None else vars(kind).get(part) if hasattr(kind, "__dict__") else None
    if not isinstance(kind, type):
        raise InputError(
            f"its results hold nodes of the type {shown(name)}, which this process has not imported",
            hint=f"import {module} before the program is called" if module != "__main__" else "define the type first",
        )
    return kind


def _held(aux: Any, name: str) -> Any:
    """The auxiliary data of a node from their plain form; for a static argument, the node that holds its value."""
    match aux:
        case {"of": [{"list": ["value", plain]}, *_]} if name == STATIC and not isinstance(plain, dict | list):
            value = _value(plain, name)
            return _type(name)(value, type(value))
        case _:
            return _value(aux, name)


def _value(aux: Any, name: str) -> Any:
    """The auxiliary data of a node from their plain form."""
    match aux:
        case None | bool() | int() | float() | str():
            return aux
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_value(x, name) for x in items)
        case {"list": list(items), **rest} if not rest:
            return [_value(x, name) for x in items]
        case {"dict": list(items), **rest} if not rest and all(isinstance(x, list) and len(x) == 2 for x in items):  # pyright: ignore[reportUnknownArgumentType]
            return {_value(key, name): _value(x, name) for key, x in items}
        case _:
            raise InputError(
                f"its results hold nodes of the type {shown(name)} with more than plain data",
                hint="only such as stand in the arguments, too, can be made of a file",
            )


# ---- describing


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in tree.children():
        yield from _nodes(child)


def _described(tree: Any) -> str:
    data = tree_data(tree)
    if not isinstance(data, dict) or "type" not in data:
        return ""
    return _text(data["type"], data["aux"], len(data["children"]))


def _text(name: str, aux: Any, children: int) -> str:
    return repr((name, aux, children))


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}:{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def _plain(value: Any) -> Any:
    """A value as plain data: itself where that is possible, else a description that identifies it.

    Raises:
        InputError: it contains objects that a description cannot distinguish, or too many.
    """
    return _Description().of(value, _MOST_DESCRIBED)


class _Description:
    """State of one description: how many more values it may contain, and the values around the current one."""

    def __init__(self) -> None:
        self.left = _MOST_PARTS
        self.above: list[Any] = []

    def of(self, value: Any, depth: int) -> Any:
        """Return a value as plain data, at most so many levels deep."""
        if value is None or type(value) in (bool, int, str) or _is_finite(value):
            return value
        self.left -= 1
        if depth == 0 or self.left < 0:
            raise InputError(f"a {_name(type(value))} among the arguments holds more than can be described")
        for number, other in enumerate(self.above):
            if other is value:
                return {"described": "above", "of": [number]}
        self.above.append(value)
        try:
            return self._parts(value, depth - 1)
        finally:
            self.above.pop()

    def _parts(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in (tuple, list):
            return {kind.__name__: [self.of(x, depth) for x in value]}
        if kind is dict:
            return {"dict": [[self.of(key, depth), self.of(x, depth)] for key, x in value.items()]}
        if kind in (set, frozenset):
            return {"described": _name(kind), "of": sorted([self.of(x, depth) for x in value], key=repr)}
        if isinstance(value, np.dtype) or _is_found(value):
            return {"described": f"dtype {value}" if isinstance(value, np.dtype) else _name(value)}
        if isinstance(value, type):
            return {"described": _name(value)}
        return {"described": _name(kind), "of": [self.of(x, depth) for x in _contents(value)]}


def _is_finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _is_found(value: Any) -> bool:
    """Whether a value is what its module has under its name, so that the name identifies it."""
    owner: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in str(getattr(value, "__qualname__", "<none>")).split("."):
        owner = getattr(owner, part, None)
    return owner is not None and owner is value


def _contents(value: Any) -> list[Any]:
    """The contents that distinguish an object from others of its class.

    Raises:
        InputError: only its address distinguishes it.
    """
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        if array.dtype.kind != "O":
            return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, types.CodeType):
        names = [value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_flags]
        return [value.co_code.hex(), value.co_consts, *names]
    if isinstance(value, types.FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, held]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if is_dataclass(value) and not isinstance(value, type):
        return [[f.name, getattr(value, f.name, None)] for f in fields(value)]
    if isinstance(value, dict):
        held = [[key, x] for key, x in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        held = list(value)
    elif isinstance(value, int | float | complex | str | bytes):
        held = [repr(value)]
    else:
        held = []
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    held += [[name, getattr(value, name)] for name in slots if name not in ("__dict__", "__weakref__")]
    held += [[name, x] for name, x in getattr(value, "__dict__", {}).items()]
    wrapped: Any = getattr(value, "__wrapped__", None)
    if not held and wrapped is not None:
        held = [wrapped]
    if held or (type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__")):  # the latter holds nothing
        return held
    text = repr(value)
    if _ADDRESS.search(text) or len(text) > _MOST_TEXT:
        raise InputError(f"a {_name(type(value))} among the arguments cannot be told from others of its type")
    return [text]


def _slots(kind: type) -> tuple[str, ...]:
    slots: Any = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


__all__ = ["Structure", "read_tree", "tree_data"]
