"""Pads: nothing to pad, no interior, of broadcasts, negative."""

RULES = """
pad-by-nothing: A[*a *n]  V[]
  pad(A, V, n(0, 0, 0))  ==  A
  source XLA pad/1: Pad(A, val, 0_0_0) => A

pad-without-interior: A[*a *n]  V[]
  pad(A, V, n(l, h, i))  ==  pad(A, V, n(l, h))
  if n <= 1
  source XLA pad/2: Pad(A, val, low_int_high) => Pad(A, val, low_0_high) of axes of length one at most

pad-of-broadcast: A[*a *n]  V[]  extra *u *p
  pad(bcast(A, u, p), V, n(l, h, i), p(x, y, z))  ==  bcast(pad(bcast(A, p), V, n(l, h, i), p(x, y, z)), u)
  source XLA pad/3: Pad(Broadcast(A), v, low_0_0) => Broadcast(Pad(Broadcast(A), v))

negative-pad-is-slice: A[*a *n]  V[]
  pad(A, V, n(l, h, i))
    == slice(pad(A, V, n(max(l, 0), max(h, 0), i)),
             n(max(0 - l, 0), max(l, 0) + max(h, 0) + max(0, n + (n - 1) * i) - max(0 - h, 0)))
  source XLA pad/4: Pad(A, val, negative_negative) => Slice(Pad(A, val, 0_0), abs(negative), negative + size)
"""
