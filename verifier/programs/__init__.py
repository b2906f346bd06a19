"""Validation of plans: element labels show that two programs with concrete sizes compute the same function."""
