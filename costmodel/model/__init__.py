"""The objective: calibrated roofline, the network that corrects it, prices, weight files."""
