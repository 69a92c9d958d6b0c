"""Sensitivity of a strategy, by participation: a file for each schema or technique, results with evidence."""

from anechoic.sensitivity import cyclic, epochs, full_batch, min_sep, patterns, single, wrapped  # noqa: F401
