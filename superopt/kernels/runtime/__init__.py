"""Calls of kernels: layout of buffers, XLA's FFI, the team of threads, pages."""
