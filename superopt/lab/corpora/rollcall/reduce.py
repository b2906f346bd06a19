"""Reductions: of products, of concatenations, nested, over axes of length one."""

RULES = """
product-of-sums: X[*a *k]  Y[*a *l]
  sum(X, k) * sum(Y, l)  ==  sum(X * Y, k, l)
  source XLA reduce/1: Mul(Reduce(X), Reduce(Y)) => Reduce(Mul(Broadcast(X), Broadcast(Y)))

reduce-of-concat-of-reduced: R in sum|max|min|prod  X[*a *k *l n]  Y[*a *k *l n2]
  R(concat(R(X, k), R(Y, k), n), n, l)  ==  R(concat(X, Y, n), n, k, l)
  source XLA reduce/2: Reduce(Concat(Reduce(X), Reduce(Y))) => Reduce(Concat(X, Y))

scale-of-sum: X[*a *k]  S[*a]
  S * sum(X, k)  ==  sum(S * X, k)
  source XLA reduce/3: Const * Reduce(X) => Reduce(Const * X)

reduce-of-transpose: R in sum|max|min|prod  X[*a *k]
  R(view(X), k)  ==  view(R(X, k))
  source XLA reduce/4: Reduce(Relabel(X)) => Relabel(Reduce(X))

reduce-of-reduce: R in sum|max|min|prod  X[*a *k *l]
  R(R(X, k), l)  ==  R(X, k, l)
  source XLA reduce/5: Reduce(Reduce(X)) => Reduce(X)

sum-of-dot-over-batch: A[*b *c *m *k]  B[*b *c *k *n]
  sum(dot(A, B, k), c)  ==  dot(A, B, k, c)
  source XLA reduce/6: Reduce(Dot(X, Y)) => Dot(X, Y)

reduce-of-ones: R in sum|max|min|prod  X[*a *k]
  R(X, k)  ==  at(X, k(0))
  if k == 1
  source XLA reduce/7: Reduce(X) => ReshapeDegenerate(X)

reduce-with-ones: R in sum|max|min|prod  X[*a *k *u]
  R(X, k, u)  ==  R(at(X, u(0)), k)
  if u == 1
  source XLA reduce/8: Reduce(X) => ReshapeDegenerate(X), other axes reduced as well
"""
