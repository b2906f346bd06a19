"""Exploration: from a graph, proved rules and the request of a run (`Request`) to a few programs worth measuring;
`exploration.explore` is the entry."""
