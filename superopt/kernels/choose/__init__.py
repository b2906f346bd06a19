"""Partition of a graph into kernels, and good default schedules for them without search."""
