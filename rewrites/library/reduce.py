"""Reductions: fused, split over concats, scales out; softmax forms."""

RULES = """
sum-sum: A[*a *k *l]
  sum(sum(A, k), l)  ==  sum(A, k, l)

max-max: A[*a *k *l]
  max(max(A, k), l)  ==  max(A, k, l)

sum-scale: A[*a *k]  S[*a]
  sum(A * S, k)  ==  sum(A, k) * S

sum-divide: A[*a *k]  S[*a]
  sum(A / S, k)  ==  sum(A, k) / S

sum-bcast: A[*a]  extra *k
  sum(bcast(A, k), k)  ==  A * count(k)

sum-concat: A[*a *k n]  B[*a *k n2]
  sum(concat(A, B, n), n, k)  ==  sum(A, n, k) + sum(B, n, k)
  mode near

sum-of-padding: A[*a *m k]
  sum(pad(A, 0, k(l, h)), k, m)  ==  sum(A, k, m)
  if l >= 0, h >= 0

max-concat: A[*a *k n]  B[*a *k n2]
  max(concat(A, B, n), n, k)  ==  maximum(max(A, n, k), max(B, n, k))
  mode near

reduce-concat: R in sum|max  A[*a *k n]  B[*a *k n2]
  R(concat(A, B, n), k)  ==  concat(R(A, k), R(B, k), n)
  mode near

product-of-exponentials: A[*b *k]
  prod(exp(A), k)  ==  exp(sum(A, k))

softmax-shift: X[*b *k]  C[*b]
  exp(X - C) / sum(exp(X - C), k)  ==  exp(X) / sum(exp(X), k)
  mode near
"""
