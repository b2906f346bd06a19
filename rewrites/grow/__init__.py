"""Growing an e-graph by rules, with the proof of each equality on request."""
