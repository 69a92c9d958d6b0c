"""What every edge needs of a run, without a framework: a journal of its releases, and whole files."""

from anechoic.runs.digests import digest_key_of, identity_of
from anechoic.runs.journal import Journal, conflicts

__all__ = ["Journal", "conflicts", "digest_key_of", "identity_of"]
