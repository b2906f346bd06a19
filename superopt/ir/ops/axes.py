"""The flow of axes through an op: the facet `axes` of its entry.

An entry says two things of one application. Canonical forms, layouts, emission, matching and relayout derive from it.

    flow   The axes that operands and result share. An axis consists of *atoms*. Equal atoms are one axis, or one factor
           of it. An atom that the result lacks is reduced or contracted. One that all operands lack is new. An `Act` is
           the effect of the op along an axis that it keeps.
    laid   The op on operands that lie in other orders: its attributes, and the order in which its result lies.

`KeptAxes` serves ops whose result has the axes of their operands; other ops derive from `AxisRule`. A test over
(op x facet) holds both against the denotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

AxisAtom = int
Order = tuple[int, ...]
"""Order in which a tensor lies: its axis i is axis order[i] of the tensor that the attributes name."""
Values = Mapping[str, Any]
Shapes = Sequence[Sequence[Any]]


class Along(Enum):
    """Effect of an op along an axis that it keeps."""

    WINDOW = "elements move by numbers"
    REVERSE = "elements are reversed"
    SCAN = "elements depend on those before them"
    JOIN = "operands follow one another"
    STRETCH = "an axis of size 1 grows"
    MIX = "each element depends on all operands' elements"


@dataclass(frozen=True, slots=True)
class Act:
    """Effect of an op along one axis.

    Attributes:
        kind: the effect.
        values: numbers of a window on this axis.
        neutral: numbers that change nothing; None where all change something.
    """

    kind: Along
    values: tuple[Any, ...] = ()
    neutral: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class AxisRun:
    """Neighbouring axes of a result that hold some atoms together, row-major."""

    axes: int
    atoms: tuple[AxisAtom, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Axes of one application.

    Attributes:
        operands: per operand and axis, its atoms; an axis of size 1 may have none.
        result: the axes of the result in runs.
        acts: atom -> effect along it.
        sizes: sizes of atoms that share an axis with others.
        complete: whether atoms and acts say all that the attributes do.
    """

    operands: tuple[tuple[tuple[AxisAtom, ...], ...], ...]
    result: tuple[AxisRun, ...]
    acts: Mapping[AxisAtom, Act] = field(default_factory=dict[AxisAtom, Act])
    sizes: Mapping[AxisAtom, Any] = field(default_factory=dict[AxisAtom, Any])
    complete: bool = True

    @property
    def regroups(self) -> bool:
        """Whether axes are merged or split: a run of the result is no axis of any operand."""
        held = {own for operand in self.operands for own in operand}
        return any(run.axes != 1 or (len(run.atoms) != 1 and run.atoms not in held) for run in self.result)

    @property
    def axes(self) -> tuple[tuple[AxisAtom, ...], ...]:
        """Atoms of each axis of the result, where none are merged or split."""
        return tuple([run.atoms for run in self.result])


@dataclass(frozen=True, slots=True)
class Laid:
    """The op on operands that lie in other orders.

    Attributes:
        attrs: its attributes.
        operands: which of the given operands stands at each place.
        order: order in which the result lies.
    """

    attrs: dict[str, Any]
    operands: tuple[int, ...]
    order: Order


class AxisRule:
    """The flow of axes through one op.

    Attributes:
        follows: whether operands may lie as the result is wanted; else they lie as the attributes name them.
    """

    follows = True

    @property
    def data(self) -> int | None:
        """Number of leading operands that hold data where those behind them are positions; None where all hold data."""
        return None

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return the flow of axes for these attributes, operand shapes and result shape."""
        raise NotImplementedError

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return orders of operands that attributes can express: these where they can."""
        return tuple(orders)

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Return the op on operands that lie in these orders; the result lies in the wanted order where it is free."""
        raise NotImplementedError

    def commuted(self, v: Values, ranks: Sequence[int]) -> tuple[dict[str, Any], Order] | None:
        """Return attributes, and order of the result, with both operands exchanged; None where they cannot be."""
        return None


def singly(count: int) -> tuple[tuple[AxisAtom, ...], ...]:
    """Return axes of one atom each, numbered from 0."""
    return tuple([(i,) for i in range(count)])


def runs(axes: Sequence[tuple[AxisAtom, ...]]) -> tuple[AxisRun, ...]:
    """Return each axis as a run of its own."""
    return tuple([AxisRun(1, atoms) for atoms in axes])


Acting = Callable[[Values, Sequence[Any]], "Mapping[AxisAtom, Act]"]


@dataclass(frozen=True, slots=True)
class KeptAxes(AxisRule):
    """Axis i of the result is axis i of every tensor among the operands.

    Attributes:
        tensors: number of operands with these axes, None for all; others are scalars.
        each: attributes with one entry for each axis.
        one: attribute that names an axis.
        some: attribute that names axes in increasing order.
        starts: whether behind the tensors stands one scalar operand for each axis.
        act: effects along axes, from attributes and the first operand's shape.
        complete: whether the acts say all that the attributes do.
    """

    tensors: int | None = 1
    each: tuple[str, ...] = ()
    one: str | None = None
    some: str | None = None
    starts: bool = False
    act: Acting | None = None
    complete: bool | Callable[[Values], bool] = True

    @property
    def data(self) -> int | None:
        """Number of tensors, where starts stand behind them."""
        return self.tensors if self.starts else None

    def flow(self, v: Values, shapes: Shapes, shape: Sequence[Any]) -> Flow:
        """Return one atom for each axis; a scalar of an op on tensors alone stands for its broadcast."""
        axes = singly(len(shape))
        count = len(shapes) if self.tensors is None else self.tensors
        acts: Mapping[AxisAtom, Act] = {} if self.act is None else self.act(v, shapes[0])
        complete = self.complete(v) if callable(self.complete) else self.complete
        return Flow((axes,) * count + ((),) * (len(shapes) - count), runs(axes), acts, complete=complete)

    def takes(self, v: Values, orders: Sequence[Order]) -> tuple[Order, ...]:
        """Return the first tensor's order for all tensors."""
        first = next((order for order in orders if order), ())
        return tuple([first if order else () for order in orders])

    def laid(self, v: Values, orders: Sequence[Order], wanted: Order | None = None) -> Laid:
        """Return attributes and scalar operands in the order of the tensors, in which the result lies too."""
        order = next((order for order in orders if order), ())
        attrs = dict(v)
        for name in self.each:
            attrs[name] = permuted(v[name], order)
        if self.one is not None:
            attrs[self.one] = order.index(v[self.one])
        if self.some is not None:
            attrs[self.some] = tuple(sorted([order.index(axis) for axis in v[self.some]]))
        operands = tuple(range(len(orders)))
        if self.starts:
            assert self.tensors is not None
            operands = (*operands[: self.tensors], *permuted(operands[self.tensors :], order))
        return Laid(attrs, operands, order)


def permuted(values: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Return values per axis for a tensor that lies in this order."""
    return tuple([values[axis] for axis in order])
