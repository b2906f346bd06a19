"""Kernels as Pallas programs for GPUs: timed beside XLA where there is a card, lowered to PTX where there is none."""
