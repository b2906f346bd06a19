"""Candidates: programs that may be returned, each described once for makers, timings, checks and the report."""
