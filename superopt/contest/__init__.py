"""The contest: programs are built, checked and timed in rounds with the original, and one of them is returned."""
