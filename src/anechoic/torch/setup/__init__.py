"""From the arguments of make_private to a run: what is checked, tried and refused before training."""
