"""Sums by segments: a linear map of all rows is one of the sums, and is applied where fewer elements are left."""

RULES = """
product-with-one-hot-columns: I[b]  X[b *d]  extra n
  dot(where(eq(I, iota(n)), 1, 0), X, b)  ==  segsum(X, I, n)

sizes-of-segments: I[b]  S[]  extra n
  sum(where(eq(I, iota(n)), S, 0), b)  ==  segsum(bcast(S, b), I, n)

segments-of-product: U[*b *d *k]  I[*b]  W[*d *k *m]  extra n
  segsum(dot(U, W, k), I, n)  ==  dot(segsum(U, I, n), W, k)
  prefer n < prod(b)

product-of-segments: U[*b *d *k]  I[*b]  W[*d *k *m]  extra n
  dot(segsum(U, I, n), W, k)  ==  segsum(dot(U, W, k), I, n)
  prefer prod(b) < n or prod(m) < prod(k)

segments-of-bias: U[*b *d *p]  C[*d]  I[*b]  extra n
  segsum(U + C, I, n)  ==  segsum(U, I, n) + C * segsum(bcast(1, b), I, n)
  prefer n < prod(b)

segments-of-scale: U[*b *d *p]  S[*d]  I[*b]  extra n
  segsum(U * S, I, n)  ==  segsum(U, I, n) * S
  prefer n < prod(b)

sum-of-segments: U[*b *d *m]  I[*b]  extra n
  sum(segsum(U, I, n), m)  ==  segsum(sum(U, m), I, n)
  prefer prod(m) > 1
"""
