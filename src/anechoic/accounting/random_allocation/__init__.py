"""Random allocation: each example in one step of every epoch."""
