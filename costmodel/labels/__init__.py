"""Measured kernels: the corpus, and the micro-suite of a machine."""
