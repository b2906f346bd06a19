"""Values of a body that are linear in a carry: a number times it, plus a matrix times it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from superopt.ir.graph import Node, literal, mk, topological
from superopt.ir.ops.table import PRODUCTS


@dataclass(frozen=True, slots=True)
class LinearForm:
    """A number times a carry, plus a matrix times it.

    Attributes:
        number: the number, a scalar; None for 0.
        matrix: the matrix; None for 0.
        product: a product of the carry with a matrix, where there is one.
    """

    number: Node | None = None
    matrix: Node | None = None
    product: Node | None = None

    def as_product(self, carry: Node) -> Node | None:
        """The same as one product with the carry; None where there is no matrix."""
        matrix, product = self.matrix, self.product
        if matrix is None or product is None:
            return None
        if self.number is not None:
            down, right = (mk("iota", dtype="int32", shape=matrix.shape, dimension=d) for d in (0, 1))
            zero, kept = (_filled(x, matrix) for x in (literal(0.0, matrix.dtype), self.number))
            matrix = mk("add", matrix, mk("select_n", mk("eq", down, right), zero, kept))
        return mk(product.op, *[x if x is carry else matrix for x in product.inputs], **dict(product.attrs))

    def scaled(self, op: str, number: Node) -> LinearForm:
        """The form times a number, or divided by it."""
        own, matrix = (None if x is None else mk(op, x, _filled(number, x)) for x in (self.number, self.matrix))
        return replace(self, number=own, matrix=matrix)

    def joined(self, op: str, other: LinearForm) -> LinearForm:
        """The sum of two forms, or their difference."""
        number, matrix = _joined(op, self.number, other.number), _joined(op, self.matrix, other.matrix)
        return LinearForm(number, matrix, self.product or other.product)


def linear_form(node: Node, carry: Node, fixed: Collection[Node]) -> LinearForm | None:
    """The form of a value that is linear in a carry, with numbers and matrices that are fixed; None for other values.

    The matrices of all products stand on one side of the carry.
    """
    forms: dict[Node, LinearForm] = {carry: LinearForm(literal(1.0, carry.dtype))}
    for x in topological((node,)):
        if x not in forms and (form := _form(x, carry, forms, fixed)) is not None:
            forms[x] = form
    return forms.get(node)


def _form(node: Node, carry: Node, forms: Mapping[Node, LinearForm], fixed: Collection[Node]) -> LinearForm | None:
    if node.op in PRODUCTS:
        return _of_product(node, carry, fixed) if carry in node.inputs and is_plain(node) else None
    if node.op in ("mul", "div"):
        for value, factor in (node.inputs, node.inputs[::-1])[: 2 if node.op == "mul" else 1]:
            number = _number_of(factor)
            if value in forms and number in fixed and not number.shape:
                return forms[value].scaled(node.op, number)
    if node.op in ("add", "sub") and all(x in forms for x in node.inputs):
        left, right = (forms[x] for x in node.inputs)
        return left.joined(node.op, right) if _one_side(left.product, right.product, carry) else None
    return None


def is_plain(node: Node) -> bool:
    """Whether a node is a product over one axis of each operand, with no axis that both share."""
    if node.op not in PRODUCTS:
        return False
    contracted, batch = node["dimension_numbers"]
    return len(contracted[0]) == 1 and not batch[0]


def _of_product(node: Node, carry: Node, fixed: Collection[Node]) -> LinearForm | None:
    right = node.inputs[0] is carry  # where the matrix stands
    matrix = node.inputs[int(right)]
    contracted = ((carry.type.rank - 1,), (0,)) if right else ((1,), (0,))
    square = matrix in fixed and matrix.type.rank == 2 and node.type == carry.type
    return LinearForm(None, matrix, node) if square and node["dimension_numbers"][0] == contracted else None


def _number_of(node: Node) -> Node:
    """The scalar that fills a value, where one does; else the value."""
    inner = node
    while inner.op == "broadcast_in_dim":
        (inner,) = inner.inputs
    return node if inner.shape else inner


def _one_side(a: Node | None, b: Node | None, carry: Node) -> bool:
    """Whether two products have the carry on the same side, and round alike."""
    if a is None or b is None:
        return True
    return (a.inputs[0] is carry) == (b.inputs[0] is carry) and a.attrs == b.attrs


def _joined(op: str, a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return mk("neg", b) if a is None and b is not None and op == "sub" else a or b
    return mk(op, a, b)


def _filled(number: Node, like: Node) -> Node:
    return mk("broadcast_in_dim", number, shape=like.shape, broadcast_dimensions=())
