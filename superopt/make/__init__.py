"""Programs made of our kernels: forms that a search found, kernels made in worker processes, and searched schedules."""
