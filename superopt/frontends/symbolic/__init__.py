"""Functions at symbolic sizes: specifications of arguments as text, and the graphs that tracing produces."""
