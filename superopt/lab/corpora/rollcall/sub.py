"""Differences."""

RULES = """
sub-zero: A[*a]
  A - 0  ==  A
  source XLA sub/1: Sub(A, 0) => A

sub-of-constant: A[*a *b]  C[*a]
  A - C  ==  A + (-C)
  source XLA sub/2: Sub(A, Const) => Add(A, Neg(Const))

sub-of-itself: A[*a]
  A - A  ==  bcast(0, a)
  source XLA sub/3: Sub(A, A) => 0
"""
