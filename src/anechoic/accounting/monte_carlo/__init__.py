"""How Monte Carlo enters a guarantee: what is drawn, and the confidence that it pays for."""
