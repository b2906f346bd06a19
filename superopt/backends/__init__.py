"""Programs out: graphs as `jax.lax` code, alone or with kernels of our own in it, built and called."""
