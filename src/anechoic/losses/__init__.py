"""Error of a strategy per step, and its loss: sensitivity times error."""
