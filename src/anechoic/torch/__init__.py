"""Private training with correlated noise, under Opacus's names. Needs `anechoic[torch]`."""

import anechoic.torch.require_torch  # noqa: F401  first: it says which extra is missing
from anechoic.torch.adam import CorrectedAdam
from anechoic.torch.audit import ReleaseRecorder, audit_training
from anechoic.torch.checkpoints.checkpoint import read_mechanism
from anechoic.torch.engine import PrivacyEngine
from anechoic.torch.loading.loader import BatchMemoryManager
from anechoic.torch.losses import causal_lm_loss, seq2seq_loss

__all__ = [
    "BatchMemoryManager",
    "CorrectedAdam",
    "PrivacyEngine",
    "ReleaseRecorder",
    "audit_training",
    "causal_lm_loss",
    "read_mechanism",
    "seq2seq_loss",
]
