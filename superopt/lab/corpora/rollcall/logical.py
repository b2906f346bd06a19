"""Truth values, and comparisons with maxima."""

RULES = """
or-true: P[*a]
  logical_or(P, True)  ==  bcast(True, a)
  source XLA logical/1: Or(A, True) => True

true-or: P[*a]
  logical_or(True, P)  ==  bcast(True, a)
  source XLA logical/2: Or(True, A) => True

or-false: P[*a]
  logical_or(P, False)  ==  P
  source XLA logical/3: Or(A, False) => A

false-or: P[*a]
  logical_or(False, P)  ==  P
  source XLA logical/4: Or(False, A) => A

and-true: P[*a]
  logical_and(P, True)  ==  P
  source XLA logical/5: And(A, 1) => A

true-and: P[*a]
  logical_and(True, P)  ==  P
  source XLA logical/6: And(1, A) => A

and-false: P[*a]
  logical_and(P, False)  ==  bcast(False, a)
  source XLA logical/7: And(A, 0) => 0

false-and: P[*a]
  logical_and(False, P)  ==  bcast(False, a)
  source XLA logical/8: And(0, A) => 0

and-of-upper-bounds: A[*a *b]  C[*a]  D[*a]
  logical_and(lt(A, C), gt(D, A))  ==  lt(A, minimum(C, D))
  source XLA logical/9: And(A < Const, Const1 > A) => Lt(A, min(Const, Const1))

max-above-second: A[*a]  B[*a]
  gt(maximum(A, B), B)  ==  gt(A, B)
  source XLA logical/10: Gt(Max(A, B), B) => Gt(A, B)

max-above-first: A[*a]  B[*a]
  gt(maximum(A, B), A)  ==  gt(B, A)
  source XLA logical/11: Gt(Max(A, B), A) => Gt(B, A)
"""
