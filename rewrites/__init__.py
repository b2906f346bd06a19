"""Rewriting: a rule language over named axes, matching, building, the e-graph and its growth."""
