"""Suites of the costs of a returned program besides its kernels: memory, and calls."""
