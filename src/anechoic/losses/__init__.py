"""Errors of a mechanism per step, and its loss: sensitivity times error."""

from anechoic._moved import keep_old_names

keep_old_names(__name__)
