"""A rule of one's own: written as an equation over named axes, proved for every size and rank, then used.

python examples/own_rule.py
"""

from __future__ import annotations

import jax
import numpy as np

import superopt
from superopt.errors import VerificationError

TRUE = """
product-of-sum: A[*b *m *k]  B[*b *k *n]
  sum(dot(A, B, k), m)  ==  dot(sum(A, m), B, k)
"""

FALSE = """
exp-of-product: A[*m *k]  B[*k *n]
  exp(dot(A, B, k))  ==  dot(exp(A), exp(B), k)
"""


def column_sums(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums of the columns of a product, computed the long way."""
    return (a @ b).sum(axis=0)


def main() -> None:
    """Prove one rule, have another one refuted, optimise with the first alone."""
    try:
        superopt.rule(FALSE)
    except VerificationError as error:
        print(error)
    rule = superopt.rule(TRUE)
    print(superopt.verify(rule))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    fast = superopt.optimize(column_sums, a, b, rules=[rule], budget="300steps", deterministic=True, store=False)
    print(fast.report)
    np.testing.assert_allclose(fast(a, b), column_sums(a, b), rtol=1e-3, atol=1e-2)


if __name__ == "__main__":
    main()
