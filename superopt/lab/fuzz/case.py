"""One program of the fuzzer as plain data: lines of code, types, and how it is optimised.

A line defines one value.  So a program is run by `exec`, printed as a function, and made smaller line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

MODES = ("deterministic", "exact", "save", "recall", "kernels", "jit")


@dataclass(frozen=True, slots=True)
class FuzzValue:
    """A value of a program: its name, type and code; `loose` where rounding may flip an element."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    code: str = ""
    loose: bool = False


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """A program.

    Attributes:
        seed: seed of its arrays.
        inputs, lines: its values in order.
        outputs: names of what it returns.
        frozen: positions of inputs that do not change.
        mode: how it is optimised, one of `MODES`.
        kind: `jax` or `onnx`.
        model: the serialised model as base64, of an ONNX program.
    """

    seed: int
    inputs: tuple[FuzzValue, ...]
    lines: tuple[FuzzValue, ...]
    outputs: tuple[str, ...]
    frozen: tuple[int, ...] = ()
    mode: str = "deterministic"
    kind: str = "jax"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def source(self) -> str:
        """The program as Python text that defines `f`."""
        names = ", ".join(x.name for x in self.inputs)
        body = [f"    {x.name} = {x.code}" for x in self.lines]
        results = ", ".join(self.outputs)
        return "\n".join([f"def f({names}):", *body, f"    return ({results},)", ""])

    def arrays(self, draw: int = 0) -> list[np.ndarray]:
        """Arguments: normal floats, integers that are small or extremes of their type."""
        rng = np.random.default_rng((self.seed, draw))
        return [array(rng, x.shape, x.dtype) for x in self.inputs]

    def __str__(self) -> str:
        made = [f"    {x.name}: {x.dtype}{list(x.shape)}" for x in self.inputs]
        how = f"mode {self.mode}, frozen {list(self.frozen)}, arrays of seed {self.seed}"
        return "\n".join([self.source.rstrip(), f"# {how}", *(f"#{line}" for line in made)])


def from_dict(data: dict[str, Any]) -> FuzzCase:
    """The program that `as_dict` wrote."""
    values = {k: tuple(_value(x) for x in data[k]) for k in ("inputs", "lines")}
    rest = {k: tuple(data[k]) for k in ("outputs", "frozen")}
    return FuzzCase(**{**data, **values, **rest})


def _value(data: dict[str, Any]) -> FuzzValue:
    return FuzzValue(**{**data, "shape": tuple(data["shape"])})


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A random array of a type."""
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        small = rng.integers(0 if info.min == 0 else -4, 9, shape)
        ends = rng.choice(np.array([info.min, info.max, info.max - 1], np.int64), shape)
        return np.where(rng.random(shape) < 0.15, ends, small).astype(dtype)

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(kind)


def used(case: FuzzCase) -> FuzzCase:
    """The program without lines whose value nothing reads."""
    needed = set(case.outputs)
    kept: list[FuzzValue] = []
    for line in reversed(case.lines):
        if line.name in needed:
            kept.append(line)
            needed |= set(re.findall(r"\b[xv]\d+\b", line.code))
    return replace(case, lines=tuple(reversed(kept)))


def smaller(case: FuzzCase) -> Iterator[FuzzCase]:
    """Programs with an output, a line or a way of optimising less, the largest steps first."""
    if len(case.outputs) > 1:
        for name in dict.fromkeys(case.outputs):
            yield used(replace(case, outputs=(name,)))
    if case.frozen:
        yield replace(case, frozen=())
    if case.mode != "deterministic":
        yield replace(case, mode="deterministic")
    for i in reversed(range(len(case.lines))):
        line = case.lines[i]
        earlier = (*case.inputs, *case.lines[:i])
        alike = [x.name for x in earlier if (x.shape, x.dtype) == (line.shape, line.dtype)]
        codes = [*alike[:2], f"jnp.ones({line.shape}, {line.dtype!r})"]
        for code in codes:
            if code != line.code:
                changed = replace(line, code=code)
                yield used(replace(case, lines=(*case.lines[:i], changed, *case.lines[i + 1 :])))
