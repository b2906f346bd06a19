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

power-three-quarters-as-two-roots: A[*a]
  pow(A, 0.75)  ==  sqrt(A) * sqrt(A)

negative-power-with-a-root-upside-down: A[*a]
  pow(A, -0.75)  ==  rsqrt(A) * sqrt(sqrt(A))

square-by-roots: A[*a]
  pow(A, 2)  ==  square(sqrt(A)) * square(sqrt(A))

square-by-half-powers: A[*a]
  pow(A, 2)  ==  pow(A, 2.5) / pow(A, 0.5)

half-power-of-square: A[*a]
  pow(square(A), 0.5)  ==  A

quarter-power-of-square: A[*a]
  pow(square(A), 0.25)  ==  sqrt(A)

half-power-of-product: A[*a]  B[*a]
  pow(A * B, 0.5)  ==  pow(A, 0.5) * pow(B, 0.5)

power-by-division-at-zero: A[*a]
  pow(A, 0.75)  ==  A * rsqrt(sqrt(A))

odd-power-by-even-one: A[*a]
  pow(A, 3)  ==  sqrt(A ** 6)

reciprocal-by-roots: A[*a]
  1 / A  ==  square(rsqrt(A))

root-in-another-branch: A[*a]  P[*a]
  where(P, sqrt(A), 1) + A  ==  where(P, sqrt(A), 1) + square(sqrt(A))

divisor-in-another-branch: A[*a]  P[*a]
  where(P, A, rsqrt(A))  ==  where(P, A * sqrt(A), 1) * rsqrt(A)
"""
