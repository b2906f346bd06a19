"""Rules: proof for every rank, refutation by arrays, mutants; the prover's process."""
