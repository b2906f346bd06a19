"""Kernels of our own in a program: its forms, kernels made in worker processes, and schedules searched for them."""
