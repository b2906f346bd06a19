"""Grids of cases of which the normal suite runs a sample, and `make slow` the rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

from rewrites.language.term import Rule, subterms


def sampled(cases: Iterable[Any], taken: Callable[[int, Any], bool]) -> list[Any]:
    """Parameters for these cases, with the mark `slow` on those that are not taken.

    Args:
        cases: the cases, each a parameter or a tuple of them.
        taken: whether the normal suite runs a case, by its number and itself.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if taken(n, case) else pytest.mark.slow)
        for n, case in enumerate(cases)
    ]


def one_in(count: int, kinds: Callable[[Any], Iterable[Hashable]] = lambda _: ()) -> Callable[[int, Any], bool]:
    """The choice for `sampled` of one case in `count`, and of every case of a kind that no case taken before it has.

    Args:
        count: the number of cases of which one is taken whatever its kinds are.
        kinds: the kinds of a case: its ops, its dtype, its family.
    """
    met: set[Hashable] = set()

    def taken(n: int, case: Any) -> bool:
        own = set(kinds(case))
        if n % count and own <= met:
            return False
        met.update(own)
        return True

    return taken


def ops_of(rule: Rule) -> set[Hashable]:
    """The operations and elementwise functions of a rule."""
    return {(t.op, t["f"]) if t.op == "ew" else t.op for t in subterms((*rule.lhs, *rule.rhs))}
