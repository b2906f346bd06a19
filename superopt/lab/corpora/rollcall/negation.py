"""Double negation."""

RULES = """
not-of-not: P[*a]
  invert(invert(P))  ==  P
  source XLA negation/1: Not(Not(A)) => A

negation-of-negation: A[*a]
  -(-A)  ==  A
  source XLA negation/2: Negate(Negate(A)) => A
"""
