"""From pairs of graphs to rules, and from rules to random instances."""
