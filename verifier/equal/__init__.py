"""Equality of scalar terms under sums, guards and laws: the prover proper, and its questions to Z3."""
