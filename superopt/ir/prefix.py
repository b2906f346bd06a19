"""Recognizes prefix reductions (scans): over r <= i, or r >= i, of terms without i.

A loop over i carries such a reduction as one value.

    out[i] = sum_{r<n} [i-r >= 0] ? x[r] : 0     ->     acc = 0; for i: acc += x[i]; out[i] = acc

Their structure identifies them.  The body does not contain the iterator; only the guard does, as a moving bound.
"""

from __future__ import annotations

from superopt.ir.expr import Expr, where
from superopt.ir.index import Guard, Poly, Symbol, all_of, of_atom
from superopt.ir.ops.record import identity


def direction(e: Expr, it: Symbol) -> int:
    """Return 1 for a reduction over r <= it, -1 for one over r >= it, 0 for any other."""
    monoid, iterators, body = e.args
    if len(iterators) != 1 or iterators[0].high != it.high or it not in e.symbols or body.kind != "where":
        return 0
    neutral = body.args[2]
    if neutral.kind != "const" or neutral.args[0] != identity(monoid, e.dtype) or it in body.args[1].symbols:
        return 0
    moving = [p for p in body.args[0].ordered if it in p.symbols]
    if len(moving) != 1:
        return 0
    (p,) = moving
    for k in (1, -1):
        rest = p - (of_atom(it) - of_atom(iterators[0])) * k
        if isinstance(rest, int) and rest == 0:
            return k
    return 0


def step_of(e: Expr, it: Symbol) -> Expr:
    """Return the value that a prefix adds at its end."""
    _, (r,), body = e.args
    guard: Guard = body.args[0]
    others: list[Poly] = [p for p in guard.ordered if it not in p.symbols]
    left = where(all_of(*[Guard((p,)) for p in others]), lambda: body.args[1], lambda: body.args[2])
    return left.substitute({r: of_atom(it)})
