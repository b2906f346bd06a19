"""Packages: a native program as a C library with its weights, a header, and a loader that needs NumPy alone."""
