"""Quotients over the reals, remainders over the integers of a machine."""

RULES = """
div-by-one: A[*a]
  A / 1  ==  A
  source XLA divmod/1: Div(A, 1) => A

div-by-constant: A[*a *b]  C[*a]
  A / C  ==  A * (1 / C)
  source XLA divmod/2: Div(A, Const) => Mul(A, 1 / Const)

div-of-quotients: A[*a]  B[*a]  C[*a]  D[*a]
  (A / B) / (C / D)  ==  (A * D) / (B * C)
  source XLA divmod/3: Divide(Divide(A, B), Divide(C, D)) => Divide(Mul(A, D), Mul(B, C))

div-by-quotient: A[*a]  B[*a]  C[*a]
  A / (B / C)  ==  (A * C) / B
  source XLA divmod/4: Divide(A, Divide(B, C)) => Divide(Mul(A, C), B)

rem-of-rem: A[*a]  B[*a]
  rem(rem(A, B), B)  ==  rem(A, B)
  dtype int
  source XLA divmod/5: Rem(Rem(A, B), B) => Rem(A, B)

rem-of-iota: c in int  extra *a n
  rem(bcast(iota(n), a), c)  ==  bcast(iota(n), a)
  if n <= c
  dtype int
  mode proof
  source XLA divmod/6: Rem(Iota, Const) => Iota

rem-of-shifted-iota: c in int  extra *a n
  rem(bcast(iota(n), a) + c, c)  ==  rem(bcast(iota(n), a), c)
  if c >= 1
  dtype int
  mode proof
  source XLA divmod/7: Rem(Add(Iota, Const), Const) => Rem(Iota, Const)

rem-of-sum: c in int  X[*a]
  rem(X + c, c)  ==  rem(X, c)
  given ge(X, 0), ge(X + c, X)
  dtype int
  mode proof
  source XLA divmod/8: Rem(Add(X, Const), Const) => Rem(X, Const), where X is not negative and nothing overflows
"""
