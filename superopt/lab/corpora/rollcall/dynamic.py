"""Dynamic slices and updates: starts are any integers, clipped into range as the operation does."""

RULES = """
dynamic-slice-is-slice: A[*a *n]
  dynslice(A, n(s, m))  ==  slice(A, n(min(max(s, 0), n - m), min(max(s, 0), n - m) + m))
  mode proof
  source XLA dynamic/1: DynamicSlice(A) => Slice(A)

dynamic-slice-of-all: A[*a *n]
  dynslice(A, n(i, m))  ==  A
  if m == n
  mode proof
  source XLA dynamic/2: DynamicSlice(A, ...) => A, the output has the shape of the input

dynamic-slice-of-broadcast: A[*a *n]  extra *u
  dynslice(bcast(A, u), n(i, m), u(j, v))  ==  bcast(dynslice(A, n(i, m)), u(v))
  mode proof
  source XLA dynamic/3: DynamicSlice(Broadcast(A), ...) => Broadcast(DynamicSlice(A, ...))

dynamic-slice-of-transpose: A[*a *n]
  dynslice(view(A), n(i, m))  ==  view(dynslice(A, n(i, m)))
  mode proof
  source XLA dynamic/4: DynamicSlice(Transpose(A), ...) => Transpose(DynamicSlice(A, ...))

dynamic-slice-of-dynamic-slice: A[*a *n]
  dynslice(dynslice(A, n(i, m)), n(j, p))  ==  dynslice(A, n(min(max(i, 0), n - m) + min(max(j, 0), m - p), p))
  mode proof
  source XLA dynamic/5: DynamicSlice(DynamicSlice(A, ...), ...) => DynamicSlice(A, ...), outer and inner starts clipped

dynamic-slice-of-iota: extra *a n
  dynslice(bcast(iota(n), a), n(i, m))  ==  bcast(num(min(max(i, 0), n - 1)), a, n(1))
  if m == 1
  mode proof
  source XLA dynamic/5: DynamicSlice(Iota) => index

add-of-dynamic-update-of-zero: A[*a *n]  B[*a *n2]
  A + dynupdate(bcast(0, a, n), B, n(i))  ==  dynupdate(A, dynslice(A, n(i, n2)) + B, n(i))
  mode proof
  source XLA dynamic/6: Add(A, DynamicUpdateSlice(Broadcast(0), B)) => DynamicUpdateSlice(A, ...)

dynamic-update-of-constant-is-pad: V[]  B[*a *n2]  extra *n
  dynupdate(bcast(V, a, n), B, n(i))  ==  pad(B, V, n(min(max(i, 0), n - n2), n - n2 - min(max(i, 0), n - n2)))
  mode proof
  source XLA dynamic/7: DynamicUpdateSlice(Broadcast(Const), A, ...) => Pad(A, Const, ...)

dynamic-update-of-all: A[*a *n]  B[*a *n2]
  dynupdate(A, B, n(i))  ==  B
  if n2 == n
  mode proof
  source XLA dynamic/8: DynamicUpdateSlice(A, B, 0) => B

dynamic-update-of-updated-slice: A[*a *n]  B[*a *n2]
  dynupdate(A, dynupdate(dynslice(A, n(i, m)), B, n(j)), n(i))
    == dynupdate(A, B, n(min(max(i, 0), n - m) + min(max(j, 0), m - n2)))
  mode proof
  source XLA dynamic/9: DynamicUpdateSlice(A, DynamicUpdateSlice(DynamicSlice(A), B), ...) => DynamicUpdateSlice(A, B)
"""
