"""From a graph, proved rules and what a run was asked for (`Request`) to a few programs worth measuring;
`exploration.explore` is the entry."""
