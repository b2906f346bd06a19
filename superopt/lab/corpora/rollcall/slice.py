"""Slices: of everything, of constants, broadcasts, pads, slices, concatenations and reversals."""

RULES = """
slice-of-all: A[*a *n]
  slice(A, n(0, n))  ==  A
  source XLA slice/1: Slice(A) => A

slice-of-constant: c in int  extra *n
  slice(bcast(c, n), n(s, e, t))  ==  bcast(c, n((e - s + t - 1) // t))
  mode proof
  source XLA slice/2: Slice(Const) => Const

slice-beside-broadcast: A[*a *n]  extra *m
  slice(bcast(A, m), n(s, e, t))  ==  bcast(slice(A, n(s, e, t)), m)
  source XLA slice/3: Slice(Broadcast(A)) => Broadcast(Slice(A))

slice-undoes-pad: A[*a *n]  V[]
  slice(pad(A, V, n(l, h, i)), n(s, e, t))  ==  A
  if s == l, t == i + 1, e == l + n + (n - 1) * i
  source XLA slice/4: Slice(Pad(A)) => A

slice-of-low-padding: A[*a n]  V[]
  slice(pad(A, V, a(u, v, w), n(l, h, i)), a(x, y, z), n(s, e, t))
    == bcast(V, a((y - x + z - 1) // z), n((e - s + t - 1) // t))
  if e <= l
  source XLA slice/5: Slice(Pad(A, v)) => Broadcast(v)

slice-of-high-padding: A[*a n]  V[]
  slice(pad(A, V, a(u, v, w), n(l, h, i)), a(x, y, z), n(s, e, t))
    == bcast(V, a((y - x + z - 1) // z), n((e - s + t - 1) // t))
  if s >= l + max(0, n + (n - 1) * i)
  source XLA slice/5: Slice(Pad(A, v)) => Broadcast(v), at the other end

slice-inside-pad: A[*a *n]  V[]
  slice(pad(A, V, n(l, h)), n(s, e, t))  ==  slice(A, n(s - l, e - l, t))
  if s >= l, e <= l + n
  source XLA slice/6: Slice(Pad(A, v)) => Slice(A)

slice-of-slice: A[*a *n]
  slice(slice(A, n(s, e, t)), n(x, y, z))  ==  slice(A, n(s + t * x, min(e, s + t * y), t * z))
  if x < y
  source XLA slice/7: Slice(Slice(A)) => Slice(A)

slice-of-concat-is-second: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(n, n + n2))  ==  B
  source XLA slice/8: Slice(Concat(A, B), A.size, A.size + B.size) => B

slice-of-broadcast: A[*a]  extra *m
  slice(bcast(A, m), m(s, e, t))  ==  bcast(A, m((e - s + t - 1) // t))
  source XLA slice/9: Slice(Broadcast(A)) => Broadcast(A)

slice-of-concat-in-first: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e, t))  ==  slice(A, n(s, e, t))
  if e <= n
  source XLA slice/10: Slice(Concat(A, B)) => Slice(A)

slice-of-concat-in-second: A[*a n]  B[*a n2]
  slice(concat(A, B, n), n(s, e, t))  ==  slice(B, n(s - n, e - n, t))
  if s >= n
  source XLA slice/11: Slice(Concat(A, B)) => Slice(B)

slice-of-concat-past-first: A[*a n]  B[*a n2]  C[*a n3]
  slice(concat(A, B, C, n), n(s, e, t))  ==  slice(concat(B, C, n), n(s - n, e - n, t))
  if s >= n
  source XLA slice/12: Slice(Concat(A, B, C)) => Slice(Concat(B, C))

slice-of-reverse: A[*a *n]
  slice(rev(A, n), n(s, e, t))
    == rev(slice(A, n(n - s - 1 - ((e - s + t - 1) // t - 1) * t, n - s, t)), n)
  if s < e
  source XLA slice/13: Slice(Reverse(A, dims), start, stride, end) => Reverse(Slice(A, ...), dims)
"""
