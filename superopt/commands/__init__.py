"""The command line: its main group, and helpers that all commands share."""
