"""The e-graph, and the normal forms of its constructors."""
