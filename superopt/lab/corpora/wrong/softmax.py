"""Softmax: shifts, masks, blocks."""

RULES = """
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

softmax-scaled: X[*b *k]  S[*b]
  exp(X * S) / sum(exp(X * S), k)  ==  exp(X) / sum(exp(X), k)

layernorm-unscaled: X[*a *k]  M[*a]  V[*a]  G[*k]  W[*k *n]
  dot((X - M) * V * G, W, k)  ==  (dot(X, W * G, k) - M) * V

logsumexp-unshifted: X[*b *k]
  log(sum(exp(X - max(X, k)), k))  ==  log(sum(exp(X), k))
"""
