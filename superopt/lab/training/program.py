"""Training programs: JAX functions whose weights are created by name on first use.

A family describes one program as `fn(weights, *inputs)`, where `weights(shape)` is the next weight.  Describing runs
the function once on abstract inputs and records the requested weights.  Afterwards the weights are an argument
(frozen), returned in the same order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph

Spec = jax.ShapeDtypeStruct


@dataclass(frozen=True, slots=True)
class Described:
    """One program as its family describes it: `fn(weights, *inputs)` and the types of the inputs."""

    fn: Callable[..., Any]
    inputs: tuple[Spec, ...]


Maker = Callable[[random.Random], Described]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingProgram:
    """A program with weights.

    Attributes:
        name: family/variant.
        fn: function of a tuple of weights and the inputs.
    """

    name: str
    family: str
    fn: Callable[..., Any]
    weights: tuple[np.ndarray, ...]
    inputs: tuple[Spec, ...]

    def graph(self) -> Graph:
        """The program as a graph, its weights frozen."""
        return import_function(self.fn, (self.weights, *self.inputs), frozen=0).graph


class Recorder:
    """Makes weights: normal ones scaled by their fan-in, or uniform positive ones."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.made: list[np.ndarray] = []

    def __call__(self, *shape: int) -> Any:
        """A weight whose last axis is the fan-out (kernels of convolutions: the first)."""
        fan_in = math.prod(shape[:-1]) if len(shape) < 4 else math.prod(shape[1:])
        scale = np.float32(1.0 / math.sqrt(max(1, fan_in)))
        return self._keep(self.rng.standard_normal(shape, dtype=np.float32) * scale)

    def positive(self, *shape: int) -> Any:
        """A weight between one half and three halves."""
        return self._keep(self.rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def _keep(self, value: np.ndarray) -> Any:
        self.made.append(value)
        return jax.numpy.asarray(value)


class WeightReader:
    """Hands out given weights in order."""

    def __init__(self, weights: Sequence[Any]) -> None:
        self._left = iter(weights)

    def __call__(self, *shape: int) -> Any:
        """The next weight."""
        return next(self._left)

    positive = __call__


WeightSource = Recorder | WeightReader


def spec(*shape: int, dtype: str = "float32") -> Spec:
    """Type of an input."""
    return Spec(shape, np.dtype(dtype))


class Leaning(random.Random):
    """A random source that takes the larger of two choices: sizes of whole networks, not of blocks."""

    def choice(self, seq: Any) -> Any:
        """The larger of two elements drawn from the sequence."""
        first, second = super().choice(seq), super().choice(seq)
        return max(first, second) if isinstance(first, int) and isinstance(second, int) else first


def describe(family: str, number: int, maker: Maker, *, large: bool = False) -> TrainingProgram:
    """Variant `number` of a family."""
    name = f"{family}/{number}"
    rng = Leaning(name) if large else random.Random(name)
    described = maker(rng)
    recorder = Recorder(rng.randrange(1 << 30))
    jax.eval_shape(lambda *xs: described.fn(recorder, *xs), *described.inputs)

    def fn(weights: Sequence[Any], *inputs: Any) -> Any:
        return described.fn(WeightReader(weights), *inputs)

    return TrainingProgram(name, family, fn, tuple(recorder.made), described.inputs)
