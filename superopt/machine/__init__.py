"""What the process runs on and within: processor and versions, budgets, barriers, what threads share, extras, how much
faster one program is than another."""
