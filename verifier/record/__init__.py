"""Certificates: what was proved, under digests of what it depends on; replay."""
