"""Translation of a term into an entry of the op table, along some of its named axes and with physical attributes.

An op acts on the axes that it names and is mapped over all others: `pad(A, v, n(1, 1))` is the table's `pad` of a
vector along n, for every index of the other axes of A.  A `TermEntry` therefore holds the name of an entry, the axes of
each operand in an order, and the attributes in that order.  It has two readers: `rewrites.language.shapes` takes sizes
and their conditions from the entry's type rule, `verifier.equal.sem` takes values from its denotation.  Terms without
an entry concern names alone: a variable, a broadcast, a renaming, a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.language.named import Env, Label, NamedShape, Num, labels_of, per_axis
from rewrites.language.term import PHYSICAL, Term
from superopt.ir.ops.record import Required
from superopt.ir.ops.table import lookup

NUMBER, POSITION = "float64", "int32"
"""Dtypes in which numbers and indices of a rule are denoted, without rounding or conversion."""
Axes: TypeAlias = "tuple[Label, ...]"


@dataclass(frozen=True, slots=True)
class TermEntry:
    """An entry of the op table along some axes of a term.

    Attributes:
        op: name of the entry.
        operands: per operand, the axes on which the entry acts, in its order; None is a size-1 axis that no term has.
        out: the axes of its result, in its order; None is an axis read at its only index.
        attrs: all attributes of the entry.
        positions: further operands of the entry, which are integers.
        indices: numbers of the operands that are indices.
        summed: further axes of both operands, over which the results of the entry are summed.
        conditions: conditions under which the attributes are valid.
    """

    op: str
    operands: tuple[Axes, ...]
    out: Axes
    attrs: Mapping[str, Any]
    positions: tuple[Num, ...] = ()
    indices: tuple[int, ...] = ()
    summed: Axes = ()
    conditions: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class TermAt:
    """A term at an instance.

    Attributes:
        t: the term.
        env: axes, sizes and attributes.
        shapes: the named shapes of its operands.
        metas: reducer meta-variable -> reducer.
    """

    t: Term
    env: Env
    shapes: Sequence[NamedShape]
    metas: Mapping[str, str]

    def axes(self) -> Axes:
        """The axes that the term's op names."""
        return tuple(labels_of(self.env, self.t["over"]))

    def size(self, label: Label) -> Num:
        """Size of the first operand along an axis; an absent axis has size 1."""
        return self.shapes[0].get(label, 1)

    def reducer(self) -> str:
        """The reducer; for a meta-variable that `metas` does not bind, the first admissible one."""
        kind: str = self.t["kind"]
        admissible = self.env.rule.metas.get(kind, kind)
        return self.metas.get(kind, admissible[0] if isinstance(admissible, tuple) else kind)

    def windows(self, count: int) -> tuple[Axes, list[tuple[Any, ...]]]:
        """Axes with attributes, and each attribute over these axes."""
        found = dict(per_axis(self.t, self.env))
        return tuple(found), [tuple([values[j] for values in found.values()]) for j in range(count)]

    def given(
        self, op: str, operands: tuple[Axes, ...], out: Axes, attrs: Mapping[str, Any], **facts: Any
    ) -> TermEntry:
        """An entry of the op table; attributes that are not given have their defaults."""
        filled: dict[str, Any] = {}
        for spec in lookup(op).attrs:
            filled[spec.name] = attrs.get(spec.name, spec.default)
            assert not isinstance(filled[spec.name], Required)
        assert attrs.keys() <= filled.keys()
        return TermEntry(op, operands, out, filled, **facts)

    def kept(self, op: str, labels: Axes, **attrs: Any) -> TermEntry:
        """An entry of one operand that keeps its axes."""
        return self.given(op, (labels,), labels, attrs)


def entry_of(t: Term, env: Env, shapes: Sequence[NamedShape], metas: Mapping[str, str]) -> TermEntry | None:
    """The entry of the op table for a term, given the shapes of its operands; None for a term about names alone."""
    found = ENTRIES.get(t.op)
    return found(TermAt(t, env, shapes, metas)) if found is not None else None


def _dot(x: TermAt) -> TermEntry:
    over = x.axes()
    both = tuple(range(len(over)))
    return x.given(PHYSICAL["dot"], (over, over), (), {"dimension_numbers": ((both, both), ((), ()))})


def _conv(x: TermAt) -> TermEntry:
    """A convolution of one image with one output feature; results are summed over further roles of input features."""
    labels, (step, lo, hi, base, holes) = x.windows(5)
    if not labels:
        return _dot(x)
    features = x.axes() or (None,)
    axes = (None, features[0], *labels)
    attrs = {
        "window_strides": step, "padding": tuple(zip(lo, hi, strict=True)), "lhs_dilation": base,
        "rhs_dilation": holes, "dimension_numbers": (tuple(range(len(axes))),) * 3,
    }  # fmt: skip
    filled = tuple([x.shapes[1].get(label, 1) >= 1 for label in labels])  # rules exclude kernels without elements
    out = (None, None, *labels)
    return x.given(PHYSICAL["conv"], (axes, axes), out, attrs, summed=features[1:], conditions=filled)


def _red(x: TermAt) -> TermEntry:
    over = x.axes()
    return x.given(f"reduce_{x.reducer()}", (over,), (), {"axes": tuple(range(len(over)))})


def _cum(x: TermAt) -> TermEntry:
    return x.kept(f"cum{x.reducer()}", x.axes(), axis=0, reverse=x.t["reverse"])


def _win(x: TermAt) -> TermEntry:
    labels, (size, step, lo, hi) = x.windows(4)
    ones = (1,) * len(labels)
    return x.kept(
        f"reduce_window_{x.reducer()}", labels, window_dimensions=size, window_strides=step,
        padding=tuple(zip(lo, hi, strict=True)), base_dilation=ones, window_dilation=ones,
    )  # fmt: skip


def _concat(x: TermAt) -> TermEntry:
    along = x.axes()
    return x.given("concatenate", (along,) * len(x.t.args), along, {"dimension": 0})


def _rev(x: TermAt) -> TermEntry:
    return x.kept("rev", x.axes(), dimensions=tuple(range(len(x.axes()))))


def _slice(x: TermAt) -> TermEntry:
    labels, (start, stop, step) = x.windows(3)
    ends = tuple([x.size(label) if end is None else end for label, end in zip(labels, stop, strict=True)])
    return x.kept("slice", labels, start_indices=start, limit_indices=ends, strides=step)


def _at(x: TermAt) -> TermEntry:
    """A slice of length 1 along each axis, read at its only index."""
    labels, (start,) = x.windows(1)
    ends, step = tuple([i + 1 for i in start]), (1,) * len(start)
    attrs = {"start_indices": start, "limit_indices": ends, "strides": step}
    return x.given("slice", (labels,), (None,) * len(labels), attrs)


def _pad(x: TermAt) -> TermEntry:
    labels, columns = x.windows(3)
    return x.given("pad", (labels, ()), labels, {"padding_config": tuple(zip(*columns, strict=True))})


def _iota(x: TermAt) -> TermEntry:
    labels, (token,) = x.axes(), x.t["size"]
    sizes = tuple([x.env.tok[token, label] for label in labels])
    return x.given("iota", (), labels, {"dtype": NUMBER, "shape": sizes, "dimension": 0})


def _take(x: TermAt) -> TermEntry:
    """A gather of one row, at the only entry of a vector of indices."""
    attrs = {"offset_dims": (), "collapsed_slice_dims": (0,), "start_index_map": (0,), "slice_sizes": (1,)}
    return x.given(PHYSICAL["take"], (x.axes(), (None,)), (), attrs, indices=(1,))


def _segsum(x: TermAt) -> TermEntry:
    """A sum by segments of rows of one element."""
    *lead, segment = x.axes()
    (token,) = x.t["size"]
    rows, count = tuple(lead), x.env.tok[token, segment]
    return x.given(PHYSICAL["segsum"], (rows, rows), (segment,), {"segments": count}, indices=(1,))


def _dynslice(x: TermAt) -> TermEntry:
    labels, (start, size) = x.windows(2)
    return x.given("dynamic_slice", (labels,), labels, {"slice_sizes": size}, positions=start)


def _dynupdate(x: TermAt) -> TermEntry:
    labels, (start,) = x.windows(1)
    return x.given("dynamic_update_slice", (labels, labels), labels, {}, positions=start)


def _split(x: TermAt) -> TermEntry:
    """A regroup that splits each axis separately into parts of q elements; the type rule checks the counts."""
    whole, outer, inner = (tuple(x.env.labels[r]) for r in x.t["over"])
    _, (parts,) = x.windows(1)
    arith = x.env.arith
    counts = [arith.simplify(arith.floordiv(x.size(label), q)) for label, q in zip(whole, parts, strict=True)]
    groups = tuple([((d,), pair) for d, pair in enumerate(zip(counts, parts, strict=True))])
    out = tuple([label for pair in zip(outer, inner, strict=True) for label in pair])
    return x.given("regroup", (whole,), out, {"groups": groups}, conditions=tuple([q >= 1 for q in parts]))


def _merge(x: TermAt) -> TermEntry:
    """A regroup that merges each pair of axes separately."""
    outer, inner, whole = (tuple(x.env.labels[r]) for r in x.t["over"])
    labels = tuple([label for pair in zip(outer, inner, strict=True) for label in pair])
    sizes = [x.env.arith.simplify(x.size(o) * x.size(i)) for o, i in zip(outer, inner, strict=True)]
    groups = tuple([((2 * d, 2 * d + 1), (n,)) for d, n in enumerate(sizes)])
    return x.given("regroup", (labels,), whole, {"groups": groups})


ENTRIES: Mapping[str, Callable[[TermAt], TermEntry]] = {
    "dot": _dot, "conv": _conv, "red": _red, "cum": _cum, "win": _win, "concat": _concat, "rev": _rev, "slice": _slice,
    "at": _at, "pad": _pad, "iota": _iota, "take": _take, "segsum": _segsum, "dynslice": _dynslice,
    "dynupdate": _dynupdate, "split": _split, "merge": _merge,
}  # fmt: skip
"""Op of a term -> its entry.  Elementwise ops are absent: their function names the entry, and they act on no axis."""
