"""Products: split, swapped, associated, empty, as sums."""

RULES = """
dot-of-concats: X[*b *m *k i]  Y[*b *m *k i2]  C[*b *k *n i]  D[*b *k *n i2]  extra j
  dot(concat(X, Y, i), concat(C, D, i), i, k)
    == sum(concat(unit(dot(X, C, i, k), j), unit(dot(Y, D, i, k), j), j), j)
  source XLA dot/1: Dot(Concat(X, Y), Concat(C, D)) => Reduce(Concat(Broadcast(Dot(X, C)), Broadcast(Dot(Y, D))))

dot-swapped: A[*b *m *k]  B[*b *k *n]
  dot(A, B, k)  ==  dot(B, A, k)
  source XLA dot/2: Dot(A, B) => Dot(B, A)

dot-to-the-left: A[*b *m *k]  B[*b *k *l]  C[*b *l *n]
  dot(A, dot(B, C, l), k)  ==  dot(dot(A, B, k), C, l)
  source XLA dot/3: Dot(A, Dot(B, C)) => Dot(Dot(A, B), C)

dot-without-contraction: A[*b *m]  B[*b *n]
  dot(A, B)  ==  A * B
  source XLA dot/4: Dot(A, B) => Mul(Broadcast(A), Broadcast(B)) when nothing is contracted

dot-over-nothing: A[*b *m *k z]  B[*b *k *n z]
  dot(A, B, k, z)  ==  bcast(0, b, m, n)
  if z == 0
  source XLA dot/5: Dot(A, B) => 0 when one of the dimensions is 0

dot-as-sum: A[*b *m *k]  B[*b *k *n]
  dot(A, B, k)  ==  sum(A * B, k)
  source XLA dot/6: Dot(A, B) => Reduce(Mul(Broadcast(Transpose(A)), Broadcast(Transpose(B))))
"""
