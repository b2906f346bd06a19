"""Kernels with code changed in one place, to test whether validation notices."""
