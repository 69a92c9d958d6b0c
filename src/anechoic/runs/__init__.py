"""What every edge needs of a run, without a framework: a journal of its releases, and whole files."""

from anechoic._moved import keep_old_names
from anechoic.runs.journal import Journal
from anechoic.runs.journal_format import conflicts, digest_key_of, identity_of

__all__ = ["Journal", "conflicts", "digest_key_of", "identity_of"]

keep_old_names(__name__)
