"""Statements about JAX functions, true and false: the benchmark of the verifier."""
