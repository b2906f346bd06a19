"""Schedules to prove and wrong ones to refute, and the lemmas behind the proofs."""
