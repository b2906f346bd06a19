"""Code of scalar functions, verified by comparison with float64 at all 2^32 floats, and recorded by digest.

Kernels compute transcendental functions of float32 by instructions between two comments.  `reader.canonical` reduces
these to their lane-by-lane form, with the text of functions that they call, which differs for each number of lanes.
`scalars.json` holds the digests of the code that was compared, with the greatest error that was found.
`python -m verifier.kernels.scalars NAME ...` compares functions anew and writes the file, in some minutes for each.
Denormals are not flushed in this comparison.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from superopt.ir.scalar import SCALARS
from superopt.kernels.emit.registers import splatted
from superopt.kernels.llvm.cpu import host
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import vector
from superopt.kernels.math import table
from verifier.kernels.engine import compiled
from verifier.kernels.reader import digest, texts

FILE = Path(__file__).with_name("scalars.json")
LANES = (16, 8, 4, 2, 0)  # numbers of lanes in kernels; 0: a scalar
BLOCK = 1 << 20  # floats at once: their float64 values fit a second-level cache
NAMES = (*[name for name in table.ERROR_ULPS if name not in ("pow", "atan2", "sqrt", "rsqrt")], "pow(x, 0.75)")
"""Functions of one float that are compared; each within its bound of `table.ERROR_ULPS`."""


@functools.cache
def known() -> dict[str, str]:
    """Digest of code -> the function that it computes."""
    return {digest: entry["name"] for digest, entry in json.loads(FILE.read_text()).items()}


def compare(name: str, first: int = 0, count: int = 1 << 32) -> dict[str, float]:
    """Compare the code of a function, for each number of lanes in `LANES`, on floats given by their bits.

    Args:
        name: a function in `NAMES`.
        first: bits of the first float, a multiple of `BLOCK`.
        count: number of floats, a multiple of `BLOCK`.

    Returns:
        For each digest of code the greatest error in units of the last place; infinite where only one of code and
        reference is NaN or infinite.
    """
    name, operands = _split(name)
    made = dict(_written(name, operands, lanes) for lanes in reversed(LANES))
    worst, out = dict.fromkeys(made, 0.0), np.empty(BLOCK, np.float32)
    with ExitStack() as stack:
        engines = {code: stack.enter_context(compiled(text)) for code, text in made.items()}
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
        for start in range(first, first + count, BLOCK):
            with np.errstate(all="ignore"):
                x = np.arange(start, start + BLOCK, dtype=np.uint32).view(np.float32).astype(np.float64)
                exact = SCALARS[name].numpy(*[x if c is None else c for c in operands])
            error, last = 0.0, np.empty(0, np.int32)
            for code, engine in engines.items():
                signature(engine.get_function_address("all"))(out.ctypes.data, start)
                if not np.array_equal(out.view(np.int32), last):  # most codes give the results of the one before
                    error, last = _error(exact, out), out.view(np.int32).copy()
                worst[code] = max(worst[code], error)
    return worst


def _written(name: str, operands: Sequence[float | None], lanes: int) -> tuple[str, str]:
    """The digest of the code of a function, and a module that applies it to a block of floats."""
    module = Module(host())
    f = module.function("all", [("ptr", "to"), ("i32", "first")], internal=False)
    ints, floats = vector("i32", lanes), vector("float", lanes)
    inside: list[tuple[list[str], list[str], str]] = []

    def body(at: Any, _: list[Any]) -> None:
        bits = f.broadcast(f.value(f"add i32 {f.value(f'trunc i64 {at} to i32')}, %first"), "i32", lanes)
        if lanes:
            bits = f.value(f"add {ints} {bits}, <{', '.join([f'i32 {j}' for j in range(lanes)])}>")
        x = f.value(f"bitcast {ints} {bits} to {floats}")
        begin = len(f.lines)
        args = [x if c is None else splatted(c, "float32", lanes) for c in operands]
        y = table.apply(f, name, "float32", tuple(args), lanes)
        inside.append(([str(line).strip() for line in f.lines[begin:]], args, y))
        f.store(floats, y, f.element("%to", at))

    f.for_(0, BLOCK, max(lanes, 1), body)
    f.ret()
    return digest(*inside[0], texts(module.text())), module.text()


def _split(name: str) -> tuple[str, list[float | None]]:
    """A function and its operands, None for the one that is not a constant."""
    name, _, operands = name.rstrip(")").partition("(")
    return name, [None if c == "x" else float(c) for c in operands.split(", ")] if operands else [None]


def _error(exact: Any, y: Any) -> float:
    """The greatest error of a block in units of the last place; 0.5 where all results are the nearest floats."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        other = np.flatnonzero(near.view(np.int32) != y.view(np.int32))  # few elements: the rest is for these alone
        exact, near, y = exact[other], near[other], y[other]
        if (np.isnan(near) != np.isnan(y)).any():
            return float("inf")
        unit = np.spacing(np.minimum(np.abs(near), np.finfo(np.float32).max)).astype(np.float64)
        apart = np.abs(y.astype(np.float64) - exact) / unit
        return float(np.where((near == y) | np.isnan(near), 0.5, apart).max(initial=0.5))


def main(names: Sequence[str]) -> None:
    """Compare functions and write the digests of those within their error bounds to `scalars.json`."""
    kept: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or NAMES:
        bound, _ = table.ERROR_ULPS[_split(name)[0]]
        for code, worst in compare(name).items():
            print(f"{name}: {code}, {worst:.3g} units of the last place, at most {bound}", flush=True)
            if worst <= bound:
                kept[code] = {"name": name, "cpu": host().name, "ulps": round(worst, 3)}
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
