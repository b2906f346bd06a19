"""Kernels to measure: the micro-suite of a machine."""
