"""Rule texts for the verifier's tests: true ones beyond the library, and wrong ones that people (and tools) wrote."""

TRUE = """
dot-view: A[*b *m *k]  B[*b *k *n]
  dot(view(A), B, k)  ==  dot(A, B, k)

ew2-view: f/2  A[*a]  B[*a]
  f(view(A), view(B))  ==  view(f(A, B))

reduce-view: R in sum|max|min  A[*a *k]
  R(view(A), k)  ==  R(A, k)

bcast-view: A[*a]  extra *n
  view(bcast(A, n))  ==  bcast(A, n)

concat-view: A[*a n]  B[*a n2]
  concat(view(A), view(B), n)  ==  concat(A, B, n)

view-view: A[*a]
  view(view(A))  ==  view(A)

conv-nhwc: X[*b c *s]  W[o c *s2]
  conv(X, W, c, s(t, p, q, u, d))  ==  conv(lay(X, b, s, c), lay(W, s, c, o), c, s(t, p, q, u, d))

conv-undilate: X[*b c *s]  W[o c *s2]
  conv(X, W, c, s(t, p, q, 1, d))  ==  conv(X, pad(W, 0, s(0, 0, d - 1)), c, s(t, p, q))

im2col-dot: X[*b c s]  W[o c s2]
  conv(X, W, c, s(1))  ==  sigma(r < s2, dot(slice(X, s(r, s - s2 + r + 1)), at(W, s(r)), c))

flash-merge: X[*b *q k]  V[*b k *d]  Y[*b *q k2]  U[*b k2 *d]
  dot(exp(concat(X, Y, k)) / sum(exp(concat(X, Y, k)), k), concat(V, U, k), k)
    == (dot(exp(X - M), V, k) + dot(exp(Y - M), U, k)) / (sum(exp(X - M), k) + sum(exp(Y - M), k))
  with M = maximum(max(X, k), max(Y, k))
  if k >= 1, k2 >= 1

ew2-bcast: f/2  A[*a]  B[*a]  extra *n
  f(bcast(A, n), bcast(B, n))  ==  bcast(f(A, B), n)

select-not: P[*a]  A[*a]  B[*a]
  where(invert(P), A, B)  ==  where(P, B, A)

pool-relu: X[*b *s]
  maximum(wmax(X, s(w, t)), 0)  ==  wmax(maximum(X, 0), s(w, t))

split-merge: A[*a n]  extra o i  q in 2|4
  view(A)  ==  merge(split(A, n, o, i(q)), o, i, n)
  if n % q == 0

dot-blocks: A[*b *m k]  B[*b k *n]  extra o i  q in 2|4
  dot(A, B, k)  ==  sum(dot(split(A, k, o, i(q)), split(B, k, o, i(q)), i), o)
  if k % q == 0

max-blocks: A[*a n]  extra o i  q in 2|4
  max(A, n)  ==  max(max(split(A, n, o, i(q)), i), o)
  if n % q == 0

cumsum-blocks: A[*a n]  extra o i  q in 2|4
  cumsum(A, n)  ==  merge(cumsum(split(A, n, o, i(q)), i) + (cumsum(B, o) - B), o, i, n)
  with B = sum(split(A, n, o, i(q)), i)
  if n % q == 0

cumsum-of-dot: A[*b n *k]  B[*b *k *m]
  cumsum(dot(A, B, k), n)  ==  dot(cumsum(A, n), B, k)

take-of-dot: T[v *k]  I[*b]  W[*k *n]
  dot(take(T, I, v), W, k)  ==  take(dot(T, W, k), I, v)

clamp-clamp: A[*a]  L[*a]  H[*a]
  clamp(L, clamp(L, A, H), H)  ==  clamp(L, A, H)

log-of-exp: A[*a]  B[*a]
  log(exp(A) * exp(B))  ==  A + B

rms-fold: A[*a *k]  V[*a]  G[*k]  W[*k *n]
  dot(A * rsqrt(V) * G, W, k)  ==  dot(A, W * G, k) * rsqrt(V)

layernorm-fold: X[*a *k]  M[*a]  V[*a]  G[*k]  B[*k]  W[*k *n]
  dot((X - M) * V * G + B, W, k)  ==  (dot(X, W * G, k) - M * sum(W * G, k)) * V + dot(B, W, k)

lora-fold: X[*m *k]  W[*k *n]  A[*k *r]  B[*r *n]
  dot(X, W, k) + dot(dot(X, A, k), B, r)  ==  dot(X, W + dot(A, B, r), k)

cube: A[*a]
  A ** 3  ==  A * A * A

swish: A[*a]
  A * logistic(A)  ==  A / (1 + exp(-A))
"""

WRONG = """
merge-order: A[*b *m *k]  B[*b *k n]  C[*b *k n]
  dot(A, B, k), dot(A, C, k)  ==  slice(Y, n(n, n + n)), slice(Y, n(0, n))
  with Y = dot(A, concat(B, C, n), k)

softmax-shift-along: X[*b *k]  C[*k]
  exp(X - C) / sum(exp(X - C), k)  ==  exp(X) / sum(exp(X), k)

softmax-unmasked: X[*b *k]  P[*b *k]  L[]
  exp(where(P, X, L)) / sum(exp(where(P, X, L)), k)  ==  exp(X) / sum(exp(X), k)

online-softmax-unscaled: X[*b *q k]  V[*b k *d]  Y[*b *q k2]  U[*b k2 *d]
  dot(exp(concat(X, Y, k)) / sum(exp(concat(X, Y, k)), k), concat(V, U, k), k)
    == (dot(exp(X - max(X, k)), V, k) + dot(exp(Y - max(Y, k)), U, k)) / (S + T)
  with S = sum(exp(X - max(X, k)), k)
  with T = sum(exp(Y - max(Y, k)), k)
  if k >= 1, k2 >= 1

depthwise-kernel-reversed: X[*b *g *s]  W[*g *s2]
  conv(X, W, s(t))  ==  sigma(r < s2, slice(X, s(r, s - s2 + r + 1, t)) * at(W, s(s2 - 1 - r)))

slice-concat-unconditional: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  slice(A, n(s, e))

split-at-half: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e))  ==  A
  if s == 0, e == (n + n2) // 2

pad-pad-negative: A[*a *n]  V[]
  pad(pad(A, V, n(l, h)), V, n(p, q))  ==  pad(A, V, n(l + p, h + q))

conv-of-nonzero-pad: X[*b c *s]  W[o c *s2]
  conv(pad(X, 1, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, l + p, h + q))
  if l >= 0, h >= 0

conv-of-cropping-pad: X[*b c *s]  W[o c *s2]
  conv(pad(X, 0, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, l + p, h + q))

pool-of-cropping-pad: X[*b *s]
  wmax(pad(X, -inf, s(l, h)), s(w, t, p, q))  ==  wmax(X, s(w, t, l + p, h + q))

pool-of-zero-pad: X[*b *s]
  wmax(pad(X, 0, s(l, h)), s(w, t, p, q))  ==  wmax(X, s(w, t, l + p, h + q))
  if l >= 0, h >= 0

pool-of-spatial-concat: A[*b s]  B[*b s2]
  wmax(concat(A, B, s), s(w, w))  ==  concat(wmax(A, s(w, w)), wmax(B, s(w, w)), s)

conv-split-without-halo: A[*b s]  B[*b s2]  W[s3]
  conv(concat(A, B, s), W, s(1, 1, 1))  ==  concat(conv(A, W, s(1, 1, 1)), conv(B, W, s(1, 1, 1)), s)
  if s3 == 3

sum-of-broadcast: A[*a]  extra *k
  sum(bcast(A, k), k)  ==  A

max-of-empty-broadcast: A[*a]  extra *k
  max(bcast(A, k), k)  ==  A

max-into-dot: A[*b *m *k]  B[*b *k *n]
  max(dot(A, B, k), n)  ==  dot(A, max(B, n), k)

relu-of-scaled: X[*b c *s]  W[o c *s2]  S[o]
  maximum(conv(X, W, c, s(t, p, q)), 0) * S  ==  maximum(conv(X, W * S, c, s(t, p, q)), 0)

scale-along-contracted: A[*b m k]  B[*b k n]  S[k]
  dot(A * S, B, k)  ==  dot(A, B, k) * sum(S, k)

divisor-along-contracted: A[*b *m *k]  B[*b *k *n]  S[*k]
  dot(A / S, B, k)  ==  dot(A, B, k) / sum(S, k)

sqrt-of-product: A[*a]  B[*a]
  sqrt(A * B)  ==  sqrt(A) * sqrt(B)

exp-of-sum: A[*a *k]
  exp(sum(A, k))  ==  sum(exp(A), k)

abs-of-sum: A[*a *k]
  abs(sum(A, k))  ==  sum(abs(A), k)

product-of-sums: A[*a *k]  B[*a *k]
  sum(A, k) * sum(B, k)  ==  sum(A * B, k)

mean-of-means: A[*a n]  B[*a n2]
  sum(concat(A, B, n), n)  ==  (sum(A, n) / count(n) + sum(B, n) / count(n2)) * (count(n) + count(n2)) / 2
  if n >= 1, n2 >= 1

silu-as-exp: A[*a]
  A * logistic(A)  ==  A * exp(A)

clamp-reordered: A[*a]  L[*a]  H[*a]
  minimum(maximum(A, L), H)  ==  maximum(minimum(A, H), L)

grouped-as-dense: X[*b *p c]  Z[*b *p c]  Y[o c]  W[o2 c]
  concat(dot(X, Y, c), dot(Z, W, c), o)  ==  dot(X + Z, concat(Y, W, o), c)

rev-of-concat: A[*a n]  B[*a n2]
  rev(concat(A, B, n), n)  ==  concat(rev(A, n), rev(B, n), n)

new-divisor: A[*a]  B[*a]
  A + (B - B)  ==  A * B / B

select-swapped: P[*a]  A[*a]  B[*a]
  where(invert(P), A, B)  ==  where(P, A, B)

batchnorm-mean-unscaled: X[*b *g c *s]  W[*g o c *s2]  S[*g o]  M[*g o]  B[*g o]
  (conv(X, W, c, s(t, p, q, u, d)) - M) * S + B  ==  conv(X, W * S, c, s(t, p, q, u, d)) + (B - M)

batchnorm-of-batch: X[*b c]  W[o c]  I[]
  dot(X, W, c) - sum(dot(X, W, c), b) * I  ==  dot(X, W, c) - dot(X, W, c) * I

max-of-sum: A[*a *k *l]
  max(sum(A, k), l)  ==  sum(max(A, l), k)

max-of-scaled: A[*a *k]  S[*a]
  max(A * S, k)  ==  max(A, k) * S

max-of-padded-product: A[*a *k n]  B[*a n]
  max(pad(A, 0, n(l, h)) * pad(B, 0, n(l, h)), n)  ==  max(A * B, n)
  if l >= 0, h >= 0, n >= 1

slice-slice-strides: A[*a *n]
  slice(slice(A, n(s, e, t)), n(x, y, z))  ==  slice(A, n(s + x, min(e, s + y), t * z))
  if x < y

cumsum-blocks-twice: A[*a n]  extra o i  q in 2|4
  cumsum(A, n)  ==  merge(cumsum(split(A, n, o, i(q)), i) + cumsum(B, o), o, i, n)
  with B = sum(split(A, n, o, i(q)), i)
  if n % q == 0

take-other-rows: T[v *k]  I[*b]  J[*b]
  take(T, I, v) + take(T, J, v)  ==  take(T, I, v) * 2
"""
