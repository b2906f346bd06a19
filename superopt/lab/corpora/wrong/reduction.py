"""Reductions: of broadcasts, of sums, of products, of blocks."""

RULES = """
sum-of-broadcast: A[*a]  extra *k
  sum(bcast(A, k), k)  ==  A

max-of-empty-broadcast: A[*a]  extra *k
  max(bcast(A, k), k)  ==  A

exp-of-sum: A[*a *k]
  exp(sum(A, k))  ==  sum(exp(A), k)

abs-of-sum: A[*a *k]
  abs(sum(A, k))  ==  sum(abs(A), k)

product-of-sums: A[*a *k]  B[*a *k]
  sum(A, k) * sum(B, k)  ==  sum(A * B, k)

mean-of-means: A[*a n]  B[*a n2]
  sum(concat(A, B, n), n)  ==  (sum(A, n) / count(n) + sum(B, n) / count(n2)) * (count(n) + count(n2)) / 2
  if n >= 1, n2 >= 1

max-of-sum: A[*a *k *l]
  max(sum(A, k), l)  ==  sum(max(A, l), k)

max-of-scaled: A[*a *k]  S[*a]
  max(A * S, k)  ==  max(A, k) * S

max-of-padded-product: A[*a *k n]  B[*a n]
  max(pad(A, 0, n(l, h)) * pad(B, 0, n(l, h)), n)  ==  max(A * B, n)
  if l >= 0, h >= 0, n >= 1

cumsum-blocks-twice: A[*a n]  extra o i  q in 2|4
  cumsum(A, n)  ==  merge(cumsum(split(A, n, o, i(q)), i) + cumsum(B, o), o, i, n)
  with B = sum(split(A, n, o, i(q)), i)
  if n % q == 0

sum-of-products: A[*a *k]  B[*a *k]
  sum(A, k) * sum(B, k)  ==  sum(A * sum(A * B, k), k)

variance-unshifted: A[*a *k]
  sum(square(A), k)  ==  square(sum(A, k))

min-as-negated-min: A[*a *k]
  min(A, k)  ==  -min(-A, k)
"""
