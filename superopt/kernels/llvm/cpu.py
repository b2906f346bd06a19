"""Target processors: vector width, registers, instructions and caches that generated code may use.

`host()` is this machine.  Code is generated for AVX-512 or for AVX2 with FMA; with neither (or on another architecture)
`supported` is false and programs run on XLA alone.  The width is never fixed elsewhere: `lanes` gives it by dtype.
`restricted(cpu, 256)` is the same processor without AVX-512, to generate and to test AVX2 code on a wider machine.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from superopt.ir.types import ITEMSIZE_BYTES
from superopt.machine.facts import Machine, describe, own
from superopt.machine.rates import NOMINAL, Rates

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX2 = ("avx2", "fma", "f16c")
_WIDE = ("avx512", "avx10", "amx", "vaes", "vpclmulqdq", "evex512")  # prefixes of features with AVX-512 or tiles


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor as a target of code.

    Attributes:
        name: LLVM's name of the processor, decides scheduling.
        features: LLVM's feature flags, `+avx2` or `-avx512f`.
        vector_bits: width of a vector register; 0 when no code is generated.
        registers: number of vector registers.
        vnni: whether 8-bit dot products into 32 bits (`vpdpbusd`) exist at `vector_bits`.
        bf16: whether bfloat16 dot products and conversions exist at `vector_bits`.
        l1, l2, l3: bytes of the data caches of a core; 0 when unknown.
        rates: its speed, by which schedules are estimated; code does not depend on it.
    """

    name: str
    features: tuple[str, ...]
    vector_bits: int
    registers: int
    vnni: bool
    bf16: bool
    l1: int
    l2: int
    l3: int
    rates: Rates = NOMINAL

    def lanes(self, dtype: str) -> int:
        """Elements in a vector register while computing: 16-bit floats are computed as float32, bool holds bytes."""
        size = 4 if dtype in ("bfloat16", "float16") else ITEMSIZE_BYTES[dtype]
        return max(self.vector_bits // (8 * size), 1)

    @property
    def avx512(self) -> bool:
        """Whether vectors are 512 bits wide, with masks."""
        return self.vector_bits == 512


def host() -> Cpu:
    """Return the processor of this machine, or the one that `machine.facts.taken` substitutes for it."""
    return _cpu(describe())


@functools.cache
def _cpu(facts: Machine) -> Cpu:
    """Return the processor that facts describe; one of another architecture has no registers."""
    if not facts.system.endswith(("x86_64", "AMD64")):
        return Cpu(facts.system, (), 0, 0, vnni=False, bf16=False, l1=0, l2=0, l3=0)
    name, features = facts.cpu, [f"+{f.replace('_', '')}" for f in facts.features]
    if facts in (own(), without_avx512(own())):
        import llvmlite.binding as llvm  # late: loads LLVM

        name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten().split(",")
    caches = dict(facts.caches_bytes)
    cpu = Cpu(
        name=name,
        features=tuple(features),
        vector_bits=0,
        registers=16,
        vnni=False,
        bf16=False,
        l1=caches.get("L1", 32 << 10),
        l2=caches.get("L2", 512 << 10),
        l3=caches.get("L3", 0),
    )
    return restricted(cpu, 256) if facts == without_avx512(own()) else cpu_of(cpu)


def without_avx512(facts: Machine) -> Machine:
    """Return the machine without the vector extensions that are wider than AVX2."""
    return replace(facts, features=tuple(f for f in facts.features if not f.startswith(_WIDE)))


def cpu_of(cpu: Cpu) -> Cpu:
    """Return the processor with the widest vectors that its features allow."""
    wide = _with_width(cpu, 512)
    return wide if wide.vector_bits == 512 else restricted(cpu, 256)  # half of AVX-512 is not used


def restricted(cpu: Cpu, vector_bits: int) -> Cpu:
    """Return the processor with vectors of at most so many bits: 512 changes nothing, 256 leaves AVX2, 0 nothing."""
    features = cpu.features
    if vector_bits < 512:
        features = (*[f for f in features if not f[1:].startswith(_WIDE)], "-avx512f")
    return _with_width(replace(cpu, features=features), vector_bits)


def supported(cpu: Cpu | None = None) -> bool:
    """Whether kernels are generated for this processor; otherwise programs run on XLA alone."""
    return (cpu or host()).vector_bits > 0


def _with_width(cpu: Cpu, at_most: int) -> Cpu:
    has = {f[1:] for f in cpu.features if f.startswith("+")} - {f[1:] for f in cpu.features if f.startswith("-")}
    if at_most >= 512 and has.issuperset((*_AVX512, *_AVX2)):
        bits, vnni, bf16 = 512, "avx512vnni" in has, "avx512bf16" in has
    elif at_most >= 256 and has.issuperset(_AVX2):
        bits, vnni, bf16 = 256, "avxvnni" in has, False
    else:
        bits, vnni, bf16 = 0, False, False
    return replace(cpu, vector_bits=bits, registers=32 if bits == 512 else 16, vnni=vnni, bf16=bf16)
