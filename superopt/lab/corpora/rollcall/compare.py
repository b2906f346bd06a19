"""Comparisons of a tensor with itself: over finite values (a NaN is unequal to itself), and over integers."""

RULES = """
gt-of-itself: A[*a]
  gt(A, A)  ==  bcast(False, a)
  source XLA compare/1: Gt(A, A) = False

lt-of-itself: A[*a]
  lt(A, A)  ==  bcast(False, a)
  source XLA compare/2: Lt(A, A) = False

ne-of-itself: A[*a]
  ne(A, A)  ==  bcast(False, a)
  source XLA compare/3: Ne(A, A) = False

ge-of-itself: A[*a]
  ge(A, A)  ==  bcast(True, a)
  source XLA compare/4: Ge(A, A) = True

le-of-itself: A[*a]
  le(A, A)  ==  bcast(True, a)
  source XLA compare/5: Le(A, A) = True

eq-of-itself: A[*a]
  eq(A, A)  ==  bcast(True, a)
  source XLA compare/6: Eqv(A, A) = True
"""
