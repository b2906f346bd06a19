"""JAX functions in and out: jaxprs as graphs, and optimised programs called like the function."""
