"""`jax.jit` as JAX has it.

Users may put `superopt.jit` in its place for a whole process; what superopt itself compiles still goes to XLA.
"""

from jax import jit as jax_jit

__all__ = ["jax_jit"]
