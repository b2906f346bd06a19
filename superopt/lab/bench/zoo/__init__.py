"""Snippets of many fields against the best forms that are known."""
