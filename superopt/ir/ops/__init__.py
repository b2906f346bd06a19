"""The op table, one module per family."""
