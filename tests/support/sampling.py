"""Grids of cases of which the normal suite runs a sample, and `make slow` the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


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
