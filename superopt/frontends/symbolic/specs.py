"""Specifications of arguments at symbolic sizes: shapes, dtypes and constraints as text.

    "m k"    "4*n, 3"    "int32[b t]"    ""            Sizes by spaces or commas; a dtype before brackets; a scalar.
    ("m k", "bfloat16")                                A shape and a dtype.
    jax.ShapeDtypeStruct((2, 3), "float32")            A type, or an array for its own.
    {"w": "k n", "b": "n"}                             Pytrees of these.

A size is an expression of integers and names with `+ - * // %`.  Constraints are comparisons of sizes.  An equation
that determines a name (`n == 2*m`, `n % 4 == 0`) is solved: the name becomes `2*m`, or `4*n_` with a new name `n_`.
The remaining names stand for any integer from 0 on (from 1 on, where JAX traces the function only so).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from superopt.errors import InputError
from superopt.frontends.jax.sizes import dimension
from superopt.ir.index import Poly, Size, Symbol, concrete, substitute, symbol
from superopt.ir.types import DTYPES, LONG, STORED_BYTES, TensorType
from superopt.machine.shared import parse_expression

_SPEC = re.compile(r"\s*(?:(?P<dtype>[a-z_]+\d*)?\s*\[(?P<inner>[^\[\]]*)\]|(?P<outer>[^\[\]]*))\s*")
HINT = 'write shapes as in "m k", "int32[n]", ("m k", "bfloat16")'


@dataclass(frozen=True, slots=True)
class Specs:
    """The arguments of a function at symbolic sizes.

    Attributes:
        names: names of the flat arguments.
        types: types of the flat arguments, over symbols from 0 on.
        tree: structure of `[args, kwargs]`, lists.
        sizes: the free size names.
        solved: (name, its expression) for names that constraints determine.
        premises: polynomials that are at least 0.
    """

    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    tree: Any
    sizes: tuple[str, ...]
    solved: tuple[tuple[str, str], ...]
    premises: tuple[Poly, ...]

    @property
    def wide(self) -> bool:
        """Whether an argument has a type of 64 bits, which JAX supports only on request."""
        return any(t.dtype in ("int64", "uint64", "float64") for t in self.types)

    def arguments(self, leaf: Callable[[TensorType], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, each leaf made from its type."""
        return self.unflatten([leaf(t) for t in self.types])

    def unflatten(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments from their leaves."""
        return tree_util.tree_unflatten(self.tree, leaves)

    def shapes(self, values: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Concrete shapes of the flat arguments."""
        return [tuple(concrete(n, values) for n in t.shape) for t in self.types]

    def admits(self, values: Mapping[str, int]) -> bool:
        """Whether these sizes meet the constraints, and every axis has a length."""
        try:
            return all(concrete(p, values) >= 0 for p in self.premises) and all(
                n >= 0 for shape in self.shapes(values) for n in shape
            )
        except ZeroDivisionError:
            return False


def read_specs(
    parameters: Sequence[str], specs: Sequence[Any], named: Mapping[str, Any], constraints: Sequence[str]
) -> Specs:
    """Specifications of a function's arguments.

    Args:
        parameters: names of the function's positional parameters.
        specs: specifications by position.
        named: specifications by name.
        constraints: comparisons of sizes.

    Raises:
        InputError: a specification or constraint cannot be read.
    """
    given = dict(named)
    positional = list(specs)
    for name in parameters[len(positional) :]:
        if name not in given:
            break
        positional.append(given.pop(name))
    owners = [*parameters[: len(positional)], *(f"arg{i}" for i in range(len(parameters), len(positional)))]
    paths, tree = tree_util.tree_flatten_with_path([positional, given], is_leaf=_is_spec)
    constraints = (constraints,) if isinstance(constraints, str) else constraints
    taken = set(re.findall(r"\w+", " ".join([*constraints, *(str(spec) for _, spec in paths)])))
    solution = _solve(constraints, taken)
    names: list[str] = []
    types: list[TensorType] = []
    for path, spec in paths:
        key = path[1]
        owner = owners[key.idx] if path[0].idx == 0 else str(key.key)
        name = "_".join([owner, *(re.sub(r"\W", "", tree_util.keystr((p,))) for p in path[2:])])
        while name in names:
            name = f"{name}_{len(names)}"
        names.append(name)
        kind = read_type(spec, name)
        types.append(TensorType(tuple(substitute(n, solution.values) for n in kind.shape), kind.dtype))
    used = [s for t in types for n in t.shape if isinstance(n, Poly) for s in _in_order(n)]
    used += [s for p in solution.premises for s in _in_order(p)]
    free = tuple(dict.fromkeys(s.name for s in used))
    solved = tuple((s.name, str(e)) for s, e in solution.values.items())
    return Specs(tuple(names), tuple(types), tree, free, solved, solution.premises)


def _in_order(x: Poly) -> list[Symbol]:
    return sorted(x.symbols, key=lambda s: str(x).find(s.name))


def _is_spec(x: object) -> bool:
    if isinstance(x, tuple):
        return len(x) == 2 and isinstance(x[0], str) and not isinstance(x[1], tuple | list) and _is_dtype(x[1])
    return x is None  # a pytree without leaves to JAX, and a mistake here


def _is_dtype(x: object) -> bool:
    if isinstance(x, str):
        return LONG.get(x, x) in DTYPES
    return isinstance(x, np.dtype | type) or hasattr(x, "dtype")


def _dtype(x: Any) -> str:
    return LONG.get(x, x) if isinstance(x, str) else str(jax.numpy.dtype(x))


def read_type(spec: Any, name: str = "an argument") -> TensorType:
    """The type of one specification.

    Raises:
        InputError: it cannot be read.
    """
    if isinstance(spec, tuple) and _is_spec(spec):
        return TensorType(read_type(spec[0], name).shape, _dtype(spec[1]))
    if isinstance(spec, jax.ShapeDtypeStruct | np.ndarray | np.generic | jax.Array):
        if str(spec.dtype) not in STORED_BYTES:
            raise InputError(
                f"{name} is of {spec.dtype}, which no input of a statement can be",
                hint="give its data (jax.random.key_data)",
            )
        return TensorType(tuple(int(n) for n in spec.shape), str(spec.dtype))
    if not isinstance(spec, str):
        raise InputError(f"the specification of {name} is a {type(spec).__name__}", hint=HINT)
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise InputError(f"the specification of {name}, {spec!r}, cannot be read", hint=HINT)
    kind = match["dtype"] or "float32"
    if LONG.get(kind, kind) not in DTYPES:
        raise InputError(f"{kind!r} in the specification of {name} is no dtype", hint=f"dtypes are {', '.join(DTYPES)}")
    text = match["inner"] if match["inner"] is not None else match["outer"]
    return TensorType(tuple(dimension(n, 0) for n in _split(text or "")), LONG.get(kind, kind))


def _split(text: str) -> list[str]:
    """Sizes by commas or spaces, outside parentheses."""
    parts, depth, current = list[str](), 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth == 0 and char in ", \t\n":
            parts.append(current)
            current = ""
        else:
            current += char
    return [p for p in (*parts, current) if p]


# ---- constraints


@dataclass(frozen=True, slots=True)
class _Solution:
    values: dict[Symbol, Size]
    premises: tuple[Poly, ...]


def _solve(constraints: Sequence[str], taken: set[str]) -> _Solution:
    values: dict[Symbol, Size] = {}
    rest: list[Size] = []
    for text in constraints:
        for op, left, right in _comparisons(text):
            left, right = substitute(left, values), substitute(right, values)
            solution = _equation(left, right, taken) if op == "==" else None
            if solution is not None:
                name, value = solution
                values = {s: substitute(e, {name: value}) for s, e in values.items()} | {name: value}
                rest = [substitute(p, {name: value}) for p in rest]
            else:
                gaps = {">=": [left - right], "<=": [right - left], ">": [left - right - 1], "<": [right - left - 1]}
                rest += gaps.get(op) or [left - right, right - left]
    false = [p for p in rest if isinstance(p, int) and p < 0]
    if false:
        raise InputError(f"the constraints {tuple(constraints)} contradict each other")
    return _Solution(values, tuple(p for p in rest if isinstance(p, Poly)))


_OPS: dict[type[ast.cmpop], str] = {
    ast.GtE: ">=", ast.LtE: "<=", ast.Gt: ">", ast.Lt: "<", ast.Eq: "==",
}  # fmt: skip


def _comparisons(text: str) -> list[tuple[str, Size, Size]]:
    try:
        tree = parse_expression(text.strip())
    except SyntaxError as error:
        raise InputError(f"the constraint {text!r} cannot be read", hint='write "m >= 2" or "n % 4 == 0"') from error
    if not isinstance(tree, ast.Compare) or any(type(op) not in _OPS for op in tree.ops):
        raise InputError(f"the constraint {text!r} is no comparison of sizes", hint='write "m >= 2" or "n % 4 == 0"')
    sides = [dimension(ast.unparse(x), 0) for x in (tree.left, *tree.comparators)]
    return [(_OPS[type(op)], a, b) for op, a, b in zip(tree.ops, sides, sides[1:], strict=False)]


def _equation(left: Size, right: Size, taken: set[str]) -> tuple[Symbol, Size] | None:
    """A name and its value: `n == e`, or `n % e == 0` as n = e * n_, where n_ is none of the names taken."""
    for a, b in ((left, right), (right, left)):
        if not isinstance(a, Poly) or not a.is_atom:
            continue
        atom = a.atoms[0]
        if isinstance(atom, Symbol):
            if isinstance(b, int) or atom not in b.symbols:
                return atom, b
        elif atom.op == "%" and isinstance(b, int) and b == 0:
            whole, part = atom.args
            if isinstance(whole, Poly) and whole.is_atom and isinstance(whole.atoms[0], Symbol):
                name = whole.atoms[0]
                fresh = f"{name.name}_"
                while fresh in taken:
                    fresh += "_"
                taken.add(fresh)
                return name, symbol(fresh) * part
    return None
