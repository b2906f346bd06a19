"""Kernels whose code is changed in one place, to see whether validation notices."""
