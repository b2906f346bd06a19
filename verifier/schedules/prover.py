"""Entry points of the prover's process for schedules: index goals decided by Z3, and equality of two expressions.

Two expressions become terms of the prover by folding them over its algebra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.fold import fold
from superopt.ir.index import Atom, Size, Symbol
from superopt.ir.types import range_of
from verifier.equal import conditions as c
from verifier.equal.algebra import Terms
from verifier.equal.conditions import Cond, Sym
from verifier.equal.equality import ORDER, Proof, Stop, equal_terms
from verifier.equal.monomial import Unsupported
from verifier.equal.places import to_poly
from verifier.equal.poly import Poly, var
from verifier.equal.ranges import PremiseRanges
from verifier.equal.solver import Context
from verifier.schedules.wire import decoder

RLIMIT = 2_000_000


def settle(message: Mapping[str, Any]) -> dict[str, Any]:
    """Decide by Z3 whether each goal follows from the facts; a goal that does not gets a model."""
    read = decoder(message["ranges"], message["nodes"])
    ctx = Context(rlimit=RLIMIT)
    names = [f"i{k}" for k in range(len(read.symbols))]
    ctx.dims |= set(names)
    lower = _Lower(dict(zip(read.symbols, names, strict=True)))
    for s, name in zip(read.symbols, names, strict=True):
        ctx.premises += [c.ge(var(name), s.low), c.ge(s.high, var(name))]  # pyright: ignore[reportArgumentType]
    ctx.premises += [c.ge(lower.size(read.size(f)), 0) for f in message["facts"]]
    ctx.premises += lower.ranges()
    rows: list[dict[str, Any]] = []
    for goal in message["goals"]:
        wanted = c.ge(lower.size(read.size(goal)), 0)
        status = ctx.entails(wanted)
        model = ctx.model([c.negate(wanted)]) if status == "no" else None
        rows.append({"status": status, "model": None if model is None else [model[n] for n in names]})
    return {"goals": rows}


class _Lower:
    """Conversion of indices to polynomials of the prover; each value read from a tensor is a fresh variable."""

    def __init__(self, names: Mapping[Symbol, str]) -> None:
        self.names = names
        self.values: dict[Any, tuple[str, int, int]] = {}

    def size(self, x: Size) -> Poly:
        return to_poly(x, self._leaf)

    def _leaf(self, a: Atom) -> Poly:
        if isinstance(a, Symbol):
            return var(self.names[a])
        low, high = range_of(a.args[0].dtype)
        name, *_ = self.values.setdefault(a.args[0], (f"v{len(self.values)}", int(low), int(high)))
        return var(name)

    def ranges(self) -> list[Cond]:
        """Conditions that keep every value read in the range of its dtype."""
        return [x for name, low, high in self.values.values() for x in (c.ge(var(name), low), c.ge(high, var(name)))]


def equal(message: Mapping[str, Any]) -> dict[str, Any]:
    """Whether two expressions are equal by laws of the prover, other than those that assume no overflow of `exp`."""
    read = decoder(message["ranges"], message["nodes"])
    ctx = Context(rlimit=RLIMIT)
    env: dict[Symbol, Any] = {}
    facts: list[Cond] = []
    names: dict[Symbol, str] = {}
    for size in read.sizes:
        env[size] = Sym(var(size.name))
        ctx.dims.add(size.name)
        ctx.premises.append(c.ge(var(size.name), 1))
        names[size] = size.name
    free: list[int] = message["free"]
    for number in free:
        s = read.symbols[number]
        extent = _Lower(names).size(s.extent)
        names[s] = name = ctx.fresh(extent, "o")
        env[s] = Sym(var(name))
        facts += c.within(var(name), extent)
    lower = _Lower(names)
    facts += [c.ge(lower.size(read.size(f)), 0) for f in message["facts"]]
    terms: Any = Terms(ctx, PremiseRanges(ctx))
    left, right = read.expr(message["left"]), read.expr(message["right"])
    done = Proof()
    try:
        sides = [fold(e, terms, _reader(terms, e), env) for e in (left, right)]
        equal_terms(ctx, sides[0], sides[1], tuple(facts), done, dtype=terms.kind(*sides))
    except (Stop, Unsupported, NotImplementedError) as why:
        return {"proved": False, "exactness": "", "cause": str(why)}
    exactness = ORDER[done.laws]
    return {"proved": exactness != "range", "exactness": exactness, "cause": "only where no exponential overflows"}


def _reader(terms: Any, root: Expr) -> Any:
    dtypes = {e.args[0]: e.dtype for e in subexpressions(root) if e.kind == "load"}

    def read(name: str, index: tuple[Any, ...]) -> Any:
        return terms.read(name, index, dtypes[name])

    return read
