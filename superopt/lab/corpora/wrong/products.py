"""Products: merged, scaled, grouped."""

RULES = """
merge-order: A[*b *m *k]  B[*b *k n]  C[*b *k n]
  dot(A, B, k), dot(A, C, k)  ==  slice(Y, n(n, n + n)), slice(Y, n(0, n))
  with Y = dot(A, concat(B, C, n), k)

max-into-dot: A[*b *m *k]  B[*b *k *n]
  max(dot(A, B, k), n)  ==  dot(A, max(B, n), k)

scale-along-contracted: A[*b m k]  B[*b k n]  S[k]
  dot(A * S, B, k)  ==  dot(A, B, k) * sum(S, k)

divisor-along-contracted: A[*b *m *k]  B[*b *k *n]  S[*k]
  dot(A / S, B, k)  ==  dot(A, B, k) / sum(S, k)

grouped-as-dense: X[*b *p c]  Z[*b *p c]  Y[o c]  W[o2 c]
  concat(dot(X, Y, c), dot(Z, W, c), o)  ==  dot(X + Z, concat(Y, W, o), c)
  source TASO: the axiom of grouped convolutions with a dense convolution

batchnorm-of-batch: X[*b c]  W[o c]  I[]
  dot(X, W, c) - sum(dot(X, W, c), b) * I  ==  dot(X, W, c) - dot(X, W, c) * I
  source statistics of the batch taken for constants

scale-of-rows-and-columns: A[m k]  B[k n]  S[m]  extra j
  dot(A, B, k) * S  ==  dot(A, B * ren(S, m, n), k)
  if m == n
  mode proof
  source a scale folded along the wrong axis

grouped-conv-as-dense: X[*b c *s]  Z[*b c *s]  Y[o c *s2]  W[o2 c *s2]
  concat(conv(X, Y, c, s(t)), conv(Z, W, c, s(t)), o)  ==  conv(X + Z, concat(Y, W, o), c, s(t))
  source TASO: the axiom of grouped convolutions with a dense convolution

bias-inside: A[*m *k]  B[*k *n]  C[*m *n]
  dot(A, B, k) + C  ==  dot(A + 1, B, k)

product-distributed-twice: A[*b *m *k]  B[*b *m *k]  C[*b *k *n]  D[*b *k *n]
  dot(A + B, C + D, k)  ==  dot(A, C, k) + dot(B, D, k)
"""
