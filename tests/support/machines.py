"""Machines that are the same wherever tests run: what depends on cores, caches and vectors; no code runs for them."""

from superopt.kernels.llvm.cpu import host
from superopt.machine.facts import Machine, taken

_CACHES = (("L1", 32 << 10), ("L2", 1 << 20), ("L3", 32 << 20))
_AVX512 = ("avx2", "avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma")
FOUR_CORES = Machine("test", (), 4, 1 << 34, _CACHES, "Linux-x86_64")
AVX512 = Machine("znver4", _AVX512, 4, 1 << 34, _CACHES, "Linux-x86_64")
AVX2 = Machine(
    "znver3", ("avx2", "f16c", "fma"), 4, 1 << 34, (("L1", 32 << 10), ("L2", 1 << 19), ("L3", 32 << 20)), "Linux-x86_64"
)
with taken(AVX512):
    WIDE = host()
