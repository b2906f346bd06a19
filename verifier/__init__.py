"""The verifier: rules, statements, programs and schedules proved or refuted; `verdict` is what it answers."""
