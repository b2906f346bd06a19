"""Clamps; bounds may lack axes of the clamped tensor."""

RULES = """
clamp-of-clamp: A[*a *b]  L[*a]  H[*a]
  clamp(L, clamp(L, A, H), H)  ==  clamp(L, A, H)
  source XLA clamp/1: Clamp(c1, Clamp(c1, A, c2), c2) => Clamp(c1, A, c2)

max-of-min-is-clamp: A[*a *b]  L[*a]  H[*a]
  maximum(L, minimum(A, H))  ==  clamp(L, A, H)
  given le(L, H)
  mode proof
  source XLA clamp/2: Max(Broadcast(c1), Min(A, Broadcast(c2))) => Clamp(c1, A, c2)

min-of-max-is-clamp: A[*a *b]  L[*a]  H[*a]
  minimum(H, maximum(A, L))  ==  clamp(L, A, H)
  source XLA clamp/3: Min(Broadcast(c1), Max(A, Broadcast(c2))) => Clamp(c1, A, c2)
"""
