"""StableHLO modules as JAX functions: MLIR's parser reads them, `jax.lax` gives the meaning of their operations."""
