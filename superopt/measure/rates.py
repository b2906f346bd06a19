"""Rates of this processor (`superopt.machine.rates`): measured once, by code of our own, and kept beside its kernels.

The least of several looks counts, which is free of pauses.  The clock comes from a chain of integer products, each of
which takes three cycles on all processors that we write code for.  Bandwidths come from loads of arrays that fit half
of a cache, or no cache.  Ticks and the costs of calls and threads stay nominal.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from superopt.files.seals import sealed, unsealed
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import Cpu, host, supported
from superopt.kernels.llvm.module import Function, Module
from superopt.kernels.llvm.types import splat, vector
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Phase, build
from superopt.machine.facts import fingerprint, own
from superopt.machine.rates import NOMINAL, Rates
from superopt.measure import loop
from superopt.measure.loop import Thunk

_STEPS, _CHAINS = 4096, 24  # sums of four cycles in two units wait for nothing from 8 on; 98,304 take 16 us or more
_PRODUCTS = 1 << 16  # enough that the call itself does not count
_PRODUCT = 3  # cycles of a product of two integers of 64 bits
_LOOKS = 40  # two milliseconds: the least of them is free of pauses
_STREAMS = 8  # vectors loaded in a step
_LEAST_READ = 8 << 20  # bytes of a look at a cache
_MOST_READ = 256 << 20  # bytes of an array that is to fit no cache


def this_cpu() -> Cpu:
    """Return the processor of this machine at its measured rates."""
    return replace(host(), rates=measured())


@functools.cache
def measured() -> Rates:
    """Return the rates of this processor as kept, else measured now and kept; nominal ones where we write no code."""
    if not supported():
        return NOMINAL
    return _kept(_path()) or measure_again()


def measure_again() -> Rates:
    """Measure the rates of this processor, and keep them for all processes."""
    measured.cache_clear()
    rates = now()
    path = _path()
    jit.write_beside(path, sealed(path, json.dumps(asdict(rates)).encode()))
    return rates


def _path() -> Path:
    return jit.cache_folder() / f"{fingerprint(own())}.rates"


def _kept(path: Path) -> Rates | None:
    """Return the rates of a sealed file; None where there is none, or not all are positive numbers."""
    content = unsealed(path)
    if content is None:
        return None
    try:
        rates = Rates(**{name: float(x) for name, x in json.loads(content).items()})
    except (ValueError, TypeError, AttributeError):  # of another version
        return None
    return rates if all(0 < getattr(rates, f.name) < math.inf for f in fields(Rates)) else None


def now() -> Rates:
    """Measure the rates at which this processor runs code for `host()`, and keep nothing."""
    caches = dict(own().caches_bytes)
    l2, last = caches.get("L2", 512 << 10), max(caches.values(), default=8 << 20)
    hertz = _PRODUCT * _PRODUCTS / _least_s(_products())
    sizes = {"from_l2": l2 // 2, "from_l3": max(2 * l2, last // 4), "from_memory": min(2 * last, _MOST_READ)}
    return replace(
        NOMINAL, hertz=hertz, fma_s=_least_s(peak_call()[0]) / peak_fmas(),
        **{name: _bytes_per_s(size) / hertz for name, size in sizes.items()},
    )  # fmt: skip


def _least_s(call: Thunk, looks: int = _LOOKS) -> float:
    call()
    return min(loop.seconds_of(call, 2) for _ in range(looks))


def peak_fmas() -> int:
    """Return the number of vector multiply-adds in a call of `peak_call`."""
    return _STEPS * _chains()


def _chains() -> int:
    return min(_CHAINS, host().registers - 2)  # with x, none spills


def peak_call() -> tuple[Thunk, float]:
    """Return a call of independent multiply-adds in registers, and its number of floating-point operations."""
    lanes, chains = host().lanes("float32"), _chains()
    kind = vector("float", lanes)
    module, f, out = _function("peak")
    x = f.load(kind, out, 4)

    def body(_: Any, sums: Sequence[Any]) -> list[Any]:
        return [f.fma(s, x, x, kind) for s in sums]

    sums = f.for_(0, _STEPS, 1, body, [(kind, x)] * chains)
    _add_up(f, sums, kind, out)
    return _bound(module, (lanes,)), 2.0 * _STEPS * chains * lanes


def _products() -> Thunk:
    """Return a call of dependent integer products."""
    module, f, out = _function("products")
    x = f.load("i64", out)
    (last,) = f.for_(0, _PRODUCTS, 1, lambda _, value: [f.mul(value[0], x)], [("i64", x)])
    f.store("i64", last, out)
    f.ret()
    return _bound(module, (16,))


def _bytes_per_s(size: int) -> float:
    """Measure the bytes a second that one thread loads from an array of so many bytes, again and again."""
    lanes = host().lanes("float32")
    kind, step = vector("float", lanes), _STREAMS * lanes
    elements = size // 4 // step * step
    passes = max(1, _LEAST_READ // size)
    module, f, out = _function("read")

    def load(at: Any, sums: Sequence[Any]) -> list[Any]:
        places = [f.element(out, f.add(at, k * lanes)) for k in range(_STREAMS)]
        return [f.fop("add", s, f.load(kind, p), kind) for s, p in zip(sums, places, strict=True)]

    def once(_: Any, sums: Sequence[Any]) -> list[Any]:
        return f.for_(0, elements, step, load, [(kind, s) for s in sums])

    sums = f.for_(0, passes, 1, once, [(kind, splat(0.0, "float32", lanes))] * _STREAMS)
    _add_up(f, sums, kind, out)
    looks = max(3, min(_LOOKS, _MOST_READ // (2 * passes * size)))
    return passes * elements * 4 / _least_s(_bound(module, (elements,)), looks)


def _function(name: str) -> tuple[Module, Function, str]:
    """Begin a module with one function of one buffer; return both and the buffer's address."""
    module = Module()
    f = module.function(name, [("ptr", "bufs"), ("i64", "t")])
    return module, f, f.load("ptr", "%bufs")


def _add_up(f: Function, sums: Sequence[Any], kind: str, out: str) -> None:
    total = sums[0]
    for s in sums[1:]:
        total = f.fop("add", total, s, kind)
    f.store(kind, total, out, 4)
    f.ret()


def _bound(module: Module, shape: tuple[int, ...]) -> Thunk:
    """Return a call of a module's one function on a buffer of zeros."""
    (name,) = module.functions
    code = Code(module, (Phase(name, 1),), (Buffer("out", shape, "float32", "output"),), name)
    return build(code, pipeline="none").bind({})
