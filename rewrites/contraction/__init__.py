"""Contraction: regions that are sums of products, their index form, and rules that give them a better order."""
