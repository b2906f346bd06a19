"""The intermediate representation: typed graphs, the op table, and what follows from the denotations."""
