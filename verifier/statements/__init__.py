"""Statements about JAX functions: proof, refutation, and what people see of both."""
