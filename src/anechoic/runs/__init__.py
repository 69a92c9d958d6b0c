"""What every edge needs of a run, without a framework: a journal of its releases, and whole files."""

from anechoic.runs.digests import digest_key_of, digest_of, identity_of
from anechoic.runs.journal import Journal, Mark, Record, conflicts, read_journal

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
