"""Convolutions and pooling: folded pads and scales, pieces of an image."""

RULES = """
depthwise-kernel-reversed: X[*b *g *s]  W[*g *s2]
  conv(X, W, s(t))  ==  sigma(r < s2, slice(X, s(r, s - s2 + r + 1, t)) * at(W, s(s2 - 1 - r)))

conv-of-nonzero-pad: X[*b c *s]  W[o c *s2]
  conv(pad(X, 1, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, l + p, h + q))
  if l >= 0, h >= 0

conv-of-cropping-pad: X[*b c *s]  W[o c *s2]
  conv(pad(X, 0, s(l, h)), W, c, s(t, p, q))  ==  conv(X, W, c, s(t, l + p, h + q))
  source XLA #48715: a cropping pad folded into a convolution

pool-of-cropping-pad: X[*b *s]
  wmax(pad(X, -inf, s(l, h)), s(w, t, p, q))  ==  wmax(X, s(w, t, l + p, h + q))
  source XLA #48715: a cropping pad folded into a reduce-window

pool-of-zero-pad: X[*b *s]
  wmax(pad(X, 0, s(l, h)), s(w, t, p, q))  ==  wmax(X, s(w, t, l + p, h + q))
  if l >= 0, h >= 0

pool-of-spatial-concat: A[*b s]  B[*b s2]
  wmax(concat(A, B, s), s(w, w))  ==  concat(wmax(A, s(w, w)), wmax(B, s(w, w)), s)

conv-split-without-halo: A[*b s]  B[*b s2]  W[s3]
  conv(concat(A, B, s), W, s(1, 1, 1))  ==  concat(conv(A, W, s(1, 1, 1)), conv(B, W, s(1, 1, 1)), s)
  if s3 == 3

relu-of-scaled: X[*b c *s]  W[o c *s2]  S[o]
  maximum(conv(X, W, c, s(t, p, q)), 0) * S  ==  maximum(conv(X, W * S, c, s(t, p, q)), 0)
  source TVM #16211: a scale that may be negative moved through a relu

batchnorm-mean-unscaled: X[*b *g c *s]  W[*g o c *s2]  S[*g o]  M[*g o]  B[*g o]
  (conv(X, W, c, s(t, p, q, u, d)) - M) * S + B  ==  conv(X, W * S, c, s(t, p, q, u, d)) + (B - M)

sum-pool-strides: X[*b *s]
  wsum(wsum(X, s(w)), s(v, t))  ==  wsum(X, s(w + v, t))

conv-composed: X[*b c *s]  V[m c *s2]  W[o m]
  dot(maximum(conv(X, V, c, s(t, p, q)), 0), W, m)  ==  maximum(conv(X, dot(W, V, m), c, s(t, p, q)), 0)
"""
