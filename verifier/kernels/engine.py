"""Products of matrices over the field, as machine code of our own that starts no threads."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from superopt.ir.scalar import Array
from verifier.floats.machine import binding, compiled
from verifier.kernels.field import P

_U = np.uint64
_LANES = 32  # lanes of a row of results at once: enough registers to hide the latency of a product
_MATMUL = f"""
define void @matmul(ptr %a, ptr %b, ptr %c, i64 %count, i64 %m, i64 %k, i64 %n) #0 {{
  br label %row
row:
  %t = phi i64 [ 0, %0 ], [ %t.next, %done ]
  %i = urem i64 %t, %m
  %j = udiv i64 %t, %m
  %x.row = mul i64 %i, %k
  br label %step
step:
  %l = phi i64 [ 0, %row ], [ %l.next, %step ]
  %sum = phi <$N x i64> [ zeroinitializer, %row ], [ %sum.next, %step ]
  %x.at = add i64 %x.row, %l
  %x.from = getelementptr i64, ptr %a, i64 %x.at
  %x = load i64, ptr %x.from
  %x.first = insertelement <$N x i64> poison, i64 %x, i64 0
  %xs = shufflevector <$N x i64> %x.first, <$N x i64> poison, <$N x i32> zeroinitializer
  %y.row = mul i64 %l, %n
  %y.at = add i64 %y.row, %j
  %y.from = getelementptr <$N x i64>, ptr %b, i64 %y.at
  %ys = load <$N x i64>, ptr %y.from, align 8
  %product = mul <$N x i64> %xs, %ys
  %more = add <$N x i64> %sum, %product
  %low = and <$N x i64> %more, splat (i64 {P})
  %high = lshr <$N x i64> %more, splat (i64 31)
  %sum.next = add <$N x i64> %low, %high
  %l.next = add i64 %l, 1
  %l.more = icmp slt i64 %l.next, %k
  br i1 %l.more, label %step, label %done
done:
  %z.row = mul i64 %i, %n
  %z.at = add i64 %z.row, %j
  %z.to = getelementptr <$N x i64>, ptr %c, i64 %z.at
  store <$N x i64> %sum.next, ptr %z.to, align 8
  %t.next = add i64 %t, 1
  %t.more = icmp slt i64 %t.next, %count
  br i1 %t.more, label %row, label %end
end:
  ret void
}}
""".replace("$N", str(_LANES))  # rows of %n vectors; a sum is less than 2^34 after each step


def matmul(a: Array, b: Array) -> Array:
    """Products of matrices of elements below P; leading axes are batch axes."""
    if a.shape[-2] > b.shape[-1]:  # vectors lie along the longer side
        return matmul(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    (m, k), n, batch = a.shape[-2:], b.shape[-1], a.shape[:-2]
    width = -(-n // _LANES) * _LANES
    left, right = np.ascontiguousarray(a, _U), np.zeros((*batch, k, width), _U)
    right[..., :n] = b
    out = np.zeros((*batch, m, width), _U)
    for at in np.ndindex(*batch) if m * k * n else ():
        args = left[at].ctypes.data, right[at].ctypes.data, out[at].ctypes.data
        _made()[1](*args, m * width // _LANES, m, k, width // _LANES)
    return out[..., :n] % _U(P)


@functools.cache
def _made() -> tuple[Any, Any]:
    """The compiled engine of `matmul`, and its function."""
    llvm = binding()
    cpu = f'"target-cpu"="{llvm.get_host_cpu_name()}" "target-features"="{llvm.get_host_cpu_features().flatten()}"'
    engine = compiled(f"{_MATMUL}attributes #0 = {{ {cpu} }}\n")
    words = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4
    return engine, ctypes.CFUNCTYPE(None, *words)(engine.get_function_address("matmul"))
