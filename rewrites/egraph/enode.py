"""References, e-nodes and where they come from: the vocabulary of the e-graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.egraph import canon as normal_canon
from superopt.errors import SuperoptError
from superopt.ir.graph import Attrs
from superopt.ir.ops import table
from superopt.ir.types import TensorType

Ref: TypeAlias = int
ENode: TypeAlias = tuple[int, ...]
IntShape: TypeAlias = tuple[int, ...]


class LimitReachedError(SuperoptError):
    """A limit of growth was reached; `reason` is `enodes` or `seconds`.  The e-graph stays consistent."""

    code = "SO421"

    def __init__(self, reason: str) -> None:
        super().__init__(f"e-graph growth stopped by its limit of {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Origin:
    """The rule instance that introduced an e-node or a union."""

    rule: str
    step: int
    roots: tuple[Ref, ...]


class OpAttrs:
    """An interned op with its attributes."""

    __slots__ = ("attrs", "canon", "elementwise", "op", "values")

    def __init__(self, op: str, attrs: Attrs) -> None:
        self.op = op
        self.attrs = attrs
        self.values: dict[str, Any] = dict(attrs)
        self.elementwise = op in normal_canon.ELEMENTWISE
        self.canon = normal_canon.canon_of(op)

    def infer(self, shapes: Sequence[IntShape], dtypes: Sequence[str]) -> tuple[TensorType, ...]:
        """Types of the results; scalar operands of elementwise ops count as broadcast, a macro as its op.

        Raises:
            ShapeError: the op does not accept these operands.
        """
        if self.elementwise:
            full = max(shapes, key=len)
            shapes = [s or full for s in shapes]
        operands = tuple([TensorType(s, d) for s, d in zip(shapes, dtypes, strict=True)])
        if self.op == "macro":
            return table.infer(self.values["op"], operands, self.values["attrs"])
        return table.infer(self.op, operands, self.attrs)
