"""Private training inside other people's trainers: see `trainers.transformers` and `trainers.lightning`."""

from anechoic._moved import keep_old_names
from anechoic.trainers.privacy import Privacy

__all__ = ["Privacy"]

keep_old_names(__name__)
