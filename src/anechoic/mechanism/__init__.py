"""Mechanisms: records that bind strategy, sampling, noise and guarantee; endless ones; compositions."""

from anechoic.mechanism import statement_text  # noqa: F401 - registers what it says
