"""Equivalence of two programs of any origin: proved by cuts, else refuted with arrays, else open with a reason."""
