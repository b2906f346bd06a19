"""Features of a kernel: counts of the work that XLA:CPU does in it."""
