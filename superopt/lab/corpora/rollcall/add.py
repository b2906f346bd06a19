"""Sums with constants."""

RULES = """
add-of-two-constants: A[*a]  C[*a]  D[*a]
  (A + C) + D  ==  A + (C + D)
  source XLA add/1: Add(Add(A, c1), c2) => Add(A, Add(c1, c2))

add-zero-right: A[*a]
  A + 0  ==  A
  source XLA add/2: Add(A, 0) => A

add-zero-left: A[*a]
  0 + A  ==  A
  source XLA add/3: Add(0, A) => A

add-constant-to-the-right: A[*a]  C[*a]
  C + A  ==  A + C
  source XLA add/4: Add(Const, A) => Add(A, Const)
"""
