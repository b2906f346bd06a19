"""The command line: its main group, and what all commands share."""
