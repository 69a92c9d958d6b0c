"""State of a run without a framework: ledger, journal, state file."""

from anechoic.runs.digests import digest_key_of, identity_of
from anechoic.runs.journal import Journal, conflicts

__all__ = ["Journal", "conflicts", "digest_key_of", "identity_of"]
