"""Windowed and prefix reductions: shifted, separable."""

RULES = """
wmax-shifts: X[*b *s]
  wmax(X, s(w, t, p, q))  ==  maxi(r < w, slice(pad(X, -inf, s(p, q)), s(r, s + p + q - w + r + 1, t)))
  prefer prod(w) <= 25
  mode macro

wsum-shifts: X[*b *s]
  wsum(X, s(w, t, p, q))  ==  sigma(r < w, slice(pad(X, 0, s(p, q)), s(r, s + p + q - w + r + 1, t)))
  prefer prod(w) <= 25
  mode macro

wsum-all: X[*b *s]
  wsum(X, s(w, t))  ==  unit(sum(X, s), s)
  if w == s

wsum-of-scale: X[*b *g *s]  S[*g]
  wsum(X * S, s(w, t, p, q))  ==  wsum(X, s(w, t, p, q)) * S

sliding-sum: X[*b n]  extra i j
  sum(take(X, iota(i) + iota(j), n), j)  ==  ren(wsum(slice(X, n(0, i + j - 1)), n(j)), n, i)
  if i + j <= n + 1, i >= 1, j >= 1

sliding-maximum: X[*b n]  extra i j
  max(take(X, iota(i) + iota(j), n), j)  ==  ren(wmax(slice(X, n(0, i + j - 1)), n(j)), n, i)
  if i + j <= n + 1, i >= 1, j >= 1

windows-times-weights: X[*b n]  W[j *m]  extra i
  dot(take(X, iota(i) + iota(j), n), W, j)  ==  ren(conv(slice(X, n(0, i + j - 1)), ren(W, j, n), n(1)), n, i)
  if i + j <= n + 1, i >= 1, j >= 1

wsum-of-halves: X[*b s]
  wsum(X, s(w))  ==  slice(Y, s(0, s - w + 1)) + slice(Y, s(w // 2, s - w // 2 + 1))
  with Y = wsum(X, s(w // 2))
  if w % 2 == 0
  prefer w >= 16
  source Hillis and Steele 1986

wsum-of-odd-length: X[*b s]
  wsum(X, s(w))  ==  slice(wsum(X, s(w - 1)), s(0, s - w + 1)) + slice(X, s(w - 1, s))
  if w >= 2
  prefer w >= 16 and w % 2 == 1

wmax-of-halves: X[*b s]
  wmax(X, s(w))  ==  maximum(slice(Y, s(0, s - w + 1)), slice(Y, s(w // 2, s - w + w // 2 + 1)))
  with Y = wmax(X, s(w - w // 2))
  prefer w >= 16

cumsum-blocked: q in 8|16|32|64  A[*a n]  extra o i
  cumsum(A, n)  ==  merge(cumsum(S, i) + (cumsum(T, o) - T), o, i, n)
  with S = split(A, n, o, i(q))
  with T = sum(S, i)
  if n % q == 0
  prefer n >= 256 and q < n
  source Blelloch 1990

cumsum-as-dot: A[*a n]  extra j
  cumsum(A, n)  ==  dot(ren(A, n, j), cumsum(diag(bcast(1, n), n, j), n), j)
  prefer 8 <= n and n <= 256

entry-of-sums: A[*a n]
  slice(cumsum(A, n), n(s, e))  ==  unit(sum(slice(A, n(0, e)), n), n)
  if e == s + 1

entry-of-products: A[*a n]
  slice(cumprod(A, n), n(s, e))  ==  unit(prod(slice(A, n(0, e)), n), n)
  if e == s + 1

entry-of-maxima: A[*a n]
  slice(cummax(A, n), n(s, e))  ==  unit(max(slice(A, n(0, e)), n), n)
  if e == s + 1

entry-of-minima: A[*a n]
  slice(cummin(A, n), n(s, e))  ==  unit(min(slice(A, n(0, e)), n), n)
  if e == s + 1

wmax-separable: X[*b u s]
  wmax(X, u(w, t, a, b1), s(v, y, c, d))  ==  wmax(wmax(X, u(w, t, a, b1)), s(v, y, c, d))
  prefer w > 1 and v > 1

wsum-separable: X[*b u s]
  wsum(X, u(w, t, a, b1), s(v, y, c, d))  ==  wsum(wsum(X, u(w, t, a, b1)), s(v, y, c, d))
  prefer w > 1 and v > 1
"""
