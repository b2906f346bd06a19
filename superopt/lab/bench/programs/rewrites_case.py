"""A case of the rewrites suite: a program as a user writes it, and hand-made rewrites of it.

A hand-made variant is an XLA:CPU expert's version: weights prepared ahead of time by `prepare`, and a function of the
prepared weights and the same inputs with the same outputs.  Where the best form depends on sizes and threads, a case
has several variants, and the fastest on this machine counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Variant(NamedTuple):
    """A rewrite by hand: `fn(prepare(params), *inputs)` equals the original."""

    fn: Callable[..., Any]
    prepare: Callable[[Any], Any] = lambda params: params


class RewriteCase(NamedTuple):
    """A program, values for it, and its hand-made variants.

    Attributes:
        fn: the original, a function of `params` (frozen) and `inputs`.
        variants: rewrites by hand, by name.
        losing: rules that amount to the hand-made rewrite, where that is a known loss: a search must decline them
            wherever the rewrite measures slower than the original.
        loss: whether the hand-made rewrite is a known loss or no gain.
    """

    fn: Callable[..., Any]
    params: Any
    inputs: tuple[np.ndarray, ...]
    variants: Mapping[str, Variant]
    losing: tuple[str, ...] = ()
    loss: bool = False


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal random numbers."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
