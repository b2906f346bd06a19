"""Bilinear algorithms: convolutions with fewer products, found by search.

`r` taps over `m` outputs along an axis are `m * r` products: y[k] = sum over j of d[k + j] * g[j].  An algorithm is a
set of products (combination of the d) * (combination of the g) and, for every output, a combination of these.  Each
product contributes a rank-one matrix, its weight in each output times its weight of each tap.  The products suffice if
and only if the matrices span those of all d: the ones that are constant along the diagonals k + j.

    terms        Rank-one matrices of small fractions that are constant along the diagonals.
    algorithms   Sets of m + r - 1 independent ones, those with least growth of values first.
    texts        Rules for one axis (the other window axis stays a convolution) and for two (one batched product).

The search only proposes candidates: their texts are proved as every rule is.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Vector = tuple[int, ...]
SIZES = ((2, 3), (3, 3), (4, 3), (2, 5), (3, 5), (4, 5))
"""(outputs, taps) to search."""
BOTH = 4
"""Most products along each axis of a rule for two axes: with five, one right side has thousands of terms."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Products of a convolution along an axis.

    Attributes:
        outputs: weights of all products, for every output.
        taps: weights of all taps, for every product, and the divisor of their sum.
        data: weights of all entries of the data, for every product.
    """

    outputs: tuple[Vector, ...]
    taps: tuple[tuple[Vector, int], ...]
    data: tuple[Vector, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """Largest growth of a value through the sums over data and outputs, and the number of terms in them."""
        rows = (*self.data, *self.outputs)
        grown = max(sum(map(abs, d)) for d in self.data) * max(sum(map(abs, o)) for o in self.outputs)
        return grown, sum(x != 0 for row in rows for x in row)


def terms(m: int, r: int, most: int) -> list[tuple[Vector, Vector]]:
    """Rank-one matrices that are constant along diagonals: weights of outputs and of taps.

    All minors of such a matrix vanish, so its diagonals are a geometric sequence: the ratio y / x is 0, infinite or a
    fraction of numbers up to `most`.
    """
    span = range(1, most + 1)
    fractions = [(1, 0), (0, 1), *((x, s * y) for x in span for y in span for s in (1, -1))]
    return [(_powers(x, y, m), _powers(x, y, r)) for x, y in fractions if math.gcd(x, y) == 1]


def _powers(x: int, y: int, n: int) -> Vector:
    return tuple(x ** (n - 1 - i) * y**i for i in range(n))


def algorithms(m: int, r: int, most: int = 2, count: int = 1) -> list[Algorithm]:
    """The algorithms of `m + r - 1` products with least growth of values."""
    known = terms(m, r, most)
    made = [x for x in (_solved(some, m, r) for some in itertools.combinations(known, m + r - 1)) if x is not None]
    return sorted(made, key=lambda x: x.cost)[:count]


def _solved(chosen: Sequence[tuple[Vector, Vector]], m: int, r: int) -> Algorithm | None:
    """The weights of the data, or None where the products do not suffice."""
    n = m + r - 1
    # one equation per diagonal: all its entries give the same one
    matrix = [[Fraction(a[min(d, m - 1)] * u[d - min(d, m - 1)]) for a, u in chosen] for d in range(n)]
    inverse = _inverse(matrix)
    if inverse is None:
        return None
    data: list[Vector] = []
    taps: list[tuple[Vector, int]] = []
    for row, (_, u) in zip(inverse, chosen, strict=True):
        scale = math.lcm(*(x.denominator for x in row))
        data.append(tuple(int(x * scale) for x in row))
        taps.append((u, scale))
    outputs = tuple(tuple(a[k] for a, _ in chosen) for k in range(m))
    return Algorithm(outputs, tuple(taps), tuple(data))


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]] | None:
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = next((k for k in range(i, n) if rows[k][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k in range(n):
            if k != i and rows[k][i]:
                rows[k] = [x - rows[k][i] * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [row[n:] for row in rows]


def combined(weights: Sequence[int], names: Sequence[str]) -> str:
    """A weighted sum as text."""
    out = ""
    for w, name in zip(weights, names, strict=True):
        if w:
            sign = (" - " if w < 0 else " + ") if out else ("-" if w == -1 else "")
            size = abs(w) if out else w
            out += sign + (name if abs(size) == 1 else f"{size} * {name}")
    return out


def one_axis(algorithm: Algorithm, name: str) -> str:
    """A rule for one window axis; the other one stays a convolution."""
    m, r = len(algorithm.outputs), len(algorithm.taps[0][0])
    n = m + r - 1
    joined = _joined(algorithm, [f"P{i}" for i in range(n)])
    images = [combined(b, [f"D{d}" for d in range(n)]) for b in algorithm.data]
    kernels = [_kernel(taps, "W", "s") for taps in algorithm.taps]
    both = enumerate(zip(images, kernels, strict=True))
    lines = [
        f"{name}: X[*b c s v]  W[o c s2 v2]  extra j",
        "  conv(X, W, c, s(1, p, q), v(t, l, h, u, d))",
        f"    == slice(merge({joined}, s, j, s), s(0, s + p + q - {r - 1}))",
        *_padded("Z", (("s", "p", "q"),), m, r),
        *(f"  with D{d} = {_part('Z', 's', 'p', 'q', d, m, r)}" for d in range(n)),
        *(f"  with P{i} = conv({image}, {kernel}, c, v(t, l, h, u, d))" for i, (image, kernel) in both),
        f"  if s2 == {r}",
        "  prefer frozen(W) and c >= 16",
        "  mode macro",
        "  source superopt discover --ops bilinear",
    ]
    return _text(lines)


def two_axes(algorithm: Algorithm, name: str) -> str:
    """A rule for two window axes: one batched product."""
    m, r = len(algorithm.outputs), len(algorithm.taps[0][0])
    n = m + r - 1
    inner = [f"at(Q, f({i}))" for i in range(n)]
    outer = [f"at(P, e({i}))" for i in range(n)]
    lines = [
        f"{name}: X[*b c s u]  W[o c s2 u2]  extra e f j",
        "  conv(X, W, c, s(1, p, q), u(1, l, h))",
        f"    == slice(merge({_joined(algorithm, inner)}, u, j, u),",
        f"             s(0, s + p + q - {r - 1}), u(0, u + l + h - {r - 1}))",
        *_padded("Z", (("s", "p", "q"), ("u", "l", "h")), m, r),
        *(f"  with D{d} = {_part('Z', 's', 'p', 'q', d, m, r)}" for d in range(n)),
        f"  with T = {_stacked([combined(b, [f'D{d}' for d in range(n)]) for b in algorithm.data], 'e')}",
        *(f"  with E{d} = {_part('T', 'u', 'l', 'h', d, m, r)}" for d in range(n)),
        f"  with R = {_stacked([combined(b, [f'E{d}' for d in range(n)]) for b in algorithm.data], 'f')}",
        f"  with G = {_stacked([_kernel(taps, 'W', 's') for taps in algorithm.taps], 'e')}",
        f"  with H = {_stacked([_kernel(taps, 'G', 'u') for taps in algorithm.taps], 'f')}",
        "  with P = dot(R, H, c)",
        f"  with Q = merge({_joined(algorithm, outer)}, s, j, s)",
        f"  if s2 == {r}, u2 == {r}",
        "  prefer frozen(W) and c >= 16",
        "  mode macro",
        "  source superopt discover --ops bilinear",
    ]
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    """Lines of a rule, long ones continued."""
    return "\n".join(
        textwrap.fill(line, 118, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def _joined(algorithm: Algorithm, products: Sequence[str]) -> str:
    """All outputs of a group side by side."""
    return _stacked([combined(row, products) for row in algorithm.outputs], "j")


def _stacked(parts: Sequence[str], role: str) -> str:
    return f"concat({', '.join(f'unit({part}, {role})' for part in parts)}, {role})"


def _tiles(s: str, p: str, q: str, m: int, r: int) -> str:
    """Number of groups of `m` outputs, times `m`."""
    more = m - r
    tail = f" + {more}" if more > 0 else f" - {-more}" if more < 0 else ""
    return f"({s} + {p} + {q}{tail}) // {m} * {m}"


def _padded(name: str, axes: Sequence[tuple[str, str, str]], m: int, r: int) -> list[str]:
    pads = (f"{s}({p}, {_tiles(s, p, q, m, r)} + {r - 1} - {s} - {p})" for s, p, q in axes)
    return [f"  with {name} = pad(X, 0, {', '.join(pads)})"]


def _part(name: str, s: str, p: str, q: str, d: int, m: int, r: int) -> str:
    """Entry `d` of every group."""
    stop = d - m + 1
    tail = f" + {stop}" if stop > 0 else f" - {-stop}" if stop < 0 else ""
    return f"slice({name}, {s}({d}, {_tiles(s, p, q, m, r)}{tail}, {m}))"


def _kernel(taps: tuple[Vector, int], name: str, s: str) -> str:
    weights, scale = taps
    text = combined(weights, [f"at({name}, {s}({j}))" for j in range(len(weights))])
    if scale == 1:
        return text
    return f"({text}) / {scale}" if sum(map(bool, weights)) > 1 else f"{text} / {scale}"


def candidate_texts() -> list[str]:
    """Rules for windows of three and five taps: for each number of outputs, the algorithm of least growth."""
    out: list[str] = []
    for m, r in SIZES:
        for best in algorithms(m, r):
            out.append(one_axis(best, f"conv-apart-{m}-{r}"))
            if m + r - 1 <= BOTH:
                out.append(two_axes(best, f"conv-square-{m}-{r}"))
    return out
