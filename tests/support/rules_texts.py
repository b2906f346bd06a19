"""Rule texts used by several tests: more of the language than the library needs, and rules that are wrong."""

MORE = """
cumsum-blocked: q in 2|4|8  A[*a n]  extra o i
  cumsum(A, n)  ==  merge(cumsum(S, i) + (cumsum(T, o) - T), o, i, n)
  with S = split(A, n, o, i(q))
  with T = sum(S, i)
  if n % q == 0, q < n

space-to-depth: X[*b c *s]  W[o c *s2]  extra *v
  conv(X, W, c, s(t))  ==  conv(split(X, s, s, v(t)), split(pad(W, 0, s(0, (0 - s2) % t)), s, s, v(t)), c, v, s(1))
  if t >= 2, s % t == 0

take-ew: f/1  T[n *d]  I[*b]
  f(take(T, I, n))  ==  take(f(T), I, n)

dot-take: T[n k]  I[*b]  W[k *m]
  dot(take(T, I, n), W, k)  ==  take(dot(T, W, k), I, n)

cumsum-linear: A[*a n]  S[*a]
  cumsum(A * S, n)  ==  cumsum(A, n) * S

relu-of-positive: A[*a]  S[*a]
  maximum(A * exp(S), 0)  ==  maximum(A, 0) * exp(S)

cube: A[*a]  B[*a]
  (A * B) ** 3  ==  A ** 3 * B ** 3

clip: A[*a]
  minimum(maximum(A, -1), 2)  ==  clamp(-1, A, 2)

where-less: A[*a]  B[*a]
  where(lt(A, B), A, B)  ==  minimum(A, B)

flash-merge: X[*b *q k]  V[*b k *d]  Y[*b *q k2]  U[*b k2 *d]
  dot(exp(concat(X, Y, k)) / sum(exp(concat(X, Y, k)), k), concat(V, U, k), k)
    == (dot(exp(X - M), V, k) + dot(exp(Y - M), U, k)) / (sum(exp(X - M), k) + sum(exp(Y - M), k))
  with M = maximum(max(X, k), max(Y, k))
  if k >= 1, k2 >= 1
  source Dao et al. 2022

conv-nhwc: X[*b c *s]  W[o c *s2]
  conv(X, W, c, s(t, p, q, u, d))  ==  conv(lay(X, b, s, c), lay(W, s, c, o), c, s(t, p, q, u, d))

dot-view: A[*b *m *k]  B[*b *k *n]
  dot(view(A), B, k)  ==  dot(A, B, k)

bcast-view: A[*a]  extra *n
  view(bcast(A, n))  ==  bcast(A, n)

reduce-view: R in sum|max  A[*a *k]
  R(view(A), k)  ==  R(A, k)

conv-undilate: X[*b c *s]  W[o c *s2]
  conv(X, W, c, s(t, p, q, 1, d))  ==  conv(X, pad(W, 0, s(0, 0, d - 1)), c, s(t, p, q))

ew2-bcast: f/2  A[*a]  B[*a]  extra *n
  f(bcast(A, n), bcast(B, n))  ==  bcast(f(A, B), n)

dot-of-ones: A[*a *k]
  dot(A, bcast(1, k), k)  ==  sum(A, k)

rev-rev: A[*a *n]
  rev(rev(A, n), n)  ==  A

reduce-reduce: R in sum|max|min|prod  A[*a *k *l]
  R(R(A, k), l)  ==  R(A, k, l)

prod-prod: A[*a *k *l]
  prod(prod(A, k), l)  ==  prod(A, k, l)
"""

WRONG = """
merge-order: A[*b *m *k]  B[*b *k n]  C[*b *k n]
  dot(A, B, k), dot(A, C, k)  ==  slice(Y, n(n, n + n)), slice(Y, n(0, n))
  with Y = dot(A, concat(B, C, n), k)

softmax-shift-axis: X[*b *k]  C[*k]
  exp(X - C) / sum(exp(X - C), k)  ==  exp(X) / sum(exp(X), k)

depthwise-off-by-one: X[*b *g *s]  W[*g *s2]
  conv(X, W, s(t))  ==  sigma(r < s2, slice(X, s(r, s - s2 + r + 1, t)) * at(W, s(s2 - 1 - r)))

slice-concat-no-condition: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  slice(A, n(s, e))

pad-pad-negative: A[*a *n]  V[]
  pad(pad(A, V, n(l, h)), V, n(p, q))  ==  pad(A, V, n(l + p, h + q))

conv-pad-one: X[*b c *s]  W[o c *s2]
  conv(pad(X, 1, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, l + p, h + q))
  if l >= 0, h >= 0

sum-bcast-lost-count: A[*a]  extra *k
  sum(bcast(A, k), k)  ==  A

max-of-dot: A[*b *m *k]  B[*b *k *n]
  max(dot(A, B, k), n)  ==  dot(A, max(B, n), k)

masked-product-with-own-block-twice: q in 2|4  Q[*b i *d]  K[*b j *d]  V[*b j *e]  extra o r s
  dot(where(ge(iota(i), iota(j)), dot(Q, K, d), 0), V, j)
    == merge(dot(where(ge(split(iota(i), i, o, r(q)), split(iota(j), j, o, s(q))), dot(Y, Z, d), 0), W, s)
             + dot(Y, cumsum(S, o), d), o, r, i)
  with Y = split(Q, i, o, r(q))
  with Z = split(K, j, o, s(q))
  with W = split(V, j, o, s(q))
  with S = dot(Z, W, s)
  if i == j, i % q == 0

cumsum-blocked-no-carry: q in 2|4  A[*a n]  extra o i
  cumsum(A, n)  ==  merge(cumsum(split(A, n, o, i(q)), i), o, i, n)
  if n % q == 0

where-swapped: A[*a]  B[*a]
  where(lt(A, B), A, B)  ==  maximum(A, B)
"""
