"""Choices."""

RULES = """
select-of-equals: P[*a]  A[*a]
  where(P, A, A)  ==  A
  source XLA select/1: Select(P, A, A) => A

select-true: A[*a]  B[*a]
  where(True, A, B)  ==  A
  source XLA select/2: Select(True, A, B) => A

select-false: A[*a]  B[*a]
  where(False, A, B)  ==  B
  source XLA select/3: Select(False, A, B) => B

select-of-not: P[*a]  A[*a]  B[*a]
  where(invert(P), A, B)  ==  where(P, B, A)
  source XLA select/4: Select(Not(P), A, B) => Select(P, B, A)
"""
