"""Conversion of JAX's sizes: Python integers, NumPy integers, and the symbolic dimensions of `jax.export`.

A symbolic dimension becomes a polynomial of the IR over symbols of the same names, each at least 1, as JAX itself
assumes of dimension variables.  JAX prints a dimension in a form that its own parser reads back; that text is
translated here, so nothing depends on how JAX represents dimensions.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from superopt.errors import InputError
from superopt.ir.index import Poly, divide, greatest, least, symbol
from superopt.ir.types import Size
from superopt.machine.shared import parse_expression


def size(n: Any) -> Size:
    """One size or integer attribute.

    Raises:
        InputError: a symbolic dimension outside polynomials, floor division, remainder, minimum and maximum.
    """
    if type(n) is int or isinstance(n, Poly):
        return n
    try:
        return operator.index(n)
    except (TypeError, ValueError):  # a symbolic dimension has no index
        return dimension(str(n))


def sizes(ns: Iterable[Any]) -> tuple[Size, ...]:
    """Sizes and integer attributes, each as by `size`."""
    return tuple([size(n) for n in ns])


def has_symbols(ns: Iterable[Any]) -> bool:
    """Whether one of the sizes is symbolic."""
    return any(isinstance(n, Poly) for n in ns)


def is_zero(n: Size) -> bool:
    """Whether the size is the integer 0."""
    return type(n) is int and n == 0


@functools.lru_cache(maxsize=4096)
def dimension(text: str, lowest: int = 1) -> Size:
    """A dimension expression (`4*n + floordiv(m, 2)`, `n // 2`, `n^2`) over symbols of at least `lowest`.

    Raises:
        InputError: the text is no such expression.
    """
    try:
        tree = parse_expression(text.strip().replace("^", "**"))
        return _value(tree, lowest)
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"{text!r} is not a size: {error}", hint="sizes are integers, names, and + - * // % min max of them"
        ) from error


_BINARY: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
_CALLS: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": lambda a, b: divide(a, b)[0],
    "mod": lambda a, b: divide(a, b)[1],
    "max": greatest,
    "min": least,
}
NAME = re.compile(r"[A-Za-z_]\w*")
"""A name in the text of a dimension."""
FUNCTIONS = frozenset({*_CALLS, "non_negative"})
"""Names that JAX reads as functions there."""


def renamed(text: str, name: Callable[[str], str]) -> str:
    """The text of one or several dimensions with sizes renamed."""
    return NAME.sub(lambda found: found[0] if found[0] in FUNCTIONS else name(found[0]), text)


def _value(tree: ast.expr, lowest: int) -> Size:
    """Return the size that a parsed expression of JAX's dimensions means."""
    match tree:
        case ast.Constant(value=int(n)):
            return n
        case ast.Name(id=name) if name in FUNCTIONS or name == "_":
            raise ValueError(f"{name} is a word of JAX's own in a shape")
        case ast.Name(id=name):
            return symbol(name, lowest)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_value(x, lowest)
        case ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(value=int(n))) if n >= 0:
            total: Size = 1
            for _ in range(n):
                total = total * _value(x, lowest)
            return total
        case ast.BinOp(left=x, op=ast.FloorDiv(), right=y):
            return divide(_value(x, lowest), _value(y, lowest))[0]
        case ast.BinOp(left=x, op=ast.Mod(), right=y):
            return divide(_value(x, lowest), _value(y, lowest))[1]
        case ast.BinOp(left=x, op=op, right=y) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(x, lowest), _value(y, lowest))
        case ast.Call(func=ast.Name(id=name), args=[x, y]) if name in _CALLS:
            return _CALLS[name](_value(x, lowest), _value(y, lowest))
        case _:
            raise ValueError(f"{ast.unparse(tree)} is no integer expression")
