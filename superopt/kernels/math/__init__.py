"""Scalar functions on vectors, as code; `table.apply` is the entry."""
