"""`jax.jit` as JAX has it.

Users may put `superopt.jit` in its place for a whole process; what superopt itself compiles still goes to XLA.
"""

from jax._src.api import jit as jax_jit  # `jax.jit` may be replaced before this is imported

__all__ = ["jax_jit"]
