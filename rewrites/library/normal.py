"""The laws behind the normal forms of the e-graph, as far as the language can say them.

Growth does not apply these rules: the constructors of the e-graph do (`rewrites.egraph.normal`).  They are here to be
proved.
"""

RULES = """
add-zero: A[*a]
  A + 0  ==  A

sub-zero: A[*a]
  A - 0  ==  A

mul-one: A[*a]
  A * 1  ==  A

div-one: A[*a]
  A / 1  ==  A

neg-neg: A[*a]
  -(-A)  ==  A

max-least: A[*a]
  maximum(A, -inf)  ==  A

min-greatest: A[*a]
  minimum(A, inf)  ==  A

power-one: A[*a]
  A ** 1  ==  A

power-two: A[*a]
  A ** 2  ==  square(A)

bcast-bcast: A[*a]  extra *n  extra *m
  bcast(bcast(A, n), m)  ==  bcast(A, n, m)

ew1-bcast: f/1  A[*a]  extra *n
  f(bcast(A, n))  ==  bcast(f(A), n)

ew2-bcast: f/2  A[*a]  B[*a]  extra *n
  f(bcast(A, n), bcast(B, n))  ==  bcast(f(A, B), n)

where-bcast: P[*a]  A[*a]  B[*a]  extra *n
  where(bcast(P, n), bcast(A, n), bcast(B, n))  ==  bcast(where(P, A, B), n)

bcast-view: A[*a]  extra *n
  view(bcast(A, n))  ==  bcast(A, n)

view-view: A[*a]
  view(view(A))  ==  view(A)

slice-all: A[*a *n]
  slice(A, n(0, n))  ==  A

slice-slice: A[*a *n]
  slice(slice(A, n(s, e, t)), n(x, y, z))  ==  slice(A, n(s + t * x, min(e, s + t * y), t * z))
  if x < y

slice-bcast: A[*a *n]  extra *m
  slice(bcast(A, m), n(s, e, t))  ==  bcast(slice(A, n(s, e, t)), m)

slice-concat-left: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e, t))  ==  slice(A, n(s, e, t))
  if e <= n

slice-concat-right: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e, t))  ==  slice(B, n(s - n, e - n, t))
  if s >= n

slice-concat-across: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  concat(slice(A, n(s, n)), slice(B, n(0, e - n)), n)
  if s <= n, e >= n

concat-concat: A[*a n]  B[*a n2]  C[*a n3]
  concat(concat(A, B, n), C, n)  ==  concat(A, B, C, n)

concat-slices: A[*a n]
  concat(slice(A, n(s, m)), slice(A, n(m, e)), n)  ==  slice(A, n(s, e))

pad-nothing: A[*a *n]  V[]
  pad(A, V, n(0, 0))  ==  A

rev-rev: A[*a *n]
  rev(rev(A, n), n)  ==  A
"""
