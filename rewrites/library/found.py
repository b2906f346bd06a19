"""Rules that `superopt discover` found, that the rules written by hand do not imply, and that pay.

Each was enumerated, lifted and widened by machine; roles that no site is known to need were dropped, `prefer` added.
`conv-apart-4-5` is the outcome of a search for bilinear algorithms.  Their gains are listed in docs/rules.md.
"""

RULES = """
conv-add-kernels: X[*b *g *m *k *s]  W[*b *m *n *s2]  V[*b *m *n *s2]
  conv(X, W, m, s(t, p, q, u, d)) + conv(X, V, m, s(t, p, q, u, d))  ==  conv(X, W + V, m, s(t, p, q, u, d))
  prefer live(X)
  source superopt discover --ops add,conv

conv-add-images: X[*b *g *k *m *s]  W[*b *k *n *s2]  Y[*b *g *k *m *s]
  conv(X, W, k, s(t, p, q, u, d)) + conv(Y, W, k, s(t, p, q, u, d))  ==  conv(X + Y, W, k, s(t, p, q, u, d))
  prefer live(X) and live(Y)
  source superopt discover --ops add,conv

conv-then-pointwise: X[*b *g *m *k *s]  W[*b *j *i *n *m *s2]  A[*j *i *g *n *l]
  dot(conv(X, W, m, s(t, p, q, u, d)), A, n)  ==  conv(X, dot(W, A, n), m, s(t, p, q, u, d))
  prefer frozen(W) and frozen(A) and prod(l) <= prod(n)
  source superopt discover --ops dot,conv

pool-before-product: X[*b *g *k *n *s]  A[*b *i *k *m]
  wsum(dot(X, A, k), s(w, t, p, q))  ==  dot(wsum(X, s(w, t, p, q)), A, k)
  prefer prod(k) <= 2 * prod(m) or prod(t) > 1
  source superopt discover --ops dot,wsum

max-before-add: A[*b *m *k]  S[*b *g]
  max(A + S, k)  ==  max(A, k) + S
  prefer prod(k) > 1
  source superopt discover --ops add,max

max-before-relu: A[*b *k]
  max(maximum(A, 0), k)  ==  maximum(max(A, k), 0)
  if k >= 1
  source superopt discover --ops relu,max

conv-apart-4-5: X[*b c s v]  W[o c s2 v2]  extra j
  conv(X, W, c, s(1, p, q), v(t, l, h, u, d))
    == slice(merge(concat(unit(P0 + P2 + P3 + P4 + P5 + 8 * P6 + 8 * P7, j), unit(P2 - P3 + 2 * P4 - 2 * P5 + 4 * P6 -
      4 * P7, j), unit(P2 + P3 + 4 * P4 + 4 * P5 + 2 * P6 + 2 * P7, j), unit(P1 + P2 - P3 + 8 * P4 - 8 * P5 + P6 - P7,
      j), j), s, j, s), s(0, s + p + q - 4))
  with Z = pad(X, 0, s(p, (s + p + q - 1) // 4 * 4 + 4 - s - p))
  with D0 = slice(Z, s(0, (s + p + q - 1) // 4 * 4 - 3, 4))
  with D1 = slice(Z, s(1, (s + p + q - 1) // 4 * 4 - 2, 4))
  with D2 = slice(Z, s(2, (s + p + q - 1) // 4 * 4 - 1, 4))
  with D3 = slice(Z, s(3, (s + p + q - 1) // 4 * 4, 4))
  with D4 = slice(Z, s(4, (s + p + q - 1) // 4 * 4 + 1, 4))
  with D5 = slice(Z, s(5, (s + p + q - 1) // 4 * 4 + 2, 4))
  with D6 = slice(Z, s(6, (s + p + q - 1) // 4 * 4 + 3, 4))
  with D7 = slice(Z, s(7, (s + p + q - 1) // 4 * 4 + 4, 4))
  with P0 = conv(4 * D0 - 21 * D2 + 21 * D4 - 4 * D6, at(W, s(0)) / 4, c, v(t, l, h, u, d))
  with P1 = conv(-4 * D1 + 21 * D3 - 21 * D5 + 4 * D7, at(W, s(4)) / 4, c, v(t, l, h, u, d))
  with P2 = conv(-4 * D1 - 4 * D2 + 17 * D3 + 17 * D4 - 4 * D5 - 4 * D6, (at(W, s(0)) + at(W, s(1)) + at(W, s(2)) +
      at(W, s(3)) + at(W, s(4))) / 18, c, v(t, l, h, u, d))
  with P3 = conv(4 * D1 - 4 * D2 - 17 * D3 + 17 * D4 + 4 * D5 - 4 * D6, (at(W, s(0)) - at(W, s(1)) + at(W, s(2)) -
      at(W, s(3)) + at(W, s(4))) / 18, c, v(t, l, h, u, d))
  with P4 = conv(2 * D1 + D2 - 10 * D3 - 5 * D4 + 8 * D5 + 4 * D6, (at(W, s(0)) + 2 * at(W, s(1)) + 4 * at(W, s(2)) +
      8 * at(W, s(3)) + 16 * at(W, s(4))) / 360, c, v(t, l, h, u, d))
  with P5 = conv(-2 * D1 + D2 + 10 * D3 - 5 * D4 - 8 * D5 + 4 * D6, (at(W, s(0)) - 2 * at(W, s(1)) + 4 * at(W, s(2)) -
      8 * at(W, s(3)) + 16 * at(W, s(4))) / 360, c, v(t, l, h, u, d))
  with P6 = conv(4 * D1 + 8 * D2 - 5 * D3 - 10 * D4 + D5 + 2 * D6, (16 * at(W, s(0)) + 8 * at(W, s(1)) + 4 * at(W,
      s(2)) + 2 * at(W, s(3)) + at(W, s(4))) / 360, c, v(t, l, h, u, d))
  with P7 = conv(-4 * D1 + 8 * D2 + 5 * D3 - 10 * D4 - D5 + 2 * D6, (16 * at(W, s(0)) - 8 * at(W, s(1)) + 4 * at(W,
      s(2)) - 2 * at(W, s(3)) + at(W, s(4))) / 360, c, v(t, l, h, u, d))
  if s2 == 5
  prefer frozen(W) and c >= 16
  mode macro
  source superopt discover --ops bilinear

power-3-4: A[*a]
  pow(A, 0.75)  ==  sqrt(A) * sqrt(sqrt(A))
  source superopt discover --ops powers

power-1-4: A[*a]
  pow(A, 0.25)  ==  sqrt(sqrt(A))
  source superopt discover --ops powers

power-3-2: A[*a]
  pow(A, 1.5)  ==  A * sqrt(A)
  source superopt discover --ops powers

power-less-1-4: A[*a]
  pow(A, -0.25)  ==  rsqrt(sqrt(A))
  source superopt discover --ops powers

power-less-1-2: A[*a]
  pow(A, -0.5)  ==  rsqrt(A)
  source superopt discover --ops powers

power-less-3-4: A[*a]
  pow(A, -0.75)  ==  rsqrt(sqrt(A)) / sqrt(A)
  source superopt discover --ops powers

power-less-3-2: A[*a]
  pow(A, -1.5)  ==  rsqrt(A) / A
  source superopt discover --ops powers

power-less-2: A[*a]
  pow(A, -2)  ==  1 / (A * A)
  source superopt discover --ops powers
"""
