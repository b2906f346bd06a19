"""Neutral elements of maximum and minimum."""

RULES = """
max-with-least: A[*a]
  maximum(A, -inf)  ==  A
  source XLA max/1: Max(A, -inf) => A

min-with-greatest: A[*a]
  minimum(A, inf)  ==  A
  source XLA max/2: Min(A, inf) => A
"""
