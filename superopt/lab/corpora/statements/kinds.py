"""Families of cases by kind: a kind is a function of a random generator, so there are as many cases of it as seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
TensorFunction = Callable[..., Any]


def in_turn(kinds: Mapping[str, K], seed: int, count: int) -> Iterator[tuple[str, int, K, np.random.Generator]]:
    """A sequence of `count` cases, the kinds in turn: name of the kind, number of the case, the kind, its generator."""
    names = list(kinds)
    for number in range(count):
        name = names[number % len(names)]
        yield name, number, kinds[name], np.random.default_rng((seed, number))


def pick(rng: np.random.Generator, *options: Any) -> Any:
    """One of the options at random."""
    return options[int(rng.integers(len(options)))]
