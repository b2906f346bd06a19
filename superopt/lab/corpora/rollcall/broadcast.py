"""Broadcasts: of sums and products, moved, and of broadcasts."""

RULES = """
add-of-broadcasts: A[*a]  B[*a]  extra *n
  bcast(A, n) + bcast(B, n)  ==  bcast(A + B, n)
  source XLA broadcast/1: Add(Broadcast(A), Broadcast(B)) => Broadcast(Add(A, B))

mul-of-broadcasts: A[*a]  B[*a]  extra *n
  bcast(A, n) * bcast(B, n)  ==  bcast(A * B, n)
  source XLA broadcast/2: Mul(Broadcast(A), Broadcast(B)) => Broadcast(Mul(A, B))

transpose-of-broadcast-scalar: V[]  extra *a
  view(bcast(V, a))  ==  bcast(V, a)
  source XLA broadcast/3: Transpose(Broadcast(Scalar)) => Broadcast(Scalar)

reverse-of-broadcast-scalar: V[]  extra *a *n
  rev(bcast(V, a, n), n)  ==  bcast(V, a, n)
  source XLA broadcast/4: Reverse(Broadcast(Scalar)) => Broadcast(Scalar)

slice-of-broadcast-scalar: V[]  extra *n
  slice(bcast(V, n), n(s, e, t))  ==  bcast(V, n((e - s + t - 1) // t))
  source XLA broadcast/5: Slice(Broadcast(Scalar)) => Broadcast(Scalar)

dynamic-slice-of-broadcast-scalar: V[]  extra *n
  dynslice(bcast(V, n), n(i, m))  ==  bcast(V, n(m))
  mode proof
  source XLA broadcast/6: DynamicSlice(Broadcast(Scalar)) => Broadcast(Scalar)

broadcast-of-iota: extra *a n *m
  bcast(bcast(iota(n), a), m)  ==  bcast(iota(n), a, m)
  mode proof
  source XLA broadcast/7: Broadcast(Iota) => Iota

broadcast-of-broadcast: A[*a]  extra *m *n
  bcast(bcast(A, m), n)  ==  bcast(A, m, n)
  source XLA broadcast/8: Broadcast(Broadcast(A, shape, dims), shape2, dims2) => Broadcast(A, shape3, dims3)
"""
