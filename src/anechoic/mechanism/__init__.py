"""Mechanisms: records that bind strategy, sampling, noise and guarantee; endless ones; compositions."""

from anechoic.mechanism import composed_statement, statement_text  # noqa: F401 - each registers what it says
