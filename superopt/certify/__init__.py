"""Certification that a program is the same function: proved rules, plans of rule instances, and their validation."""
