"""Statements about JAX functions, true and false: what the verifier is measured with."""
