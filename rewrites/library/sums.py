"""Sums of products: the order of products, sums and broadcasts through factors, rows before or after a product.

The index form of a term is a sum over roles of a product of tensors.  Each rule here moves a sum or a gather past
factors that lack its roles, and is guarded by the work that it saves.  A diagonal is read as a gather of one element
from each row, and summed over as a mask.
"""

RULES = """
product-order: A[*b *c *i *m *k]  B[*b *c *j *p *k *l]  C[*b *i *j *n *l]
  dot(dot(A, B, k), C, l)  ==  dot(A, dot(B, C, l), k)
  prefer prod(k) * (prod(l) + prod(m)) < prod(m) * prod(l)
      or (live(A) or live(B)) and prod(n) * prod(k) * (prod(l) + prod(m)) < prod(m) * prod(l) * (prod(k) + prod(n))

sum-of-product: A[*b *c *m *p *k]  B[*b *c *k *n *q]
  sum(dot(A, B, k), c, m, n)  ==  dot(sum(A, m), sum(B, n), c, k)

sum-of-mul: A[*b *k *m *p]  B[*b *k *n *q]
  sum(A * B, k, m, n)  ==  dot(sum(A, m), sum(B, n), k)

sum-in-place-of-dot: A[*b *k]  B[*b *k]
  dot(A, B, k)  ==  sum(A * B, k)
  prefer prod(b) > 1 and prod(k) > 1

sum-of-bias: A[*b *p *m *k]  C[*b *k *q]
  sum(A + C, m, k)  ==  sum(A, m, k) + sum(C, k) * count(m)
  prefer prod(m) > 1 or prod(k) > 1 and prod(p) > 1

product-with-broadcast: A[*b *m *k *j]  B[*b *k *n]
  dot(A, bcast(B, j), k, j)  ==  dot(sum(A, j), B, k)
  prefer prod(j) > 1 and (prod(k) > 1 or prod(n) > 1)

product-of-broadcast: A[*b *m *k]  B[*b *k *n]  extra *j
  dot(bcast(A, j), B, k)  ==  bcast(dot(A, B, k), j)
  prefer prod(j) > 1

product-of-outer-sum: A[*b *i *m *k]  B[*b *j *m *k]  W[*b *k *n]
  dot(A + B, W, k)  ==  dot(A, W, k) + dot(B, W, k)
  prefer prod(i) > 1 and prod(j) > 1

product-of-outer-difference: A[*b *i *m *k]  B[*b *j *m *k]  W[*b *k *n]
  dot(A - B, W, k)  ==  dot(A, W, k) - dot(B, W, k)
  prefer prod(i) > 1 and prod(j) > 1

rows-after-product: T[n *d *k]  I[*b]  W[*d *k *m]
  dot(take(T, I, n), W, k)  ==  take(dot(T, W, k), I, n)
  prefer n <= prod(b)

rows-before-product: T[n *d *k]  I[*b]  W[*d *k *m]
  take(dot(T, W, k), I, n)  ==  dot(take(T, I, n), W, k)
  prefer prod(b) < n

rows-after-function: f/1  T[n *d]  I[*b]
  f(take(T, I, n))  ==  take(f(T), I, n)
  prefer n < prod(b)

rows-before-function: f/1  T[*c n *d]  I[*c *b]
  take(f(T), I, n)  ==  f(take(T, I, n))
  prefer prod(b) < n

rows-before-functions: f/2  T[*c n *d]  U[*c n *d]  I[*c *b]
  take(f(T, U), I, n)  ==  f(take(T, I, n), take(U, I, n))
  prefer prod(b) < n

rows-before-function-of-each: f/2  T[*c n *d]  U[*c *d]  I[*c *b]
  take(f(T, U), I, n)  ==  f(take(T, I, n), U)
  prefer prod(b) < n

rows-of-two-tables: T[n *d *k *p]  U[r *d *k *m]  I[*b]  J[*b]
  dot(take(T, I, n), take(U, J, r), k)  ==  take(take(dot(T, U, k), I, n), J, r)
  prefer n * r <= prod(b) and r <= n

diagonal-as-sum: A[*b i j]
  take(A, iota(i), j)  ==  sum(where(eq(iota(i), iota(j)), A, 0), j)
  if i == j

sum-as-diagonal: A[*b i j]
  sum(where(eq(iota(i), iota(j)), A, 0), j)  ==  take(A, iota(i), j)
  if i == j, i >= 1

trace-as-diagonal: A[*b i j]
  sum(where(eq(iota(i), iota(j)), A, 0), i, j)  ==  sum(take(A, iota(i), j), i)
  if i == j, i >= 1

product-with-identity: T[n *d]  extra i
  dot(where(eq(iota(i), iota(n)), 1, 0), T, n)  ==  ren(T, n, i)
  if i == n

product-with-one-hot: I[*b]  T[n *d]
  dot(where(eq(I, iota(n)), 1, 0), T, n)
    == where(logical_and(ge(I, 0), lt(I, count(n))), take(T, I, n), 0)
  if n >= 1

entry-by-one-hot: I[*b]  L[*b j]
  sum(where(eq(I, iota(j)), 1, 0) * L, j)
    == where(logical_and(ge(I, 0), lt(I, count(j))), take(L, I, j), 0)
  if j >= 1

product-with-triangle: X[j *m]  extra i
  dot(where(ge(iota(i), iota(j)), 1, 0), X, j)  ==  cumsum(ren(X, j, i), i)
  if i == j
  prefer i > 256

product-with-upper-triangle: X[j *m]  extra i
  dot(where(le(iota(i), iota(j)), 1, 0), X, j)  ==  rev(cumsum(rev(ren(X, j, i), i), i), i)
  if i == j
  prefer i > 256

product-with-masked-product: q in 32|64|128  Q[*b i *d]  K[*b j *d]  V[*b j *e]  extra o r s
  dot(where(ge(iota(i), iota(j)), dot(Q, K, d), 0), V, j)
    == merge(dot(where(ge(split(iota(i), i, o, r(q)), split(iota(j), j, o, s(q))), dot(Y, Z, d), 0), W, s)
             + dot(Y, cumsum(S, o) - S, d), o, r, i)
  with Y = split(Q, i, o, r(q))
  with Z = split(K, j, o, s(q))
  with W = split(V, j, o, s(q))
  with S = dot(Z, W, s)
  if i == j, i % q == 0
  prefer 2 * prod(d) * prod(e) < (i - q) * (prod(d) + prod(e))
  mode near
  source Hua, Dai, Liu and Le 2022

mean-of-product: A[*b *m *p *k]  B[*b *m *k]  C[*b *k *n]  S[]
  dot(A, C, k) - dot(B, C, k) / S  ==  dot(A - B / S, C, k)
  prefer prod(p) > 1

function-of-outer-selection: f/1  P[*b *i]  A[*b *j]  B[*b *j]
  f(where(P, A, B))  ==  where(P, f(A), f(B))
  prefer prod(i) > 2 and prod(j) > 1

sum-of-outer-selection: P[*b *i *k]  A[*b *j *k]  B[*b *j *k]
  sum(where(P, A, B), k)  ==  dot(where(P, 1, 0), A, k) + dot(where(P, 0, 1), B, k)
  prefer prod(i) > 1 and prod(j) > 1 and prod(k) > 1

sum-of-selected-difference: P[*b *i *k]  A[*b *j *k]  B[*b *j *k]
  sum(where(P, A, B), k)  ==  dot(where(P, 1, 0), A - B, k) + sum(B, k)
  numerics range
  prefer prod(i) > 1 and prod(j) > 1 and prod(k) > 1

square-of-outer-difference: A[*b *i *k]  B[*b *j *k]
  sum(square(A - B), k)  ==  sum(square(A), k) + sum(square(B), k) - 2 * dot(A, B, k)
  numerics range
  prefer prod(i) > 1 and prod(j) > 1

quotient-of-outer-difference: A[*b *i *k]  B[*b *j *k]  V[*b *j *k]
  sum(square(A - B) / V, k)  ==  dot(square(A), 1 / V, k) + sum(square(B) / V, k) - 2 * dot(A, B / V, k)
  numerics range
  prefer prod(i) > 1 and prod(j) > 1

sum-of-cosines-of-differences: A[*b *i *m]  B[*b *j *n]
  sum(cos(A - B), m, n)  ==  sum(cos(A), m) * sum(cos(B), n) + sum(sin(A), m) * sum(sin(B), n)
  prefer prod(i) * prod(m) > 1 and prod(j) * prod(n) > 1 and prod(m) * prod(n) > 1

sum-of-cosines-of-sums: A[*b *i *m]  B[*b *j *n]
  sum(cos(A + B), m, n)  ==  sum(cos(A), m) * sum(cos(B), n) - sum(sin(A), m) * sum(sin(B), n)
  prefer prod(i) * prod(m) > 1 and prod(j) * prod(n) > 1 and prod(m) * prod(n) > 1

sum-of-sines-of-differences: A[*b *i *m]  B[*b *j *n]
  sum(sin(A - B), m, n)  ==  sum(sin(A), m) * sum(cos(B), n) - sum(cos(A), m) * sum(sin(B), n)
  prefer prod(i) * prod(m) > 1 and prod(j) * prod(n) > 1 and prod(m) * prod(n) > 1

sum-of-sines-of-sums: A[*b *i *m]  B[*b *j *n]
  sum(sin(A + B), m, n)  ==  sum(sin(A), m) * sum(cos(B), n) + sum(cos(A), m) * sum(sin(B), n)
  prefer prod(i) * prod(m) > 1 and prod(j) * prod(n) > 1 and prod(m) * prod(n) > 1

product-with-cosines-of-differences: A[*b *i]  B[*b *n]  W[*b *n *q]
  dot(cos(A - B), W, n)  ==  cos(A) * dot(cos(B), W, n) + sin(A) * dot(sin(B), W, n)
  prefer prod(i) > 1 and prod(n) > 1

product-with-sines-of-differences: A[*b *i]  B[*b *n]  W[*b *n *q]
  dot(sin(A - B), W, n)  ==  sin(A) * dot(cos(B), W, n) - cos(A) * dot(sin(B), W, n)
  prefer prod(i) > 1 and prod(n) > 1

product-of-weighted-difference: W[*b *i *k *p]  A[*b *k *d]  B[*b *i *d]
  dot(A - B, W, k)  ==  dot(A, W, k) - B * sum(W, k)
  numerics range
  prefer prod(i) > 1 and prod(k) > 1 and prod(d) > 1

product-of-weighted-difference-from: W[*b *i *k *p]  A[*b *k *d]  B[*b *i *d]
  dot(B - A, W, k)  ==  B * sum(W, k) - dot(A, W, k)
  numerics range
  prefer prod(i) > 1 and prod(k) > 1 and prod(d) > 1
"""
