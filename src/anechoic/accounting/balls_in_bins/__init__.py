"""Balls in bins: each example in one bin of every epoch."""
