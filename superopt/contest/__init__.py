"""The judge: candidates are built, checked, timed in rounds with the original, and one of them is returned."""
