"""Masked sums: a server learns the sum of clients' integer vectors, and of no vector anything else.

Four stages in the manner of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning (CCS 2017): keys, shares, masked vectors, unmasking. The server is trusted to follow the protocol.
`SumClient` and `SumServer` exchange plain mappings, and any transport may carry them.
"""

from anechoic.federated.secure_sum.client import SumClient
from anechoic.federated.secure_sum.messages import Stage
from anechoic.federated.secure_sum.server import Aborted, SumServer

__all__ = ["Aborted", "Stage", "SumClient", "SumServer"]
