"""Where clipped sums come from: one source a mode."""
