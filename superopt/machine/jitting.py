"""The original `jax.jit`.

Users may put `superopt.jit` in its place for a whole process; superopt's own compilations still go to XLA.
"""

from jax._src.api import jit as jax_jit  # `jax.jit` may be replaced before this is imported

__all__ = ["jax_jit"]
