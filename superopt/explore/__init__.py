"""From a graph and proved rules to a few programs worth measuring; `exploration.explore` is the entry."""
