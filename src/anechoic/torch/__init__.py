"""Private training with correlated noise, over Opacus.

Per-example gradients, clipping and ghost clipping are Opacus's, and so are the names of `PrivacyEngine`.
"""

from anechoic.torch.adam import CorrectedAdam
from anechoic.torch.checkpoints.checkpoint import read_mechanism
from anechoic.torch.engine import PrivacyEngine
from anechoic.torch.ledger import Delivery, ReleaseLedger
from anechoic.torch.loader import PrivateDataLoader
from anechoic.torch.memory import BatchMemoryManager
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.pseudo_gradient import LocalSteps, PseudoGradients, pseudo_gradient

__all__ = [
    "BatchMemoryManager",
    "CorrectedAdam",
    "CorrelatedOptimizer",
    "Delivery",
    "LocalSteps",
    "PrivacyEngine",
    "PrivateDataLoader",
    "PseudoGradients",
    "ReleaseLedger",
    "pseudo_gradient",
    "read_mechanism",
]
