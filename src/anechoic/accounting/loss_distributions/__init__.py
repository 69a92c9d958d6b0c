"""Distributions of privacy losses: composed and read, always more spread out than the true ones."""
