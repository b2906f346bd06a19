"""Simplification of loop nests before code generation: exact rewrites of expressions, none of which knows an op.

    flatten     x[i,j]                      -> x[n*j+i]            one linear index per load.
    split       x[o//c, o%c]                -> x[h, l]             o = c*h + l; also under reductions.
    fuse        x[a,b] + y[a,b] over a, b   -> x[f] + y[f]         axes that every access walks as one.
    decide      [i-3>=0] ? a : b            -> a                   where the range of i decides the guard.
    cuts        ranges of an iterator in which guards are known.

Cutting keeps to the interior: an iterator is cut where a guard begins to hold for all values of the iterators inside
it.  It is not cut at every value at which the guard changes, so the number of pieces does not grow with a window's
size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from superopt.ir import expr as ex
from superopt.ir.expr import Expr, subexpressions, values_of
from superopt.ir.index import (
    Form,
    Guard,
    Poly,
    Size,
    Symbol,
    Truth,
    bounds,
    coefficient,
    of_atom,
    row_major,
    substitute,
)
from superopt.kernels.loops.stage import Buffer

Ranges = Mapping[Symbol, tuple[int, int]]
MOST_PIECES = 8  # pieces of one iterator
MOST_PARTS = 96  # pieces of one iterator where every cut decides a guard: each piece of a concatenation is one part
MOST_SPLITS = 8


# ---- indices, guards and loads of an expression


def flatten(root: Expr, buffers: Mapping[str, Buffer]) -> Expr:
    """Give every load one linear index; loads of empty buffers, which no iteration reaches, become 0."""

    def change(e: Expr) -> Expr | None:
        if e.kind != "load":
            return None
        buffer = buffers[e.args[0]]
        if 0 in buffer.shape:
            return ex.const(0 if e.dtype != "bool" else False, e.dtype)
        return ex.load(buffer.name, [row_major(e.args[1], buffer.shape)], e.dtype)

    return ex.rewrite(root, change)


def indices_in(roots: Sequence[Expr]) -> list[Size]:
    """Return every index and every side of a guard."""
    return list(dict.fromkeys(x for root in roots for e in subexpressions(root) for x in e.indices))


def forms_in(x: Size) -> list[Form]:
    """Return the non-polynomial atoms of an index, nested ones included."""
    forms: list[Form] = []
    stack: list[Size] = [x]
    while stack:
        at = stack.pop()
        for form in at.forms if isinstance(at, Poly) else ():
            forms.append(form)
            stack += [y for y in form.args if isinstance(y, Poly)]
    return forms


def guards_in(roots: Sequence[Expr]) -> list[Poly]:
    """Return the sides of all guards."""
    guards = dict.fromkeys(p for root in roots for e in subexpressions(root) if e.kind == "where" for p in e.indices)
    return [p for p in guards if isinstance(p, Poly)]


def reductions(root: Expr) -> list[tuple[Expr, bool]]:
    """Return the reductions, inner ones first, and whether each stands under a choice wherever it occurs."""
    sums: dict[Expr, bool] = {}
    seen: set[tuple[Expr, bool]] = set()
    stack: list[tuple[Expr, bool, bool]] = [(root, False, False)]
    while stack:
        e, guarded, done = stack.pop()
        if done:
            sums[e] = sums.get(e, True) and guarded
            continue
        if not e.height or (e, guarded) in seen or (e, False) in seen:
            continue
        seen.add((e, guarded))
        if e.kind == "reduce":
            stack.append((e, guarded, True))
        stack += [(x, guarded or e.kind == "where", False) for x in reversed(e.operands)]
        stack += [(v, guarded, False) for x in e.indices for v in values_of(x)]
    return list(sums.items())


# ---- split and fuse


def divisor(x: Size, symbols: frozenset[Symbol]) -> tuple[Symbol, int] | None:
    """Return an iterator and a divisor of its extent by which an index divides it."""
    for form in forms_in(x):
        if form.op not in ("//", "%"):
            continue
        whole, by = form.args
        if not isinstance(by, int) or not isinstance(whole, Poly) or not whole.is_atom:
            continue
        (it,) = whole.atoms
        if isinstance(it, Symbol) and it in symbols and isinstance(it.high, int) and (it.high + 1) % by == 0:
            return it, by
    return None


def split(it: Symbol, by: int) -> tuple[Symbol, Symbol, Size]:
    """Return outer and inner iterator, and the iterator as `by * outer + inner`."""
    assert isinstance(it.high, int)
    high = Symbol(f"{it.name}h", 0, (it.high + 1) // by - 1)
    low = Symbol(f"{it.name}l", 0, by - 1)
    return high, low, index_of(high) * by + index_of(low)


def index_of(it: Symbol) -> Size:
    """Return the iterator as an index; 0 when it takes one value."""
    return 0 if it.high == 0 else of_atom(it)


def split_reductions(root: Expr) -> Expr:
    """Split iterators of reductions where they are divided."""

    def change(e: Expr) -> Expr | None:
        if e.kind != "reduce":
            return None
        monoid, iterators, body = e.args
        its = list(iterators)
        for _ in range(MOST_SPLITS):
            hit = next((h for x in indices_in([body]) if (h := divisor(x, frozenset(its)))), None)
            if hit is None:
                break
            high, low, value = split(*hit)
            body = body.substitute({hit[0]: value})
            its[its.index(hit[0]) : its.index(hit[0]) + 1] = [high, low]
        return None if len(its) == len(iterators) else ex.reduce(monoid, its, body)

    return ex.rewrite(root, change)


def fuse_reductions(root: Expr) -> Expr:
    """Fuse neighbouring iterators of reductions where every index of the body walks them as one."""

    def change(e: Expr) -> Expr | None:
        if e.kind != "reduce" or len(e.args[1]) < 2:
            return None
        monoid, iterators, body = e.args
        its, j = list(iterators), len(iterators) - 2
        while j >= 0:
            fused, value = fused_with(its[j], its[j + 1], [body])
            if fused is not None:
                its[j : j + 2] = [fused]
                (body,) = value
                j = min(j, len(its) - 1)
            j -= 1
        return None if len(its) == len(iterators) else ex.reduce(monoid, its, body)

    return ex.rewrite(root, change)


def fused_with(
    outer: Symbol, inner: Symbol, roots: Sequence[Expr], others: Sequence[Size] = ()
) -> tuple[Symbol | None, list[Expr]]:
    """Replace two iterators by one in expressions; the iterator is None where an index would divide it.

    Args:
        others: further indices that must not divide it.
    """
    n = inner.high
    assert isinstance(outer.high, int)
    assert isinstance(n, int)
    fused = Symbol(f"{outer.name}.{inner.name}", 0, (outer.high + 1) * (n + 1) - 1)
    whole = of_atom(fused)
    mapping = {outer: whole // (n + 1), inner: whole % (n + 1)}
    for x in [*others, *indices_in(roots)]:  # cheap refusal before any expression is rebuilt
        if any(fused in form.symbols for form in forms_in(substitute(x, mapping))):
            return None, []
    return fused, [root.substitute(mapping) for root in roots]


# ---- decisions by ranges


def decide(root: Expr, ranges: Ranges) -> Expr:
    """Resolve the choices of an expression whose guards are known in these ranges."""
    if not any(e.kind == "where" for e in subexpressions(root)):
        return root

    def taken(e: Expr) -> Expr:
        if e.kind != "where" or isinstance(guard := known(e.args[0], ranges), Guard):
            return e
        return e.args[1] if guard else e.args[2]

    def narrower(e: Expr) -> Expr | None:
        if e.kind != "where":
            return None
        guard = known(e.args[0], ranges)
        return ex.where(guard, lambda: e.args[1], lambda: e.args[2]) if guard is not e.args[0] else None

    return ex.rewrite(root, narrower, stand_in=taken)


def known(guard: Truth, ranges: Ranges) -> Truth:
    """Return the guard without the conditions that hold in these ranges; False if one fails."""
    if not isinstance(guard, Guard):
        return guard
    left: list[Poly] = []
    for p in guard.terms:
        low, high = bounds(p, ranges)
        if high < 0:
            return False
        if low < 0:
            left.append(p)
    return guard if len(left) == len(guard.terms) else Guard(left) if left else True


def cuts(it: Symbol, low: int, high: int, guards: Sequence[Poly], ranges: Ranges) -> list[tuple[int, int]]:
    """Cut `low <= it < high` into pieces at the ends of the interior.

    A guard `k*it + rest >= 0` holds for all values of `rest` from some value of `it` on.  A cut is worth its code when
    `rest` varies by less than half the range of `it`: else little is interior.
    """
    points: set[int] = set()
    exact = True
    for p in guards:
        k = coefficient(p, it)
        if not k:
            continue
        least, most = bounds(p - of_atom(it) * k, ranges)
        if math.isinf(least) or math.isinf(most) or (most - least) / abs(k) > max(1, (high - low) / 2):
            continue
        points.add(-(int(least) // k) if k > 0 else int(least) // -k + 1)
        if most == least:
            continue
        exact = False
        points.add(-(int(most) // k) if k > 0 else int(most) // -k + 1)  # beyond this it never holds
    inner = sorted(q for q in points if low < q < high)
    if len(inner) >= (MOST_PARTS if exact else MOST_PIECES):
        return [(low, high)]
    ends = [low, *inner, high]
    return list(itertools.pairwise(ends))


def reciprocals(root: Expr, lane: Symbol | None, keep: frozenset[Expr] = frozenset()) -> Expr:
    """Rewrite `x / s` to `x * (1 / s)` for floats, where s is constant or uniform over lanes and x is not."""

    def change(e: Expr) -> Expr | None:
        if e.kind != "op" or e.args[0] != "div" or not e.dtype.startswith("float") or e.dtype == "float16":
            return None
        _, dtype, x, s = e.args
        if s.kind == "const":
            by = float(s.args[0])
            if not by or not math.isfinite(by) or not math.isfinite(1 / by) or abs(1 / by) < 1e-36:
                return None
            return ex.op("mul", dtype, x, ex.const(1 / by, dtype))
        if lane is None or lane not in x.symbols or lane in s.symbols or is_one(x):
            return None
        return ex.op("mul", dtype, x, ex.op("div", dtype, ex.const(1.0, dtype), s))

    return ex.rewrite(root, change, before=lambda e: e if e in keep else None)


def is_one(e: Expr) -> bool:
    """Whether the expression is the constant 1."""
    return e.kind == "const" and e.args[0] == 1


def is_zero(e: Expr) -> bool:
    """Whether the expression is the constant 0, or false."""
    return e.kind == "const" and e.args[0] == 0
