"""Mechanisms: records that bind strategy, sampling, noise and guarantee; endless ones; compositions."""

from anechoic._moved import keep_old_names
from anechoic.mechanism import composed_statement, statement_text  # noqa: F401 - each registers what it says

keep_old_names(__name__)
