"""Movement: slices, concatenations, pads, reversals, gathers, dynamic slices."""

RULES = """
slice-concat-unconditional: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  slice(A, n(s, e))

split-at-half: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  A
  if s == 0, e == (n + n2) // 2

pad-pad-negative: A[*a *n]  V[]
  pad(pad(A, V, n(l, h)), V, n(p, q))  ==  pad(A, V, n(l + p, h + q))

rev-of-concat: A[*a n]  B[*a n2]
  rev(concat(A, B, n), n)  ==  concat(rev(A, n), rev(B, n), n)

slice-slice-strides: A[*a *n]
  slice(slice(A, n(s, e, t)), n(x, y, z))  ==  slice(A, n(s + x, min(e, s + y), t * z))
  if x < y

take-other-rows: T[v *k]  I[*b]  J[*b]
  take(T, I, v) + take(T, J, v)  ==  take(T, I, v) * 2

select-swapped: P[*a]  A[*a]  B[*a]
  where(invert(P), A, B)  ==  where(P, A, B)

dynamic-slice-twice: A[*a *n]
  dynslice(dynslice(A, n(i, m)), n(j, p))  ==  dynslice(A, n(i + j, p))
  mode proof
  source XLA #49121: the outer start is clipped, the sum of both is not

dynamic-slice-as-slice: A[*a *n]
  dynslice(A, n(s, m))  ==  slice(A, n(s, s + m))
  if s >= 0
  mode proof

dynamic-update-as-pad: V[]  B[*a *n2]  extra *n
  dynupdate(bcast(V, a, n), B, n(i))  ==  pad(B, V, n(i, n - n2 - i))
  if i >= 0
  mode proof

halves: A[*a n]
  concat(slice(A, n(0, h)), slice(A, n(h, e)), n)  ==  A
  if h == n // 2, e == h * 2

reversed-slice: A[*a *n]
  slice(rev(A, n), n(s, e))  ==  rev(slice(A, n(s, e)), n)

concat-swapped: A[*a n]  B[*a n2]
  concat(A, B, n)  ==  concat(B, A, n)
"""
