"""The workshop: jobs that make, validate, time or compare, done by workers that may die, here or on a Ray cluster."""
