"""superopt: a tensor-graph superoptimizer (placeholder until the pipeline lands; imports nothing heavy)."""

__version__ = "0.1.0"
