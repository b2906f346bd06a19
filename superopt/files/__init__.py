"""Untrusted files: the one reader with its limits, and structures of arguments as plain data."""
