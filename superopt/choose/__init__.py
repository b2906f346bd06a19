"""Kernels of our own in a program: which forms and regions take them, tried one by one in worker processes."""
