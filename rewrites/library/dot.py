"""Products: association, distribution, scales and divisors in and out, merging, factoring, unrolling."""

RULES = """
dot-assoc: A[*b *m *k]  B[*b *k *l]  C[*b *l *n]
  dot(dot(A, B, k), C, l)  ==  dot(A, dot(B, C, l), k)
  prefer live(A) and frozen(B) and frozen(C) and prod(k) * prod(n) <= (prod(k) + prod(n)) * prod(l)
      or prod(k) * (prod(l) + prod(m)) < prod(m) * prod(l)
      or (live(A) or live(B)) and prod(n) * prod(k) * (prod(l) + prod(m)) < prod(m) * prod(l) * (prod(k) + prod(n))

adapter-merge: X[*b *m *k]  W[*b *k *n]  A[*b *k *l]  B[*b *l *n]
  dot(X, W, k) + dot(dot(X, A, k), B, l)  ==  dot(X, W + dot(A, B, l), k)
  prefer frozen(W) and frozen(A) and frozen(B) and live(X)

adapter-merge-biased: X[*b *m *k]  W[*b *k *n]  A[*b *k *l]  B[*b *l *n]  C[*b *m *n]
  dot(X, W, k) + C + dot(dot(X, A, k), B, l)  ==  dot(X, W + dot(A, B, l), k) + C
  prefer frozen(W) and frozen(A) and frozen(B) and live(X)

dot-distributes-frozen: A[*b *m *k]  B[*b *m *k]  C[*b *k *n]
  dot(A + B, C, k)  ==  dot(A, C, k) + dot(B, C, k)
  prefer frozen(B) and frozen(C)
  mode near

dot-distributes: A[*b *m *k]  B[*b *k *n]  C[*b *k *n]
  dot(A, B + C, k)  ==  dot(A, B, k) + dot(A, C, k)
  mode near

dot-factor: A[*b *m *p *k]  B[*b *m *k]  C[*b *k *n]
  dot(A, C, k) + dot(B, C, k)  ==  dot(A + B, C, k)

dot-factor-sub: A[*b *m *p *k]  B[*b *m *k]  C[*b *k *n]
  dot(A, C, k) - dot(B, C, k)  ==  dot(A - B, C, k)

dot-scale-out: A[*b *c *m *p *k]  S[*b *m]  B[*b *c *k *n]
  dot(A * S, B, k)  ==  dot(A, B, k) * S

dot-divide-out: A[*b *c *m *p *k]  S[*b *m]  B[*b *c *k *n]
  dot(A / S, B, k)  ==  dot(A, B, k) / S

dot-scale-in: A[*b *m *k]  B[*b *c *k *n]  S[*c *n]
  dot(A, B, k) * S  ==  dot(A, B * S, k)
  prefer frozen(B) and frozen(S)

dot-scale-across: A[*b *m *k]  S[*b *k]  B[*b *k *n]
  dot(A * S, B, k)  ==  dot(A, B * S, k)
  prefer frozen(B) and frozen(S)

dot-merge: A[*b *m *k]  B[*b *k *p n]  C[*b *k *p n2]
  dot(A, B, k), dot(A, C, k)  ==  slice(Y, n(0, n)), slice(Y, n(n, n + n2))
  with Y = dot(A, concat(B, C, n), k)
  prefer frozen(B) and frozen(C) and live(A)
  mode merge

dot-split-k: A[*b *m i]  B[*b i *n]  C[*b *m i2]  D[*b i2 *n]
  dot(A, B, i) + dot(C, D, i)  ==  dot(concat(A, C, i), concat(B, D, i), i)
  prefer frozen(B) and frozen(D) and live(A) and live(C)

dot-of-concat: A[*b *m i]  C[*b *m i2]  D[*b i3 *n]
  dot(concat(A, C, i), D, i)  ==  dot(A, slice(D, i(0, i)), i) + dot(C, slice(D, i(i, i + i2)), i)
  prefer live(A)
  mode near

product-with-padding: A[*b *m k]  B[*b k2 *n]
  dot(pad(A, 0, k(l, h)), B, k)  ==  dot(A, slice(B, k(l, l + k)), k)
  if l >= 0, h >= 0

product-with-padded-rows: A[*b m *p k]  C[*b m2 *p k2]  B[*b k3 *n]
  dot(concat(pad(A, 0, k(l, h)), C, m), B, k)  ==  concat(dot(A, slice(B, k(l, l + k)), k), dot(C, B, k), m)
  if l >= 0, h >= 0

product-of-reversed: A[*b *m *k]  B[*b *k *n]
  dot(rev(A, k), B, k)  ==  dot(A, rev(B, k), k)
  prefer prod(m) > prod(n)

slice-of-dot: A[*b *m *k]  B[*b *k *n]
  slice(dot(A, B, k), m(p, q, r), n(s, e, t))  ==  dot(slice(A, m(p, q, r)), slice(B, n(s, e, t)), k)
  mode near

sum-as-dot: A[*a *k]
  sum(A, k)  ==  dot(A, bcast(1, k), k)
  prefer prod(k) >= 16
  mode macro

scaled-sum-as-dot: A[*a *k]  S[]
  sum(A, k) * S  ==  dot(A, bcast(S, k), k)
  prefer frozen(S) and prod(k) >= 16

square-sum-to-dot: A[*b *k]
  sum(square(A), k)  ==  dot(A, A, k)

dot-unrolled: A[*b *m k]  B[*b k *n]
  dot(A, B, k)  ==  sigma(r < k, at(A, k(r)) * at(B, k(r)))
  if k >= 1
  prefer k <= 8
  mode macro

dot-apart: A[*b g *m k]  B[*b g k *n]
  dot(A, B, k)  ==  stack(r < g, dot(at(A, g(r)), at(B, g(r)), k), g)
  if g >= 1
  prefer 1 < g and g <= 16
  mode macro
"""
