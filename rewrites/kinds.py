"""Kinds of tensors: predicates and indices are found by how a rule uses them; all others share one float dtype."""

from __future__ import annotations

from collections.abc import Iterable

from rewrites.names import LOGICAL, PREDICATES
from rewrites.term import Term, subterms

_PASS_ON = frozenset(
    # one name per word reads better than fifteen quoted strings
    """bcast expand view lay slice at concat rev split merge ren unit stack ew dynslice dynupdate""".split()  # noqa: SIM905
)


def kinds(names: Iterable[str], roots: tuple[Term, ...]) -> dict[str, str]:
    """`bool` (used as a predicate), `int` (used as an index) or `float` per tensor."""
    out = dict.fromkeys(names, "float")

    def demand(t: Term, kind: str) -> None:
        if t.op == "var":
            out[t["name"]] = kind
        elif t.op in _PASS_ON and t.get("f") not in PREDICATES:
            for a in t.args:
                demand(a, kind)

    for t in subterms(roots):
        if t.op == "ew" and t["f"] == "select_n":
            demand(t.args[0], "bool")
        elif t.op == "ew" and t["f"] in LOGICAL:
            demand(t, "bool")
        elif t.op == "take":
            demand(t.args[1], "int")
    return out
