"""What every edge needs of a run, without a framework: a journal of its releases, and whole files."""

from anechoic.runs.journal import Journal
from anechoic.runs.journal_format import (
    Mark,
    Record,
    conflicts,
    digest_key_of,
    digest_of,
    identity_of,
    read_journal,
)

__all__ = [
    "Journal",
    "Mark",
    "Record",
    "conflicts",
    "digest_key_of",
    "digest_of",
    "identity_of",
    "read_journal",
]
