"""Vectorized scalar functions as generated code; `table.apply` is the entry point."""
