"""Kernels to measure for calibration: the micro-suite of a machine."""
