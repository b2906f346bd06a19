"""Which values are kernels, and good schedules for them without search."""
