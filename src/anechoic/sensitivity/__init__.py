"""Sensitivity of a strategy under a participation schema: one theorem a file, results with evidence."""

from anechoic.sensitivity import cyclic, epochs, full_batch, min_sep, patterns, single, wrapped  # noqa: F401
