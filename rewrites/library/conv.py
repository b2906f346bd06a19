"""Convolutions: as products, folded scales, pads and slices, merged and composed kernels.

Feature groups are the role g; spatial roles carry (step, low pad, high pad, base dilation, window dilation).
"""

RULES = """
conv-pointwise: X[*b *g c *s]  W[*g o c]
  conv(X, W, c, s(t))  ==  dot(slice(X, s(0, s, t)), W, c)

depthwise-then-pointwise: X[*b *g *s]  W[*g *s2]  V[o *g]
  dot(conv(X, W, s(t, p, q, u, d)), V, g)  ==  conv(X, W * V, g, s(t, p, q, u, d))
  prefer frozen(W) and frozen(V)

conv-pointwise-compose: X[*b c *s]  V[m c]  W[o m *s2]
  conv(dot(X, V, c), W, m, s(t, 0, 0, u, d))  ==  conv(X, dot(W, V, m), c, s(t, 0, 0, u, d))
  prefer frozen(W) and frozen(V) and c <= m

conv-scale: X[*b *g *c *s]  W[*g o *c *s2]  S[*g o]
  conv(X, W, c, s(t, p, q, u, d)) * S  ==  conv(X, W * S, c, s(t, p, q, u, d))
  prefer frozen(W) and frozen(S)

conv-scale-across: X[*b *g c *s]  S[*g c]  W[*g o c *s2]
  conv(X * S, W, c, s(t, p, q, u, d))  ==  conv(X, W * S, c, s(t, p, q, u, d))
  prefer frozen(W) and frozen(S)

batchnorm-fold: X[*b *g c *s]  W[*g o c *s2]  S[*g o]  M[*g o]  B[*g o]
  (conv(X, W, c, s(t, p, q, u, d)) - M) * S + B  ==  conv(X, W * S, c, s(t, p, q, u, d)) + (B - M * S)
  prefer frozen(W) and frozen(S) and frozen(M) and frozen(B)

conv-pad: X[*b *g *c *s]  W[*g o *c *s2]
  conv(pad(X, 0, s(l, h)), W, c, s(t, p, q, 1, d))  ==  conv(X, W, c, s(t, l + p, h + q, 1, d))
  if l >= 0, h >= 0

conv-separable: X[*b *g *c r s]  V[*g *o *c r2]  K[s2]
  conv(X, V * K, c, r(t, p, q, u, d), s(t2, p2, q2, u2, d2))
    == conv(conv(X, V, c, r(t, p, q, u, d)), K, s(t2, p2, q2, u2, d2))
  prefer r2 > 1 and s2 > 1

conv-subtract-kernels: X[*b *g *m *k *s]  W[*b *m *n *s2]  V[*b *m *n *s2]
  conv(X, W, m, s(t, p, q, u, d)) - conv(X, V, m, s(t, p, q, u, d))  ==  conv(X, W - V, m, s(t, p, q, u, d))
  prefer live(X)

conv-merge: X[*b *g c *s]  W[*g o c *s2]  V[*g o2 c *s2]
  conv(X, W, c, s(t, p, q, u, d)), conv(X, V, c, s(t, p, q, u, d))  ==  slice(Y, o(0, o)), slice(Y, o(o, o + o2))
  with Y = conv(X, concat(W, V, o), c, s(t, p, q, u, d))
  prefer frozen(W) and frozen(V) and live(X)
  mode merge

conv-split-c: X[*b c *s]  W[o c *s2]  Z[*b c2 *s]  V[o c2 *s2]
  conv(X, W, c, s(t, p, q, u, d)) + conv(Z, V, c, s(t, p, q, u, d))
    == conv(concat(X, Z, c), concat(W, V, c), c, s(t, p, q, u, d))
  prefer frozen(W) and frozen(V)
  mode near

conv-batch-concat: X[b c *s]  Z[b2 c *s]  W[o c *s2]
  conv(concat(X, Z, b), W, c, s(t, p, q, u, d))
    == concat(conv(X, W, c, s(t, p, q, u, d)), conv(Z, W, c, s(t, p, q, u, d)), b)
  mode near

slice-of-conv: X[*b *g *c *s]  W[*g *o *c *s2]
  slice(conv(X, W, c, s(t, p, q, u, d)), s(a, e, z))
    == conv(X, W, c, s(t * z, p - t * a, (e - a - 1) // z * t * z + (s2 - 1) * d - (s - 1) * u - (p - t * a), u, d))
  if a < e
"""
