"""Monte Carlo in a guarantee: what is drawn, and the confidence that it pays for."""
