"""Masked sums: a server learns the sum of clients' integer vectors, and of no vector anything else.

Four stages in the manner of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning (CCS 2017): keys, shares, masked vectors, unmasking. The server is trusted to follow the protocol.
`SumClient` and `SumServer` exchange plain mappings, and any transport may carry them.
"""

from anechoic.federated.secure_sum.client import SumClient
from anechoic.federated.secure_sum.messages import Message, Reason, Refused, Stage
from anechoic.federated.secure_sum.server import Aborted, SecureSum, SumServer
from anechoic.federated.secure_sum.terms import SMALLEST_SUM, least_threshold

__all__ = [
    "SMALLEST_SUM",
    "Aborted",
    "SumClient",
    "Message",
    "Reason",
    "Refused",
    "SecureSum",
    "SumServer",
    "Stage",
    "least_threshold",
]
