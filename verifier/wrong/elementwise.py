"""Elementwise algebra: domains, order, divisors."""

RULES = """
sqrt-of-product: A[*a]  B[*a]
  sqrt(A * B)  ==  sqrt(A) * sqrt(B)

silu-as-exp: A[*a]
  A * logistic(A)  ==  A * exp(A)
  source Mirage: one random point in a finite field takes them for equal

clamp-reordered: A[*a]  L[*a]  H[*a]
  minimum(maximum(A, L), H)  ==  maximum(minimum(A, H), L)

new-divisor: A[*a]  B[*a]
  A + (B - B)  ==  A * B / B

square-root-of-square: A[*a]
  sqrt(square(A))  ==  A

log-of-square: A[*a]
  log(square(A))  ==  2 * log(A)

greater-as-not-less: A[*a]  B[*a]  C[*a]  D[*a]
  where(gt(A, B), C, D)  ==  where(lt(A, B), D, C)

halved-and-doubled: A[*a]
  A / 2 * 2  ==  A
  dtype int

remainder-of-sum: A[*a]  c in int
  rem(A + num(c), num(c))  ==  rem(A, num(c))
  if c >= 1
  mode proof
  dtype int
"""
