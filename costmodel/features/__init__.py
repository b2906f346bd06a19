"""Features of a kernel: what XLA:CPU does in it, counted."""
