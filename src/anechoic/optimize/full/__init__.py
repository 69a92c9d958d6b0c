"""Everything is free: the best of all strategies, with certificates."""
