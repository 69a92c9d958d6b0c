"""Private training inside other people's trainers: see `trainers.transformers` and `trainers.lightning`."""

from anechoic.trainers.privacy import Privacy

__all__ = ["Privacy"]
