"""Errors of a mechanism per step, and its loss: sensitivity times error."""
