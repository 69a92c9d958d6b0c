"""Budgets and tolerances that the theorems share."""

CUBES = 1_000_000_000  # sum over the patterns of (steps in the pattern)^3
TIGHT = 1e-9  # relative gap of a certificate below which a value is called exact
