"""Structures of arguments and results as plain data, for files.

    "*"                     a leaf
    null                    None, which has no leaves
    {"tuple": [...]}        also "list"
    {"dict": [[key, ...]]}  keys are texts or integers, in order

Nothing else is read from a file: no class of a file's choosing is imported, looked up or made.
"""

from __future__ import annotations

from typing import Any

from superopt.errors import InputError
from superopt.reading import LIMITS, depth_of, shown

_LEAF = "*"


def tree_data(tree: Any) -> Any:
    """A structure of JAX (`PyTreeDef`) as plain data.

    Raises:
        InputError: it holds types of its own.
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
    raise InputError(
        f"the structure {tree} holds types of its own and cannot be saved",
        hint="save functions of tuples, lists and dictionaries",
    )


def read_tree(data: Any) -> Any:
    """The structure that `tree_data` made plain.

    Raises:
        InputError: it is none.
    """
    import jax  # late: importing this module costs nothing

    depth_of(data, "a structure of arguments", LIMITS.depth)
    return jax.tree_util.tree_structure(_skeleton(data))


def _skeleton(data: Any) -> Any:
    """Plain data as a value of the structure that it describes."""
    match data:
        case "*":
            return 0
        case None:
            return None
        case {"tuple": list(items), **rest} if not rest:
            return tuple(map(_skeleton, items))
        case {"list": list(items), **rest} if not rest:
            return list(map(_skeleton, items))
        case {"dict": list(items), **rest} if not rest:
            return _dictionary(items)
        case _:
            raise InputError(f"{shown(data)} is no structure of arguments")


def _dictionary(items: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for item in items:
        match item:
            case [str() | int() as key, child] if not isinstance(key, bool) and key not in found:
                found[key] = _skeleton(child)
            case _:
                raise InputError(f"{shown(item)} is no entry of a dictionary of arguments")
    if len({type(key) for key in found}) > 1:
        raise InputError("a dictionary of arguments has keys of two kinds")
    return found


__all__ = ["read_tree", "tree_data"]
