"""Calls of kernels: layout of buffers, XLA's FFI, the thread team, large pages."""
