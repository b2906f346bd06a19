"""Fault injection in files and stages: whether reading ends in one typed error, and within bounds."""
