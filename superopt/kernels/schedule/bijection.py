"""Inverse of an index map: axes as functions of the element written.

An index is invertible when each of its entries is a mixed-radix number whose digits are axes, or digits `a // s % m` of
axes, and each axis has all of its digits somewhere.  Split and fused axes have this form, and so have the index maps of
layouts.  The inverse reads the digits from the element and composes each axis from its digits.  It determines which
elements a stage writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.ir.index import Atom, Poly, Size, Symbol, bounds, decide, of_atom, substitute_guard
from superopt.kernels.loops.stage import Buffer, Stage, extent
from superopt.kernels.schedule.edit import terms


@dataclass(frozen=True, slots=True)
class _Digit:
    """`symbol // stride % radix`."""

    symbol: Symbol
    stride: int
    radix: int


def solve(
    index: Sequence[Size], axes: Sequence[Symbol], element: Sequence[Size], shape: Sequence[int]
) -> dict[Symbol, Size] | None:
    """Return the axes at which an index map gives an element; None where the map is not of invertible form.

    Args:
        index: the index map over the axes.
        axes: all that the index may mention; those of extent 1 need not occur.
        element: the element that the index is to equal; where no axes give it, the result exceeds the range of some
            axis.
        shape: shape of the buffer in which the element is.
    """
    digits: dict[_Digit, Size] = {}
    sums: dict[Symbol, Poly] = {}  # a sum of digits that is divided as a whole, as an iterator of its own
    for x, e, n in zip(index, element, shape, strict=True):
        if not _taken(x, e, n, digits, sums):
            return None
    done: set[Symbol] = set()
    while len(done) < len(sums):
        inner = next(s for s in sums if s not in done)
        done.add(inner)
        value = _assembled(inner, digits)
        if value is None or not _taken(sums[inner], value, extent(inner), digits, sums):
            return None
    solved: dict[Symbol, Size] = {}
    for axis in axes:
        value = _assembled(axis, digits)
        if value is None:
            return None
        solved[axis] = value
    return None if any(d.symbol not in solved and d.symbol not in sums for d in digits) else solved


def _taken(x: Size, value: Size, n: int, digits: dict[_Digit, Size], sums: dict[Symbol, Poly]) -> bool:
    """Record the digits of a number below n given its value; False where it is no mixed-radix number."""
    taken = _digits(x, sums)
    if taken is None or not (taken or n <= 1 or value == 0):
        return False
    weight = 1
    for j, (digit, c) in enumerate(taken):
        if c != weight or digit in digits:
            return False
        part = value // weight
        top = j == len(taken) - 1
        digits[digit] = part if top else part % digit.radix if digit.radix > 1 else 0
        weight *= digit.radix
    return True


def _assembled(axis: Symbol, digits: dict[_Digit, Size]) -> Size | None:
    """Return an iterator composed from its digits; None where one is missing."""
    total: Size = 0
    reach = 1
    for d in sorted([d for d in digits if d.symbol == axis], key=lambda d: d.stride):
        if d.stride != reach:
            return None
        total = total + digits[d] * d.stride
        reach *= d.radix
    return total if reach >= extent(axis) else None


def _digits(x: Size, sums: dict[Symbol, Poly]) -> list[tuple[_Digit, int]] | None:
    """Return digits and weights of a mixed-radix number, the least significant first."""
    if isinstance(x, int):
        return [] if x == 0 else None
    digits: list[tuple[_Digit, int]] = []
    for mono, c in x.terms:
        digit = _digit(mono[0], sums) if len(mono) == 1 and c > 0 else None
        if digit is None:
            return None
        digits.append((digit, c))
    return sorted(digits, key=lambda pair: pair[1])


def _digit(atom: Atom, sums: dict[Symbol, Poly]) -> _Digit | None:
    if isinstance(atom, Symbol):
        return _Digit(atom, 1, extent(atom))
    inner, k = atom.args[0], atom.args[-1]
    if atom.op not in ("//", "%") or not isinstance(k, int) or not isinstance(inner, Poly):
        return None
    if inner.is_atom:
        d = _digit(inner.terms[0][0][0], sums)
    else:
        low, high = bounds(inner)
        if low != 0 or high == float("inf"):
            return None
        whole = Symbol(f"?{inner.key}", 0, int(high))
        sums[whole] = inner
        d = _Digit(whole, 1, extent(whole))
    if d is None or not _whole(d, k):
        return None
    if atom.op == "//":  # the digit above; a radix that is no multiple is rounded up
        return _Digit(d.symbol, d.stride * k, -(-d.radix // k))
    return _Digit(d.symbol, d.stride, k)


def _whole(d: _Digit, k: int) -> bool:
    """Whether dividing the digit by k gives digits again; the topmost digit of an axis may be cut anywhere."""
    return d.radix % k == 0 or d.stride * d.radix >= extent(d.symbol)


def element_of(shape: Sequence[int], taken: Sequence[str], stem: str = "c") -> tuple[list[Symbol], list[Size]]:
    """Return iterators over a buffer and the element at which they stand."""
    names: list[str] = []
    while len(names) < len(shape):
        name = f"{stem}{len(names)}"
        while name in taken:
            name += "_"
        names.append(name)
    its = [Symbol(name, 0, n - 1) for name, n in zip(names, shape, strict=True)]
    return its, [of_atom(it) if n != 1 else 0 for it, n in zip(its, shape, strict=True)]


# ---- which elements a stage writes


def inverse(
    stage: Stage, element: Sequence[Size], shape: Sequence[int], shared: Sequence[Symbol] = ()
) -> dict[Symbol, Size]:
    """Return the axes at which a stage writes an element; axes shared with the reader stay.

    Raises:
        InputError: the index map of the stage has no inverse of a known form.
    """
    axes = [a.symbol for a in stage.axes if a.symbol not in shared]
    solution = None if stage.combine is not None else solve(stage.index, axes, element, shape)
    if solution is None:
        text = ",".join(map(str, stage.index))
        raise InputError(
            f"the axes of stage {stage.buffer} do not follow from the element {stage.buffer}[{text}] that is written",
            hint="this step needs an index map made of axes by splitting, fusing and permuting",
        )
    return solution | {s: of_atom(s) for s in shared}


def total(stage: Stage, buffer: Buffer, primitive: str) -> None:
    """Raise unless the stage writes every element of its buffer."""
    _, _, exists = written(stage, buffer)
    if exists and 0 not in buffer.shape:
        raise InputError(
            f"{primitive}: stage {stage.buffer} does not write every element of {buffer.name}{list(buffer.shape)}: "
            f"only where {', '.join(f'{x} >= 0' for x in exists)}"
        )


def written(stage: Stage, buffer: Buffer) -> tuple[list[Symbol], list[Size], list[Size]]:
    """Return iterators over a buffer, their element, and the terms that are >= 0 where the stage writes it."""
    shared = [a.symbol for a in stage.axes[: stage.at[1]]] if stage.at is not None else []
    its, element = element_of(buffer.shape, [s.name for s in shared])
    if stage.combine is not None:  # from the identity
        return its, element, []
    axes = inverse(stage, element, buffer.shape, shared)
    exists = [x for s, value in axes.items() if s not in shared for x in (value, last(s) - value)]
    exists += terms(substitute_guard(stage.guard, axes))
    return its, element, [x for x in exists if decide(x) is not True]


def last(s: Symbol) -> int:
    """Return the greatest value of an iterator."""
    assert isinstance(s.high, int)
    return s.high
