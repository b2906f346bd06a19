"""JAX functions: imported from jaxprs as graphs, and the calling convention of optimised programs."""
