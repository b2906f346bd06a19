"""The machine and the process: versions, budgets, barriers, state shared by threads, extras, measured speed-ups."""
