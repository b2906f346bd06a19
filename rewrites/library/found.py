"""Rules that `superopt discover` found, that the rules written by hand do not imply, and that pay.

Each was enumerated, lifted and widened by machine; roles that no site is known to need were dropped, `prefer` added.
"""

RULES = """
conv-add-kernels: X[*b *g *m *k *s]  W[*b *m *n *s2]  V[*b *m *n *s2]
  conv(X, W, m, s(t, p, q, u, d)) + conv(X, V, m, s(t, p, q, u, d))  ==  conv(X, W + V, m, s(t, p, q, u, d))
  prefer frozen(W) and frozen(V)
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

dot-assoc-shared: A[*b *i *m *k]  B[*b *k *l]  C[*b *i *l *n]
  dot(dot(A, B, k), C, l)  ==  dot(A, dot(B, C, l), k)
  prefer frozen(B) and prod(n) < prod(m)
  source superopt discover --ops dot,conv
"""
