"""Matching rules on an e-graph or a graph, modulo the permutation of axes."""
