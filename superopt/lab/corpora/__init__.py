"""Corpora: rules, schedules and statements, true and wrong, for the verifier; snippets of programs for the search."""
