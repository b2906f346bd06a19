"""Suites of what a returned program costs besides its kernels: memory, and calls."""
