"""Convolutions: pads folded into the window, as products, operands swapped; every stride, group and window rank."""

RULES = """
pad-into-conv-input: X[*b *g *c *s]  W[*g *o *c *s2]
  conv(pad(X, 0, s(l, h, i)), W, c, s(t, p, q, 1, d))  ==  conv(X, W, c, s(t, p + l, q + h, i + 1, d))
  if l >= 0, h >= 0, s >= 1
  source XLA conv/1: Conv(Pad(in, low, int, high), w) => Conv(in, w, low + l, int + 1, high + h)

pad-into-dilated-conv-input: X[*b *g *c *s]  W[*g *o *c *s2]
  conv(pad(X, 0, s(l, h)), W, c, s(t, p, q, u, d))  ==  conv(X, W, c, s(t, p + l * u, q + h * u, u, d))
  if l >= 0, h >= 0, s >= 1
  source XLA conv/1: the same under any base dilation (TensorRight: generalize)

pad-into-conv-kernel: X[*b *g *c *s]  W[*g *o *c *s2]
  conv(X, pad(W, 0, s(0, 0, i)), c, s(t, p, q, u))  ==  conv(X, W, c, s(t, p, q, u, i + 1))
  source XLA conv/2: Conv(in, Pad(w, 0, int, 0), rd = 1) => Conv(in, w, rd = int + 1)

conv-is-dot: X[*b *g *c *s]  W[*g *o *c *s2]
  conv(X, W, c, s(t))  ==  dot(slice(X, s(0, s, t)), at(W, s(0)), c)
  if s2 == 1
  source XLA conv/3: Conv(A, B) => Dot(A, B)

conv-operand-swap: X[*b *g *c *s]  W[*g *o *c *s2]
  conv(X, W, c, s(1, p, q))  ==  conv(rev(W, s), rev(X, s), c, s(1, p + s - s2, q + s - s2))
  if s >= 1
  source XLA conv/4: Conv(in, w) => Conv(Reverse(w), Reverse(in)), which TensorRight skips
"""
