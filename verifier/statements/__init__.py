"""Statements that two JAX functions are equal: proof, refutation, evaluation of proofs, and counterexamples."""
