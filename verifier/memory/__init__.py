"""Memory of native programs: a static plan reads what was written, and writes only what nothing else holds."""
