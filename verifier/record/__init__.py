"""Certificates: records of proofs under digests of their dependencies, and their independent recheck."""
