"""Sensitivity of a strategy under a participation schema: one theorem a file, results with evidence."""

from anechoic._moved import keep_old_names
from anechoic.sensitivity import cyclic, epochs, full_batch, listed, min_sep, single, trees, wrapped  # noqa: F401

keep_old_names(__name__)
