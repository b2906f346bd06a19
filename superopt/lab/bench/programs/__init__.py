"""The programs that suites run."""
