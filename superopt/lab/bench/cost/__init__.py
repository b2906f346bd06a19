"""Suites of the costs of a returned program besides its kernels: memory, calls, and what is between them."""
