"""Native programs: static plans of our kernels, without XLA."""
