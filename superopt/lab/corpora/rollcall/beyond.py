"""XLA rules outside TensorRight's language: other reducers, windows, reshapes, gathers, prefix sums, more functions."""

RULES = """
max-of-concat: A[*a *k n]  B[*a *k n2]
  max(concat(A, B, n), n, k)  ==  maximum(max(A, n, k), max(B, n, k))
  source XLA beyond: Reduce-max(Concat(A, B)) => Max(Reduce-max(A), Reduce-max(B))

min-of-concat: A[*a *k n]  B[*a *k n2]
  min(concat(A, B, n), n, k)  ==  minimum(min(A, n, k), min(B, n, k))
  source XLA beyond: Reduce-min(Concat(A, B)) => Min(Reduce-min(A), Reduce-min(B))

prod-of-products: A[*a *k]  B[*a *k]
  prod(A * B, k)  ==  prod(A, k) * prod(B, k)
  source XLA beyond: Reduce-multiply(Mul(A, B)) => Mul(Reduce-multiply(A), Reduce-multiply(B))

max-of-negation: A[*a *k]
  max(-A, k)  ==  -min(A, k)
  source XLA beyond: Reduce-max(Neg(A)) => Neg(Reduce-min(A))

max-of-scaled: A[*a *k]  S[*a]
  max(A * S, k)  ==  max(A, k) * S
  if k >= 1
  given ge(S, 0)
  mode proof
  source XLA beyond: Reduce-max(Mul(A, Broadcast(S))) => Mul(Reduce-max(A), S) of scales that are not negative

min-of-exponentially-scaled: A[*a *k]  S[*a]
  min(A * exp(S), k)  ==  min(A, k) * exp(S)
  if k >= 1
  mode proof
  source XLA beyond: Reduce-min(Mul(A, Broadcast(Exp(S)))) => Mul(Reduce-min(A), Exp(S))

max-of-broadcast: A[*a]  extra *k
  max(bcast(A, k), k)  ==  A
  if k >= 1
  source XLA beyond: Reduce-max(Broadcast(A)) => A

max-of-low-pad: X[*a *k]
  max(pad(X, -inf, k(l, h, i)), k)  ==  max(X, k)
  if l >= 0, h >= 0
  source XLA beyond: Reduce(Pad(A, neutral element)) => Reduce(A)

sum-of-pad: X[*a *k]
  sum(pad(X, 0, k(l, h, i)), k)  ==  sum(X, k)
  if l >= 0, h >= 0
  source XLA beyond: Reduce(Pad(A, neutral element)) => Reduce(A)

reduce-of-reverse: R in sum|max|min|prod  X[*a *k]
  R(rev(X, k), k)  ==  R(X, k)
  source XLA beyond: Reduce(Reverse(A)) => Reduce(A)

reduce-window-of-one: X[*b *s]
  wsum(X, s(1, t))  ==  slice(X, s(0, s, t))
  source XLA beyond: ReduceWindow of size 1 => Slice

reduce-window-of-all: X[*b *s]
  wmax(X, s(w))  ==  unit(max(X, s), s)
  if w == s
  source XLA beyond: ReduceWindow over everything => Reduce

pad-into-max-window: X[*b *s]
  wmax(pad(X, -inf, s(l, h)), s(w, t, p, q))  ==  wmax(X, s(w, t, p + l, q + h))
  if l >= 0, h >= 0
  source XLA beyond: ReduceWindow(Pad(A, neutral element)) => ReduceWindow(A) with more padding

pad-into-sum-window: X[*b *s]
  wsum(pad(X, 0, s(l, h)), s(w, t, p, q))  ==  wsum(X, s(w, t, p + l, q + h))
  if l >= 0, h >= 0
  source XLA beyond: ReduceWindow(Pad(A, neutral element)) => ReduceWindow(A) with more padding

max-windows-composed: X[*b s]
  wmax(wmax(X, s(w)), s(v))  ==  wmax(X, s(w + v - 1))
  source XLA beyond: ReduceWindow(ReduceWindow(A)) => ReduceWindow(A)

sum-window-by-axes: X[*b u s]
  wsum(X, u(w, t, a, b1), s(v, y, c, d))  ==  wsum(wsum(X, u(w, t, a, b1)), s(v, y, c, d))
  source XLA beyond: ReduceWindow over two axes => two ReduceWindows

sum-window-as-conv: X[*b *g *s]
  wsum(X, s(w, t, p, q))  ==  conv(X, bcast(1, g, s(w)), s(t, p, q))
  mode proof
  source XLA beyond: ReduceWindow-add => Convolution with ones

window-of-scaled: X[*b *g *s]  S[*g]
  wsum(X * S, s(w, t, p, q))  ==  wsum(X, s(w, t, p, q)) * S
  source XLA beyond: ReduceWindow(Mul(A, Broadcast(S))) => Mul(ReduceWindow(A), Broadcast(S))

prefix-sum-of-scaled: A[*a n]  S[*a]
  cumsum(A * S, n)  ==  cumsum(A, n) * S
  source XLA beyond: ReduceWindow (prefix sum) of a scaled operand

prefix-sum-is-a-window: A[*a n]
  cumsum(A, n)  ==  wsum(A, n(n, 1, n - 1, 0))
  if n >= 1
  source XLA beyond: CumulativeSum <=> ReduceWindow

split-then-merge: A[*a n]  extra o i  q in 2|4
  merge(split(A, n, o, i(q)), o, i, n)  ==  A
  if n % q == 0
  mode proof
  source XLA beyond: Reshape(Reshape(A)) => A

merge-then-split: A[*a o i]  extra n u v
  split(merge(A, o, i, n), n, u, v(i))  ==  ren(ren(A, o, u), i, v)
  if i >= 1
  mode proof
  source XLA beyond: Reshape(Reshape(A)) => A, through a merged axis

reshape-of-binary: f/2  A[*a o i]  B[*a o i]  extra n
  f(merge(A, o, i, n), merge(B, o, i, n))  ==  merge(f(A, B), o, i, n)
  mode proof
  source XLA beyond: Binary(Reshape(A), Reshape(B)) => Reshape(Binary(A, B))

sum-of-reshape: A[*a o i]  extra n
  sum(merge(A, o, i, n), n)  ==  sum(A, o, i)
  if i >= 1
  mode proof
  source XLA beyond: Reduce(Reshape(A)) => Reduce(A)

max-of-reshape: A[*a o i]  extra n
  max(merge(A, o, i, n), n)  ==  max(A, o, i)
  if i >= 1
  mode proof
  source XLA beyond: Reduce(Reshape(A)) => Reduce(A)

reshape-of-broadcast: A[*a]  extra o i n
  merge(bcast(A, o, i), o, i, n)  ==  bcast(A, n(o * i))
  mode proof
  source XLA beyond: Reshape(Broadcast(A)) => Broadcast(A)

dot-over-reshaped: A[*b *m o i]  B[*b o i *n]  extra k
  dot(merge(A, o, i, k), merge(B, o, i, k), k)  ==  dot(A, B, o, i)
  if i >= 1
  mode proof
  source XLA beyond: Dot(Reshape(A), Reshape(B)) => Dot(A, B) over more dimensions

reshape-reassociated: A[*a o i j]  extra m n p
  merge(merge(A, o, i, n), n, j, m)  ==  merge(merge(A, i, j, p), o, p, m)
  if i >= 1, j >= 1
  mode proof
  source XLA beyond: Bitcast and Reshape chains by the flat index

slice-of-reshape: A[*a o i]  extra n
  slice(merge(A, o, i, n), n(s * i, e * i))  ==  merge(slice(A, o(s, e)), o, i, n)
  if 0 <= s, s <= e, e <= o, i >= 1
  mode proof
  source XLA beyond: Slice(Reshape(A)) => Reshape(Slice(A)) of whole rows

gather-of-binary-rows: f/2  T[n *d]  U[n *d]  I[*b]
  f(take(T, I, n), take(U, I, n))  ==  take(f(T, U), I, n)
  source XLA beyond: Binary(Gather(A, i), Gather(B, i)) => Gather(Binary(A, B), i)

gather-of-concat-of-columns: T[n a]  U[n a2]  I[*b]
  take(concat(T, U, a), I, n)  ==  concat(take(T, I, n), take(U, I, n), a)
  source XLA beyond: Gather of a concatenation beside the gathered dimension

gather-of-slice: T[n *d]  I[*b]
  take(slice(T, d(s, e, t)), I, n)  ==  slice(take(T, I, n), d(s, e, t))
  source XLA beyond: Gather(Slice(A)) => Slice(Gather(A))

gather-of-gather: T[n *d]  J[m]  I[*b]
  take(take(T, J, n), I, m)  ==  take(T, take(J, I, m), n)
  source XLA beyond: Gather(Gather(A, j), i) => Gather(A, Gather(j, i))

gather-into-dot: T[n *k]  I[*b]  W[*k *m]
  dot(take(T, I, n), W, k)  ==  take(dot(T, W, k), I, n)
  source XLA beyond: Dot(Gather(A, i), B) => Gather(Dot(A, B), i)

softmax-shift: X[*b *k]  C[*b]
  exp(X - C) / sum(exp(X - C), k)  ==  exp(X) / sum(exp(X), k)
  source XLA beyond: softmax is invariant under a shift

quotient-of-exponentials: A[*a]  B[*a]
  exp(A) / exp(B)  ==  exp(A - B)
  source XLA beyond: Div(Exp(A), Exp(B)) => Exp(Sub(A, B))

div-by-exponential: A[*a]  B[*a]
  A / exp(B)  ==  A * exp(-B)
  source XLA beyond: Div(A, Exp(B)) => Mul(A, Exp(Neg(B)))

log-of-exponential: A[*a]
  log(exp(A))  ==  A
  source XLA beyond: Log(Exp(A)) => A

div-by-root: A[*a]  B[*a]
  A / sqrt(B)  ==  A * rsqrt(B)
  source XLA beyond: Div(A, Sqrt(B)) => Mul(A, Rsqrt(B))

power-of-two: A[*a]
  A ** 2  ==  A * A
  source XLA beyond: Power(A, 2) => Mul(A, A)

power-of-minus-one: A[*a]
  A ** (-1)  ==  1 / A
  source XLA beyond: Power(A, -1) => Div(1, A)

logistic-written-out: A[*a]
  logistic(A)  ==  1 / (1 + exp(-A))
  source XLA beyond: Logistic expanded

abs-as-max: A[*a]
  maximum(A, -A)  ==  abs(A)
  source XLA beyond: Max(A, Neg(A)) => Abs(A)

abs-of-abs: A[*a]
  abs(abs(A))  ==  abs(A)
  source XLA beyond: Abs(Abs(A)) => Abs(A)

min-below-max: A[*a]  B[*a]
  minimum(A, maximum(A, B))  ==  A + (B - B)
  source XLA beyond: Min(A, Max(A, B)) => A

iota-compared-with-itself: extra *a n
  eq(bcast(iota(n), a), bcast(iota(n), a))  ==  bcast(True, a, n)
  mode proof
  source XLA beyond: Compare(Iota, Iota) => Constant

iota-above-its-range: c in int  extra *a n
  lt(bcast(iota(n), a), c)  ==  bcast(True, a, n)
  if c >= n
  mode proof
  source XLA beyond: Compare(Iota, Const) => Constant by the range
"""
