"""Normalization of expressions before they are compared: selects as guarded choices, 16-bit floats over the reals.

`select_n(c, a, b)` is b where c is true and a where it is not.  Where c compares affine positions, in integers that
hold them, it is a guard.  Both sides of a comparison are brought to guards, so that a schedule may write either form.

`exp(where(g, x, -inf) - m)` is `where(g, exp(x - m), 0)`.  This assumes that m is a finite number, as the maximum of a
row is unless the whole row is masked.  A constant of at most -1e30 counts as minus infinity in a maximum over a row
whose first element is never masked, and where that maximum is subtracted: scores are assumed to be larger.

Two expressions that agree after their roundings to 16-bit floats are removed have one value over the reals.  Roundings
under a comparison, a conversion to integers or a `nextafter` stay, since their results depend on the rounded value.
"""

from __future__ import annotations

import math

from superopt.ir.expr import Expr, const, convert, op, reduce, subexpressions, where, with_parts
from superopt.ir.index import Guard, Size, Truth, all_of, nonnegative, of_atom, substitute, substitute_guard
from superopt.ir.scalar import DTYPE, HALVES, SCALARS
from superopt.ir.types import FLOATS
from verifier.schedules.intervals import interval

_MOST = (1 << 31) - 1
_LEAST = -1e30
_COMPARISONS = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}  # (s, k): it is s * (a - b) + k >= 0


def guarded(root: Expr) -> Expr:
    """The expression with guarded choices in place of `select_n` on affine comparisons; masked maxima normalized."""
    done: dict[Expr, Expr] = {}
    for e in subexpressions(root):
        operands = [done[x] for x in e.operands]
        made = e if all(x is y for x, y in zip(operands, e.operands, strict=True)) else None
        if e.kind == "op" and e.args[0] == "select_n" and len(operands) == 3:
            guard = _truth(operands[0])
            if guard is not None:
                made = where(guard, lambda x=operands: x[2], lambda x=operands: x[1])
        made = made if made is not None else with_parts(e, operands, lambda x: x)
        done[e] = _vanishing(_unseen(made))
    return done[root]


def _vanishing(e: Expr) -> Expr:
    """Rewrite exp(where(g, x, -inf) - m) to where(g, exp(x - m), 0); any other expression stays."""
    if e.kind != "op" or e.args[0] != "exp" or e.operands[0].kind != "op" or e.operands[0].args[0] != "sub":
        return e
    masked, shift = e.operands[0].operands
    if masked.kind != "where" or masked.args[2].kind != "const" or masked.args[2].args[0] > _LEAST:
        return e
    if masked.args[2].args[0] != -math.inf and not any(_is_row(r, masked) for r in subexpressions(shift)):
        return e  # in a row that is masked as a whole the constant takes part in the maximum
    inner = op("exp", e.args[1], op("sub", e.operands[0].args[1], masked.args[1], shift))
    return where(masked.args[0], lambda: inner, lambda: const(0, e.dtype))


def _is_row(e: Expr, masked: Expr) -> bool:
    """Whether `e` is the maximum, as `_unseen` writes it, of the row that contains a masked value."""
    if e.kind != "reduce" or e.args[0] != "max" or len(e.args[1]) != 1:
        return False
    (it,), body = e.args[1:]
    while body.kind == "where" and body.args[1].kind == "where":
        body = body.args[1]
    if body.kind != "where" or body.args[2].kind != "const" or body.args[2].args[0] != -math.inf:
        return False
    return any(
        body.args[1].substitute({it: of_atom(s)}) is masked.args[1]
        and substitute_guard(body.args[0], {it: of_atom(s)}) == masked.args[0]
        for s in masked.symbols
    )


def _unseen(e: Expr) -> Expr:
    """Rewrite a maximum over a masked row to mask with minus infinity, if the first element is never masked."""
    if e.kind != "reduce" or e.args[0] != "max" or len(e.args[1]) != 1 or e.dtype not in FLOATS:
        return e
    (it,), body = e.args[1:]
    around: list[Guard] = []
    while body.kind == "where" and body.args[2].kind == "const" and body.args[2].args[0] == -math.inf:
        around.append(body.args[0])
        body = body.args[1]
    if body.kind != "where" or body.args[2].kind != "const" or body.args[2].args[0] > _LEAST:
        return e
    held = [substitute(p, {it: 0}) for g in (*around, body.args[0]) for p in g.ordered]
    if not all((interval(p, {})[0]) >= 0 for p in held):
        return e
    then = body.args[1]
    new = where(body.args[0], lambda: then, lambda: const(-math.inf, e.dtype))
    for g in reversed(around):
        new = where(g, lambda x=new: x, lambda: const(-math.inf, e.dtype))
    return reduce("max", (it,), new)


def _truth(e: Expr) -> Truth | None:
    """The guard under which a truth value is true; None where no guard expresses it."""
    if e.dtype != "bool":
        return None
    if e.kind == "const":
        return bool(e.args[0])
    if e.kind == "where":
        held = {x.args[0] if x.kind == "const" else None for x in e.args[1:]}
        yes = e.args[1]
        if held == {True, False} and yes.kind == "const":
            return e.args[0] if yes.args[0] else _opposite(e.args[0])
        return None
    if e.kind != "op":
        return None
    if e.args[0] == "not":
        return _opposite(_truth(e.operands[0]))
    if e.args[0] == "and":
        both = [_truth(x) for x in e.operands]
        return None if None in both else all_of(*[x for x in both if x is not None])
    if e.args[0] in _COMPARISONS:
        a, b = [_position(x) for x in e.operands]
        sign, more = _COMPARISONS[e.args[0]]
        return None if a is None or b is None else nonnegative((a - b) * sign + more)
    return None


def _opposite(guard: Truth | None) -> Truth | None:
    """Return the negation; None where nothing is known or several conditions are joined."""
    if guard is None or isinstance(guard, bool):
        return None if guard is None else not guard
    assert isinstance(guard, Guard)
    return nonnegative(-1 - guard.ordered[0]) if len(guard.ordered) == 1 else None


def _position(e: Expr) -> Size | None:
    """The affine position that an integer expression computes; None unless no step of it can wrap."""
    if e.dtype not in ("int32", "int64"):
        return None
    if e.kind == "const":
        position: Size | None = int(e.args[0])
    elif e.kind == "index":
        position = e.args[0]
    elif e.kind == "op" and e.args[0] in ("add", "sub"):
        a, b = [_position(x) for x in e.operands]
        if a is None or b is None:
            return None
        position = a + b if e.args[0] == "add" else a - b
    else:
        return None
    assert position is not None
    low, high = (position, position) if isinstance(position, int) else interval(position, {})
    return position if low >= -_MOST and high <= _MOST else None


_WIDE = "float32"


def has_halves(e: Expr) -> bool:
    """Whether some subexpression is computed in 16-bit floats or rounded to them."""
    return any(x.dtype in HALVES and x.kind not in ("load", "const") for x in subexpressions(e))


def unrounded(root: Expr) -> Expr:
    """The expression in float32 instead of 16-bit floats, except where a result depends on the rounding itself."""
    done: dict[Expr, Expr] = {}
    for e in subexpressions(root):
        done[e] = e if _sees_rounding(e) else _over(e, [done[x] for x in e.operands])
        if e.dtype in HALVES and done[e].dtype in HALVES:
            done[e] = convert(done[e], e.dtype, _WIDE)
    return done[root]


def _sees_rounding(e: Expr) -> bool:
    if e.kind == "op" and e.args[0] == "nextafter":
        return True
    whole = (e.kind == "op" and SCALARS[e.args[0]].predicate) or (e.kind == "convert" and e.dtype not in FLOATS)
    return whole and any(x.dtype in HALVES and x.kind not in ("load", "const") for x in e.operands)


def _over(e: Expr, parts: list[Expr]) -> Expr:
    """Return an expression on other operands, which are float32 where they were 16-bit floats."""
    half = e.dtype in HALVES
    match e.kind:
        case "const" if half:
            return const(float(DTYPE[e.dtype].type(e.args[0])), _WIDE)
        case "const" | "load" | "index":
            return e
        case "convert":
            if half and e.args[0] not in FLOATS:
                return e
            wanted = _WIDE if half else e.dtype
            return parts[0] if parts[0].dtype == wanted else convert(parts[0], parts[0].dtype, wanted)
        case "op" if e.args[1] in HALVES:
            return op(e.args[0], _WIDE, *parts)
        case _:
            return with_parts(e, parts, lambda x: x)
