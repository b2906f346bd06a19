"""Corpora to test the verifier: rules, schedules and statements that are true, and wrong ones that look true."""
