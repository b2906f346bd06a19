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

sum-of-solutions: A[*b i k]  B[*b i *n]  C[*b i *n]
  solve(A, B, i, k) + solve(A, C, i, k)  ==  solve(A, B + C, i, k)

difference-of-solutions: A[*b i k]  B[*b i *n]  C[*b i *n]
  solve(A, B, i, k) - solve(A, C, i, k)  ==  solve(A, B - C, i, k)

solutions-merge: A[*b i k]  B[*b i *p n]  C[*b i *p n2]
  solve(A, B, i, k), solve(A, C, i, k)  ==  slice(Y, n(0, n)), slice(Y, n(n, n + n2))
  with Y = solve(A, concat(B, C, n), i, k)
  mode merge
"""
