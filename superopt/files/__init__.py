"""Files that others wrote: the one reader with its limits, and structures of arguments as plain data."""
