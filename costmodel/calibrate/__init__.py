"""Fitting and judging the model."""
