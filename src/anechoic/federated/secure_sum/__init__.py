"""Masked sums: a server learns the sum of clients' integer vectors, and of no vector anything else.

Four stages in the manner of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning (CCS 2017): keys, shares, masked vectors, unmasking; where clients have identities, a fifth before
the last, in which they sign the list of survivors. Pure protocol: `SumClient` and `SumServer` exchange plain
mappings, and any transport may carry them.
"""

from anechoic.federated.secure_sum.client import SumClient
from anechoic.federated.secure_sum.keys import identity_of
from anechoic.federated.secure_sum.messages import Message, Reason, Refused, Stage
from anechoic.federated.secure_sum.server import Aborted, SecureSum, SumServer
from anechoic.federated.secure_sum.terms import default_threshold

__all__ = [
    "Aborted",
    "SumClient",
    "Message",
    "Reason",
    "Refused",
    "SecureSum",
    "SumServer",
    "Stage",
    "default_threshold",
    "identity_of",
]
