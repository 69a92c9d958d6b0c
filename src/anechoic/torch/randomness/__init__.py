"""Who draws what in a training step: the generators of the process, of torch and of single rows."""
