"""Elementwise algebra: scales and biases move and meet where they are frozen; factoring; selection."""

RULES = """
add-assoc-frozen: A[*a]  B[*a]  C[*a]
  (A + B) + C  ==  A + (B + C)
  prefer frozen(B) and frozen(C)

mul-assoc-frozen: A[*a]  S[*a]  R[*a]
  (A * S) * R  ==  A * (S * R)
  prefer frozen(S) and frozen(R)

scale-of-bias: A[*a]  B[*a]  S[*a]
  (A + B) * S  ==  A * S + B * S
  prefer frozen(B) and frozen(S)

affine-collapse: A[*a]  M[*a]  S[*a]  B[*a]
  (A - M) * S + B  ==  A * S + (B - M * S)
  prefer frozen(M) and frozen(S) and frozen(B)

bias-difference: A[*a]  M[*a]  B[*a]
  (A + M) - B  ==  A + (M - B)
  prefer frozen(M) and frozen(B)

div-frozen: A[*a]  B[*a]
  A / B  ==  A * (1 / B)
  prefer frozen(B)

div-by-part: A[*a *k]  S[*a]
  A / S  ==  A * (1 / S)
  prefer prod(k) > 1

div-by-sqrt: A[*a]  B[*a]
  A / sqrt(B)  ==  A * rsqrt(B)

rsqrt-by-sqrt: A[*a]
  rsqrt(A)  ==  1 / sqrt(A)

div-div: A[*a]  B[*a]  C[*a]
  (A / B) / C  ==  A / (B * C)

mul-div: A[*a]  B[*a]  C[*a]
  (A / B) * C  ==  A * (C / B)
  prefer frozen(B) and frozen(C)

factor-common: A[*a]  B[*a]  C[*a]
  A * C + B * C  ==  (A + B) * C
  mode near

add-assoc: A[*a]  B[*a]  C[*a]
  (A + B) + C  ==  A + (B + C)
  mode near

mul-assoc: A[*a]  B[*a]  C[*a]
  (A * B) * C  ==  A * (B * C)
  mode near

log-after-exp: A[*a]
  log(exp(A))  ==  A

log-of-quotient: X[*a *k]  S[*a]
  log(exp(X) / S)  ==  X - log(S)

log-of-product: X[*a]  S[*a]
  log(exp(X) * S)  ==  X + log(S)

neg-of-product: A[*a]  B[*a]
  -(A * B)  ==  A * (-B)
  prefer frozen(B)

neg-of-difference: A[*a]  B[*a]
  -(A - B)  ==  B - A

select-same: P[*a]  A[*a]
  where(P, A, A)  ==  A

select-ew: f/1  P[*a]  A[*a]  B[*a]
  where(P, f(A), f(B))  ==  f(where(P, A, B))

exp-product: A[*a]  B[*a]
  exp(A) * exp(B)  ==  exp(A + B)
  mode near

power-2: A[*a]
  pow(A, 2)  ==  square(A)

power-3: A[*a]
  pow(A, 3)  ==  square(A) * A

power-4: A[*a]
  pow(A, 4)  ==  square(square(A))

power-5: A[*a]
  pow(A, 5)  ==  square(square(A)) * A

power-6: A[*a]
  pow(A, 6)  ==  square(square(A) * A)

power-7: A[*a]
  pow(A, 7)  ==  square(square(A) * A) * A

power-8: A[*a]
  pow(A, 8)  ==  square(square(square(A)))
"""
