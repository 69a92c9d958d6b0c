"""Federated training with privacy for every user."""

from anechoic.federated import secure_sum

__all__ = ["secure_sum"]
