"""Linear systems: solutions in place of inverses, with as few right sides as there are, each matrix factorised once."""

RULES = """
product-with-inverse: A[*b i k]  B[*b i *n]
  dot(inverse(A, i, k), B, i)  ==  solve(A, B, i, k)
  prefer live(A)

inverse-of-identity: A[i k]  extra n
  solve(A, where(eq(iota(i), iota(n)), 1, 0), i, k)  ==  ren(inverse(A, i, k), i, n)
  if i == n

solution-times-matrix: A[*b *c i k]  B[*b *c *d i *m *n]  C[*b *d *n *p]
  dot(solve(A, B, i, k), C, n)  ==  solve(A, dot(B, C, n), i, k)
  prefer prod(p) < prod(n)

solution-of-product: A[*b *c i k]  B[*b *c *d i *m *n]  C[*b *d *n *p]
  solve(A, dot(B, C, n), i, k)  ==  dot(solve(A, B, i, k), C, n)
  prefer prod(n) < prod(p)

matrix-times-solution: A[*b i k]  B[*b *d i *n]  C[*b *d k *p]
  dot(C, solve(A, B, i, k), k)  ==  dot(solve(A, C, k, i), B, i)
  prefer prod(p) <= prod(n)

inverse-of-kronecker-product: A[*b i k]  B[*b j l]
  inverse(A * B, i, j, k, l)  ==  inverse(A, i, k) * inverse(B, j, l)
  if i == k, j == l
  prefer i > 1 and j > 1

solution-with-kronecker-product: A[*b i k]  B[*b j l]  Y[*b i j *n]
  solve(A * B, Y, i, j, k, l)  ==  solve(A, solve(B, Y, j, l), i, k)
  if i == k, j == l
  prefer i > 1 and j > 1

inverse-of-diagonal: D[*b i]  extra k
  inverse(where(eq(iota(i), iota(k)), D, 0), i, k)  ==  where(eq(iota(i), iota(k)), 1 / D, 0)

scaled-identity: S[*b]  extra i k
  where(eq(iota(i), iota(k)), 1, 0) * S  ==  where(eq(iota(i), iota(k)), S, 0)

solution-with-low-rank: U[*b i r]  V[*b r k]  S[*b]  B[*b i *n]  extra s
  solve(where(eq(iota(i), iota(k)), S, 0) + dot(U, V, r), B, i, k)
    == (X - dot(Z, solve(diag(bcast(S, r), r, s) + dot(V, Z, k), dot(V, X, k), r, s), s)) / S
  with X = ren(B, i, k)
  with Z = ren(ren(U, r, s), i, k)
  if r < i
  source Woodbury 1950

solution-with-diagonal-and-low-rank: U[*b i r]  V[*b r k]  D[*b i]  B[*b i *n]  extra s
  solve(where(eq(iota(i), iota(k)), D, 0) + dot(U, V, r), B, i, k)
    == X - dot(Z, solve(diag(bcast(1, r), r, s) + dot(V, Z, k), dot(V, X, k), r, s), s)
  with X = ren(B / D, i, k)
  with Z = ren(ren(U / D, r, s), i, k)
  given ne(D, 0)
  numerics range
  prefer r < i
  source Woodbury 1950

inverse-with-low-rank: U[*b i r]  V[*b r k]  S[*b]  extra s
  inverse(where(eq(iota(i), iota(k)), S, 0) + dot(U, V, r), i, k)
    == (diag(bcast(1, i), i, k) - dot(Z, solve(diag(bcast(S, r), r, s) + dot(V, Z, k), ren(V, k, i), r, s), s)) / S
  with Z = ren(ren(U, r, s), i, k)
  if r < i
  source Woodbury 1950

solution-with-sum-of-inverses: P[*b i k]  Q[*b i k]  B[*b k *n]  extra j
  solve(inverse(P, i, k) + inverse(Q, i, k), B, k, i)
    == dot(ren(P, k, j), solve(ren(P, k, j) + ren(Q, k, j), dot(Q, B, k), i, j), j)
  source Anderson and Duffin 1969

inverse-of-inverse: A[*b i k]
  inverse(inverse(A, i, k), k, i)  ==  A

solution-with-inverse: A[*b i k]  B[*b k *n]
  solve(inverse(A, i, k), B, k, i)  ==  dot(A, B, k)

matrix-times-its-solution: A[*b i k]  B[*b i *n]
  dot(A, solve(A, B, i, k), k)  ==  B

solution-of-matrix-product: A[*b i k]  B[*b k *n]
  solve(A, dot(A, B, k), i, k)  ==  B

sum-of-solutions: A[*b i k]  B[*b i *n]  C[*b i *n]
  solve(A, B, i, k) + solve(A, C, i, k)  ==  solve(A, B + C, i, k)

difference-of-solutions: A[*b i k]  B[*b i *n]  C[*b i *n]
  solve(A, B, i, k) - solve(A, C, i, k)  ==  solve(A, B - C, i, k)

solutions-merge: A[*b i k]  B[*b i *p n]  C[*b i *p n2]
  solve(A, B, i, k), solve(A, C, i, k)  ==  slice(Y, n(0, n)), slice(Y, n(n, n + n2))
  with Y = solve(A, concat(B, C, n), i, k)
  mode merge
"""
