"""Products with constants, common factors, squares, exponentials."""

RULES = """
mul-by-one: A[*a]
  A * 1  ==  A
  source XLA mul/1: Mul(A, 1) => A

one-times: A[*a]
  1 * A  ==  A
  source XLA mul/2: Mul(1, A) => A

mul-by-zero: A[*a]
  A * 0  ==  bcast(0, a)
  source XLA mul/3: Mul(A, 0) => 0

zero-times: A[*a]
  0 * A  ==  bcast(0, a)
  source XLA mul/4: Mul(0, A) => 0

mul-of-scaled: A[*a]  B[*a]  C[*a]  D[*a]
  (A * C) * (B * D)  ==  (A * B) * (C * D)
  source XLA mul/5: Mul(Mul(A, Const1), Mul(B, Const2)) => Mul(Mul(A, B), Mul(Const1, Const2))

mul-of-two-constants: A[*a]  C[*a]  D[*a]
  (A * C) * D  ==  A * (C * D)
  source XLA mul/6: Mul(Mul(A, Const1), Const2) => Mul(A, Mul(Const1, Const2))

mul-by-broadcast: A[*a *n]  C[]  B[*a]
  (A * C) * B  ==  (B * C) * A
  source XLA mul/7: Mul(Mul(A, Const1), Broadcast(B)) => Mul(Broadcast(Mul(B, Const1)), A)

common-factor: A[*a]  B[*a]  C[*a]
  A * C + B * C  ==  (A + B) * C
  source XLA mul/8: Add(Mul(A, C), Mul(B, C)) => Mul(Add(A, B), C)

square-of-abs: A[*a]
  abs(A) * abs(A)  ==  A * A
  source XLA mul/9: Mul(Abs(A), Abs(A)) => Mul(A, A)

product-of-exponentials: A[*a]  B[*a]
  exp(A) * exp(B)  ==  exp(A + B)
  source XLA mul/10: Mul(Exp(A), Exp(B)) => Exp(Add(A, B))
"""
