"""Which axis of a tensor has the rows of a batch, passed on by every operation."""
