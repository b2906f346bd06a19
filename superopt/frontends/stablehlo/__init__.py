"""StableHLO modules as JAX functions: MLIR's parser reads them, `jax.lax` says what an operation means."""
