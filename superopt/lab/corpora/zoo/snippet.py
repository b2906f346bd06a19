"""A snippet: a function as a person writes it at first, the best form that is known, and arguments drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class TwoForms(NamedTuple):
    """Two forms of one function, and arguments for both.

    Attributes:
        fn: the function as a person writes it at first.
        hand: the best form that a knowledgeable person writes; `fn` itself where nothing is to be gained.
        args: arguments of realistic sizes.
    """

    fn: Callable[..., Any]
    hand: Callable[..., Any]
    args: tuple[Any, ...]


def well_written(fn: Callable[..., Any], *args: Any) -> TwoForms:
    """TwoForms of a function with nothing to gain."""
    return TwoForms(fn, fn, args)


class SnippetDraw:
    """Random arrays of one seed; a call draws normal numbers."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self._rng.standard_normal(shape)).astype(np.float32)

    def uniform(self, low: float, high: float, *shape: int) -> np.ndarray:
        """Numbers between two bounds."""
        return self._rng.uniform(low, high, shape).astype(np.float32)

    def below(self, end: int, *shape: int) -> np.ndarray:
        """Integers from 0 to one less than the end."""
        return self._rng.integers(0, end, shape).astype(np.int32)

    def weight(self, *shape: int) -> np.ndarray:
        """Weights of a layer that keeps the size of its input; the last axis but one is summed over."""
        return self(*shape, scale=shape[-2] ** -0.5)

    def definite(self, n: int) -> np.ndarray:
        """A well-conditioned symmetric matrix without zero or negative eigenvalues."""
        root = self._rng.standard_normal((n, n))
        return (root @ root.T / n + np.eye(n)).astype(np.float32)

    def stochastic(self, *shape: int) -> np.ndarray:
        """Positive numbers whose last axis adds up to 1."""
        x = self._rng.uniform(0.1, 1.0, shape)
        return (x / x.sum(-1, keepdims=True)).astype(np.float32)

    def flags(self, share: float, *shape: int) -> np.ndarray:
        """Zeros, and a share of ones."""
        return (self._rng.uniform(size=shape) < share).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A program with something to gain, or with nothing (`hand is fn`).

    Attributes:
        name: what it computes.
        source: where the idea comes from: an identity's name or a citation.
        draw: makes both forms with their arguments.
        frozen: positions of arguments that do not change between calls (weights).
        cancellation: whether the best form is equal over the reals, and loses digits where terms cancel, or has no
            value where a divisor of its own is zero.
    """

    name: str
    source: str
    draw: Callable[[SnippetDraw], TwoForms]
    frozen: tuple[int, ...]
    cancellation: bool

    def forms(self, seed: int) -> TwoForms:
        """Both forms, with arguments of a seed."""
        return self.draw(SnippetDraw(seed))


def snippet(
    source: str, *, frozen: tuple[int, ...] = (), cancellation: bool = False
) -> Callable[[Callable[[SnippetDraw], TwoForms]], Snippet]:
    """Make a snippet of a function that draws its forms; the snippet has the function's name."""

    def made(draw: Callable[[SnippetDraw], TwoForms]) -> Snippet:
        return Snippet(draw.__name__, source, draw, frozen, cancellation)

    return made
