"""Private training inside Hugging Face's Trainer, TRL and Lightning: see `trainers.transformers` and `.lightning`."""

from anechoic.trainers.privacy import Privacy

__all__ = ["Privacy"]
