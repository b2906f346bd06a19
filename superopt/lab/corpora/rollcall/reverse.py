"""Reversals."""

RULES = """
reverse-of-one: A[*a *n]
  rev(A, n)  ==  A
  if n <= 1
  source XLA reverse/1: Reverse(A, dims) => A

reverse-twice: A[*a *n]
  rev(rev(A, n), n)  ==  A
  source XLA reverse/2: Reverse(Reverse(A, dims1), dims2) => A

reverse-of-reverse: A[*a *m *n]
  rev(rev(A, m), n)  ==  rev(A, m, n)
  source XLA reverse/3: Reverse(Reverse(A, dims1), dims2) => Reverse(A, disjoint union of dims1 and dims2)

reverse-of-binary: f/2  A[*a *n]  C[*a]
  rev(f(A, C), n)  ==  f(rev(A, n), C)
  source XLA reverse/4: Reverse(Binary(A, Const)) => Binary(Reverse(A), Const)
"""
