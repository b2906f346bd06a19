"""What a program of the list is: a function of a library's user with arguments, made anew in every process.

A maker imports its library when it is called, so that a process loads the one that it runs, and draws its values from
one generator, so that every process makes the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Draw:
    """Values of arguments, the same in every process."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal float32."""
        return self._rng.standard_normal(shape).astype(np.float32)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Uniform float32."""
        return self._rng.uniform(low, high, shape).astype(np.float32)

    def integers(self, high: int, *shape: int) -> np.ndarray:
        """Uniform int32 below `high`."""
        return self._rng.integers(0, high, shape).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Built:
    """A function that `jax.jit` accepts with arguments, and the options of `superopt.optimize`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """A name, the library whose user would write it, and its maker."""

    name: str
    library: str
    make: Callable[[Draw], Built]


PROGRAMS: dict[str, Program] = {}


def program(library: str) -> Callable[[Callable[[Draw], Built]], Callable[[Draw], Built]]:
    """Enter a maker into the list under its own name."""

    def enter(make: Callable[[Draw], Built]) -> Callable[[Draw], Built]:
        PROGRAMS[make.__name__] = Program(make.__name__, library, make)
        return make

    return enter
