"""Rows of tables: arithmetic on the rows is arithmetic on the table, done ahead of time where the table is frozen."""

RULES = """
take-ew: f/1  T[n *d]  I[*b]
  f(take(T, I, n))  ==  take(f(T), I, n)
  prefer frozen(T)

take-ew-row: f/2  T[n *d]  I[*b]  B[*d]
  f(take(T, I, n), B)  ==  take(f(T, B), I, n)
  prefer frozen(T) and frozen(B)

dot-take: T[n k]  I[*b]  W[k *m]
  dot(take(T, I, n), W, k)  ==  take(dot(T, W, k), I, n)
  prefer frozen(T) and frozen(W) and prod(m) <= k

take-concat: T[n a]  U[n a2]  I[*b]
  concat(take(T, I, n), take(U, I, n), a)  ==  take(concat(T, U, a), I, n)
  prefer frozen(T) and frozen(U)
"""
