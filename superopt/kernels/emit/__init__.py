"""Code of a scheduled loop program: phases, nests, register tiles, values, index arithmetic, guards."""
