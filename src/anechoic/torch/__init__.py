"""Private training with correlated noise, over Opacus.

Per-example gradients, clipping and ghost clipping are Opacus's, and so are the names of `PrivacyEngine`.
"""

from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.adam import CorrectedAdam
from anechoic.torch.audit import ReleaseRecorder, audit_training
from anechoic.torch.checkpoints.checkpoint import read_mechanism
from anechoic.torch.engine import PrivacyEngine
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.loading.memory import BatchMemoryManager
from anechoic.torch.local.pseudo_gradient import LocalSteps, PseudoGradients, pseudo_gradient
from anechoic.torch.optimizer import CorrelatedOptimizer

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
    "ReleaseRecorder",
    "audit_training",
    "pseudo_gradient",
    "read_mechanism",
]
