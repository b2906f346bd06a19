"""False variants of the roll call, at least one per family: each must be refuted with arrays."""

RULES = """
wrong-add: A[*a]  C[*a]  D[*a]
  (A + C) + D  ==  A + (C - D)

wrong-broadcast: V[]  extra *n
  slice(bcast(V, n), n(s, e, t))  ==  bcast(V, n((e - s) // t))

wrong-broadcast-iota: extra *a n m
  bcast(iota(n), a, m)  ==  bcast(iota(m), a, n)
  mode proof

wrong-clamp: A[*a]  L[*a]  H[*a]
  maximum(L, minimum(A, H))  ==  clamp(L, A, H)

wrong-compare: A[*a]  B[*a]
  ge(A, B)  ==  gt(A, B)

wrong-concat: A[*a n]  B[*a n2]  C[*a n3]
  concat(A, concat(B, C, n), n)  ==  concat(concat(B, A, n), C, n)

wrong-concat-slices: A[*a n]
  concat(slice(A, n(s, m, t)), slice(A, n(m, e, t)), n)  ==  slice(A, n(s, e, t))

wrong-conv-pad: X[*b c *s]  W[o c *s2]
  conv(pad(X, 0, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, p + l, q + h))

wrong-conv-pad-value: X[*b c *s]  W[o c *s2]  V[]
  conv(pad(X, V, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, p + l, q + h))
  if l >= 0, h >= 0

wrong-conv-swap: X[*b c *s]  W[*o c *s2]
  conv(X, W, c, s(1, p, q))  ==  conv(W, X, c, s(1, p + s - s2, q + s - s2))
  if s >= 1

wrong-rem: c in int  X[*a]
  rem(X + c, c)  ==  rem(X, c)
  if c >= 1
  dtype int
  mode proof

wrong-integer-division: A[*a]  B[*a]  C[*a]
  A / (B / C)  ==  (A * C) / B
  dtype int

wrong-div: A[*a]  B[*a]  C[*a]  D[*a]
  (A / B) / (C / D)  ==  (A * C) / (B * D)

wrong-dot: A[*b *m *k]  B[*b *k *n]
  dot(A, B, k) * dot(A, B, k)  ==  dot(A * A, B * B, k)

wrong-dynamic-slice: A[*a *n]
  dynslice(dynslice(A, n(i, m)), n(j, p))  ==  dynslice(A, n(i + min(max(j, 0), m - p), p))
  mode proof

wrong-dynamic-slice-is-slice: A[*a n]
  dynslice(A, n(s, m))  ==  slice(A, n(max(s, 0), max(s, 0) + m))
  mode proof

wrong-dynamic-update: A[*a *n]  B[*a *n2]
  A + dynupdate(bcast(0, a, n), B, n(i))  ==  dynupdate(A, B, n(i))
  mode proof

wrong-iota: extra *a n
  bcast(iota(n), a)  ==  bcast(0, a, n)
  mode proof

wrong-logical: A[*a]  C[*a]  D[*a]
  logical_and(lt(A, C), gt(D, A))  ==  lt(A, maximum(C, D))

wrong-max: A[*a]
  maximum(A, 0)  ==  A

wrong-mul: A[*a]  B[*a]  C[*a]
  A * C + B * C  ==  (A + B) * (C + C)

wrong-negation: P[*a]
  invert(invert(P))  ==  invert(P)

wrong-pad: A[*a *n]  V[]
  pad(A, V, n(l, h, i))  ==  pad(A, V, n(l, h))
  if i == 1, n == 2

wrong-negative-pad: A[*a n]  V[]
  pad(A, V, n(l, h))  ==  slice(A, n(0 - l, n + h))
  if l <= 0, h >= 0

wrong-reduce: X[*a *k]  Y[*a *k]
  sum(X, k) * sum(Y, k)  ==  sum(X * Y, k)

wrong-reduce-prod: X[*a *k]  S[*a]
  prod(X * S, k)  ==  prod(X, k) * S

wrong-relabel: A[*a n m]
  rev(view(A), n)  ==  view(rev(A, m))

wrong-reverse: A[*a n]  C[n]
  rev(A + C, n)  ==  rev(A, n) + C

wrong-select: P[*a]  A[*a]  B[*a]
  where(invert(P), A, B)  ==  where(P, A, B)

wrong-slice: A[*a *n]
  slice(slice(A, n(s, e, t)), n(x, y, z))  ==  slice(A, n(s + x, min(e, s + y), t * z))
  if x < y

wrong-slice-reverse: A[*a *n]
  slice(rev(A, n), n(s, e, t))  ==  rev(slice(A, n(n - e, n - s, t)), n)

wrong-sub: A[*a]  B[*a]
  A - B  ==  B - A

wrong-reshape: A[*a o i]  extra n
  merge(A, o, i, n)  ==  merge(A, i, o, n)
  mode proof

wrong-window: X[*b s]
  wmax(wmax(X, s(w)), s(v))  ==  wmax(X, s(w + v))
  if s >= w + v
  mode proof

wrong-causal: Q[*b q d]  K[*b k d]  V[*b k *e]  L[*b k2 d]  U[*b k2 *e]
  dot(A / sum(A, k), concat(V, U, k), k)  ==  dot(B / sum(B, k), V, k)
  with A = exp(where(ge(iota(q), concat(iota(k), iota(k2) + count(k), k)), dot(Q, concat(K, L, k), d), -inf))
  with B = exp(where(ge(iota(q), iota(k)), dot(Q, K, d), -inf))
  mode proof

wrong-online-softmax: X[*b k]  Y[*b k2]
  sum(exp(X - A), k) + sum(exp(Y - B), k)  ==  sum(exp(concat(X, Y, k) - max(concat(X, Y, k), k)), k)
  with A = max(X, k)
  with B = max(Y, k)
  if k >= 1, k2 >= 1
  mode proof

wrong-scale-behind-relu: X[*b *g *c *s]  W[*g *o *c *s2]  S[*g *o]
  maximum(conv(X, W, c, s(t, p, q, u, d)), 0) * S  ==  maximum(conv(X, W * S, c, s(t, p, q, u, d)), 0)
"""
