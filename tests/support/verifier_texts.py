"""Rule texts for the verifier's tests: true ones beyond the library (wrong ones: `superopt.lab.corpora.wrong`)."""

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
