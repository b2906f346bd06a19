"""Transposes.

An axis has a name and no position, so a transpose is the identity on the rule's tensors and a permutation of references
in the program.  That makes these two hold; see docs/trust.md.
"""

RULES = """
transpose-of-transpose: A[*a]
  view(view(A))  ==  view(A)
  source XLA relabel/1: Transpose(Transpose(A)) => Transpose(A)

transpose-by-identity: A[*a]
  view(A)  ==  A
  source XLA relabel/2: Transpose(A) => A
"""
