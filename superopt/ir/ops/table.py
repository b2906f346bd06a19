"""The op table: every op of the IR with its attributes, type rule and denotation.

`canonical` brings attributes to the form that nodes keep, `infer` types an op from operand types, `result_types` a
node from its operands.  The entries live in the family modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.ops import contraction, control, elementwise, indexing, linear, movement, reduction
from superopt.ir.ops.record import REQUIRED, Attr, Op, Required, Site, Types, Values, define, show, text
from superopt.ir.types import TensorType

if TYPE_CHECKING:
    from superopt.ir.graph import Attrs, Node

TABLE: dict[str, Op] = (
    control.TABLE | elementwise.TABLE | movement.TABLE | reduction.TABLE | contraction.TABLE | indexing.TABLE
    | linear.TABLE
)  # fmt: skip


def lookup(op: str) -> Op:
    """Return the entry of an op.

    Raises:
        KeyError: there is none.
    """
    entry = TABLE.get(op)
    if entry is None:
        raise KeyError(f"unknown op {op!r}")
    return entry


def canonical(op: str, attrs: Mapping[str, Any] | Attrs) -> Attrs:
    """Return attributes in the form that nodes keep: sorted by name, defaults filled, values hashable.

    Raises:
        KeyError: unknown op.
        ShapeError: an attribute is missing, unknown, or of the wrong kind.
    """
    entry = lookup(op)
    given = attrs if isinstance(attrs, Mapping) else dict(attrs)
    if not entry.attrs and not given:
        return ()
    values: dict[str, Any] = {}
    missing: list[str] = []
    for spec in entry.attrs:
        value = given.get(spec.name, REQUIRED)
        if value is REQUIRED:
            if isinstance(spec.default, Required):
                missing.append(spec.name)
            else:
                values[spec.name] = spec.default
            continue
        try:
            values[spec.name] = spec.domain(value)
        except ShapeError as error:
            raise ShapeError(f"{op}: attribute {spec.name}: {error.args[0]}") from None
    known = {spec.name for spec in entry.attrs}
    if missing or not known.issuperset(given):
        unknown = [name for name in given if name not in known]
        raise ShapeError(f"{op} takes the attributes {sorted(known)}; missing {missing}, unknown {unknown}")
    if entry.complete is not None:
        entry.complete(values)
    return tuple(values.items())


def infer(op: str, inputs: Sequence[TensorType], attrs: Mapping[str, Any] | Attrs) -> Types:
    """Return the result types of an op on operands of these types; for `result`, the types are its operand's results.

    Raises:
        KeyError: unknown op.
        ShapeError: the op does not accept these operand types or attributes.
    """
    entry = lookup(op)
    if entry.arity is not None and len(inputs) != entry.arity:
        raise ShapeError(f"{op} takes {entry.arity} operands; got {len(inputs)} ({show(inputs)})")
    types = entry.type(tuple(inputs), attrs if isinstance(attrs, Mapping) else dict(attrs))
    return (types,) if isinstance(types, TensorType) else types


def result_types(op: str, inputs: Sequence[Node], attrs: Attrs) -> Types:
    """Return the result types of a node.

    Raises:
        ShapeError: the op does not accept these operands or attributes.
    """
    if op == "result":
        if len(inputs) != 1:
            raise ShapeError(f"result takes one operand; got {len(inputs)}")
        return infer(op, inputs[0].types, attrs)
    return infer(op, [node.type for node in inputs], attrs)


# ---- macros stand for other entries of the table


def _inner(attrs: Values) -> Op:
    entry = lookup(attrs["op"])
    if entry.at is None:
        raise ShapeError(f"a macro cannot stand for {attrs['op']}, which has no value at one index")
    return entry


def _macro_rule(types: Types, attrs: Values) -> TensorType | Types:
    _inner(attrs)
    return infer(attrs["op"], types, attrs["attrs"])


def _macro(k: AnyAlgebra, i: Index, xs: Sequence[Reader], site: Site) -> Any:
    at = _inner(site.attrs).at
    assert at is not None
    return at(k, i, xs, Site(site.inputs, site.out, dict(site.attrs["attrs"])))


def _macro_complete(attrs: dict[str, Any]) -> None:
    attrs["attrs"] = canonical(attrs["op"], dict(attrs["attrs"]))


def _attrs(value: Any) -> Any:
    return tuple(dict(value).items())


define(
    TABLE, "macro", "macro", None, _macro_rule, _macro,
    Attr("rule", text), Attr("op", text), Attr("attrs", _attrs), complete=_macro_complete,
)  # fmt: skip


# ---- ops by kind


def _of(family: str) -> frozenset[str]:
    return frozenset(name for name, entry in TABLE.items() if entry.family == family)


ELEMENTWISE, CONTRACTIONS, LINEAR, CONTROL = map(_of, ("elementwise", "contraction", "linear", "control"))
REDUCTIONS = frozenset((*reduction.REDUCE, *reduction.ARG))
WINDOWS, PREFIXES = frozenset(reduction.WINDOW), frozenset(reduction.CUMULATIVE)
PRODUCTS = frozenset(name for name, entry in TABLE.items() if entry.product)
CONVOLUTIONS = CONTRACTIONS - PRODUCTS
VIEWS = frozenset(name for name, entry in TABLE.items() if entry.view)
PARTIAL = frozenset(name for name, entry in TABLE.items() if entry.partial)
POLES = frozenset(name for name, entry in TABLE.items() if entry.poles)
