"""Concatenations: associated, of slices, of broadcasts."""

RULES = """
concat-list-of-two: A[*a n]  B[*a n2]  C[*a n3]
  concat(A, B, C, n)  ==  concat(A, B, n)
  if n3 == 0
  source XLA concat/1: ConcatList(A, B) => Concat(A, B)

concat-to-the-left: A[*a n]  B[*a n2]  C[*a n3]
  concat(A, concat(B, C, n), n)  ==  concat(concat(A, B, n), C, n)
  source XLA concat/2: Concat(A, Concat(B, C)) => Concat(Concat(A, B), C)

concat-list-of-three: A[*a n]  B[*a n2]  C[*a n3]
  concat(A, B, C, n)  ==  concat(A, concat(B, C, n), n)
  source XLA concat/3: ConcatList(A, B, C) => Concat(A, Concat(B, C))

concat-of-adjacent-slices: A[*a n]
  concat(slice(A, a(u, v, w), n(s, m)), slice(A, a(u, v, w), n(m, e)), n)  ==  slice(A, a(u, v, w), n(s, e))
  source XLA concat/4: Concat(Slice(A), Slice(A)) => Slice(A)

concat-of-adjacent-strided-slices: A[*a n]
  concat(slice(A, n(s, s + q * t, t)), slice(A, n(s + q * t, e, t)), n)  ==  slice(A, n(s, e, t))
  mode proof
  source XLA concat/4: Concat(Slice(A), Slice(A)) => Slice(A), with strides

concat-with-broadcast-is-low-pad: V[]  B[*a n2]  extra n
  concat(bcast(V, a, n), B, n)  ==  pad(B, V, n(n, 0))
  source XLA concat/5: Concat(Broadcast(Scalar), B) => Pad(B, scalar, low)

concat-with-broadcast-is-high-pad: A[*a n]  V[]  extra n2
  concat(A, bcast(V, a, n2), n)  ==  pad(A, V, n(0, n2))
  source XLA concat/6: Concat(A, Broadcast(Scalar)) => Pad(A, scalar, high)

concat-flattened: A[*a n]  B[*a n2]  C[*a n3]
  concat(A, concat(B, C, n), n)  ==  concat(A, B, C, n)
  source XLA concat/7: Concat(A, Concat(B, C)) => ConcatList(A, B, C)
"""
