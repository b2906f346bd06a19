"""Searches: how fast growth and search are on whole networks, and what mixtures of strategies find."""
