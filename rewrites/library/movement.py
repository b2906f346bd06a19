"""Data movement that normal forms leave: slices, concats, pads and gathers against arithmetic."""

RULES = """
pad-pad: A[*a *n]  V[]
  pad(pad(A, V, n(l, h)), V, n(p, q))  ==  pad(A, V, n(l + p, h + q))
  if l >= 0, h >= 0

ew1-concat: f/1  A[*a n]  B[*a n2]
  f(concat(A, B, n))  ==  concat(f(A), f(B), n)

ew2-concat: f/2  A[*a n]  B[*a n2]  C[*a n]  D[*a n2]
  f(concat(A, B, n), concat(C, D, n))  ==  concat(f(A, C), f(B, D), n)

ew2-concat-scalar: f/2  A[*a n]  B[*a n2]  V[]
  f(concat(A, B, n), V)  ==  concat(f(A, V), f(B, V), n)
  mode near

ew1-slice: f/1  A[*a *n]
  f(slice(A, n(s, e, t)))  ==  slice(f(A), n(s, e, t))
  mode near

ew2-slice: f/2  A[*a *n]  B[*a *n]
  f(slice(A, n(s, e, t)), slice(B, n(s, e, t)))  ==  slice(f(A, B), n(s, e, t))
  mode near

entry-of-function: f/1  A[*a *n]
  slice(f(A), n(s, e))  ==  f(slice(A, n(s, e)))
  prefer e == s + 1

entry-of-functions: f/2  A[*a *n]  B[*a *n]
  slice(f(A, B), n(s, e))  ==  f(slice(A, n(s, e)), slice(B, n(s, e)))
  prefer e == s + 1

ew1-view: f/1  A[*a]
  f(view(A))  ==  view(f(A))

rev-concat: A[*a n]  B[*a n2]
  rev(concat(A, B, n), n)  ==  concat(rev(B, n), rev(A, n), n)
  mode near
"""
