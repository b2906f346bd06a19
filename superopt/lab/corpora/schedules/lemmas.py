"""Lemmas of the arithmetic behind schedule proofs, for all sizes and decisions at once, proved by Z3.

A candidate of a search is checked with its own numbers, by steps that are instances of a few statements about
integers.  They are about digits of a split, the rest below a digit, tails, panels, tasks, sums of guards.  Each is
stated here over symbolic extents and factors and proved once.  The certificate is kept in the ledger, and a search over
any number of candidates does not prove it again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import Poly, const, var
from verifier.equal.solver import YES, Context, recorded
from verifier.verdict import PROVED, UNKNOWN, Query

RLIMIT = 20_000_000


@dataclass(frozen=True, slots=True)
class Lemma:
    """Premises over integers, and the conclusions that follow from them."""

    name: str
    says: str
    premises: tuple[Cond, ...]
    goals: tuple[Cond, ...]

    @property
    def key(self) -> str:
        """Digest of the statement."""
        text = "\n".join([*map(str, self.premises), "|-", *map(str, self.goals)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _vars(names: str) -> list[Poly]:
    return [var(n) for n in names.split()]


def _within(x: Poly, n: Poly | int) -> tuple[Cond, Cond]:
    return c.ge(x, 0), c.lt(x, n)


def lemmas() -> tuple[Lemma, ...]:
    """All lemmas."""
    i, n, f, q, r, count = _vars("i n f q r count")
    q2, r2, s, w, t = _vars("q2 r2 s w t")
    m, x, y, k, p, g, h = _vars("m x y k p g h")
    one = const(1)
    ceiling = (c.ge(f, 1), c.ge(n, 1), c.ge(count * f, n), c.lt((count - one) * f, n))
    split = c.eq(i, q * f + r)
    return (
        Lemma("split-onto", "every i below n has digits below count = ceil(n / f) and f",
              (*ceiling, *_within(i, n), split, *_within(r, f)), (*_within(q, count),)),
        Lemma("split-one-to-one", "digits of a split are determined by their number",
              (c.ge(f, 1), *_within(r, f), *_within(r2, f), c.eq(q * f + r, q2 * f + r2)), (c.eq(q, q2), c.eq(r, r2))),
        Lemma("split-full", "only the last tile of a split has a tail",
              (*ceiling, c.ge(q, 0), c.lt(q, count - one), *_within(r, f)), (c.lt(q * f + r, n),)),
        Lemma("digit", "a coefficient above what is below it determines its digit",
              (c.ge(w, 0), c.lt(w, s), *_within(r, w + one), *_within(r2, w + one), c.eq(q * s + r, q2 * s + r2)),
              (c.eq(q, q2), c.eq(r, r2))),
        Lemma("digit-value", "that digit is the floor of the number by the coefficient",
              (c.ge(w, 0), c.lt(w, s), *_within(r, w + one), c.eq(t, q * s + r)),
              (c.ge(t, q * s), c.lt(t, (q + one) * s))),
        Lemma("fuse", "a fused axis is in range", (*_within(x, m), *_within(y, n)), (*_within(x * n + y, m * n),)),
        Lemma("panel", "a vector in the last panel stays in its padding",
              (*ceiling, *_within(q, count), *_within(r, f)), (*_within(q * f + r, count * f),)),
        Lemma("tasks", "tiles of different tasks hold different elements",
              (c.ge(f, 1), *_within(r, f), *_within(r2, f), c.lt(q, q2)), (c.lt(q * f + r, q2 * f + r2),)),
        Lemma("region", "what a tile and a window reach is below tile + window - 1",
              (c.ge(f, 1), c.ge(w, 1), *_within(r, f), *_within(k, w)), (*_within(r + k, f + w - one),)),
        Lemma("propagate", "a guard c*x + rest >= 0 bounds x by the floor of the rest by c",
              (c.ge(f, 1), c.ge(f * x + y, 0), c.ge(t, y), c.ge(t, q * f), c.lt(t, (q + one) * f)), (c.ge(x, -q),)),
        Lemma("linear", "k*p = h + m*g with g >= 0, m >= 0 and h > -k gives p >= 0",
              (c.ge(k, 1), c.eq(k * p, h + m * g), c.ge(g, 0), c.ge(m, 0), c.ge(h, one - k)), (c.ge(p, 0),)),
        Lemma("sum", "one more term of size at most m keeps a sum below (k + 1) * m",
              (c.ge(m, 0), c.ge(k, 0), c.ge(s, -(k * m)), c.ge(k * m, s), c.ge(t, -m), c.ge(m, t)),
              (c.ge(s + t, -((k + one) * m)), c.ge((k + one) * m, s + t))),
    )  # fmt: skip


def prove(lemma: Lemma) -> tuple[str, tuple[Query, ...]]:
    """The status of a lemma, and the solver queries behind it."""
    ctx = Context(rlimit=RLIMIT, premises=list(lemma.premises))
    with recorded() as asked:
        proved = all(ctx.entails(goal) == YES for goal in lemma.goals)
    return (PROVED if proved else UNKNOWN), tuple(asked)


def prove_all(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Name, statement, status and queries of every lemma, as plain data."""
    rows: list[dict[str, Any]] = []
    for lemma in lemmas():
        if not names or lemma.name in names:
            start = time.perf_counter()
            status, asked = prove(lemma)
            ms = (time.perf_counter() - start) * 1e3
            row: dict[str, Any] = {"ms": ms, "name": lemma.name, "says": lemma.says, "key": lemma.key, "status": status}
            rows.append({**row, "asked": [[q.answer, q.text] for q in asked]})
    return rows
