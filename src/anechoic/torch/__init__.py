"""Private training with correlated noise, under Opacus's names. Needs `anechoic[torch]`.

Each name is imported when it is asked for: training needs no audit, and a loss or an optimizer no engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import anechoic.torch.require_torch  # noqa: F401  first: it says which extra is missing

if TYPE_CHECKING:
    from anechoic.torch.audit import ReleaseRecorder, audit_training
    from anechoic.torch.checkpoint import read_mechanism
    from anechoic.torch.engine import PrivacyEngine
    from anechoic.torch.loading.loader import BatchMemoryManager, RecordStream
    from anechoic.torch.losses import causal_lm_loss, seq2seq_loss
    from anechoic.torch.optimizer_kinds import CorrectedAdam

__all__ = [
    "BatchMemoryManager",
    "CorrectedAdam",
    "PrivacyEngine",
    "RecordStream",
    "ReleaseRecorder",
    "audit_training",
    "causal_lm_loss",
    "read_mechanism",
    "seq2seq_loss",
]

_HOMES = {
    "audit": ("ReleaseRecorder", "audit_training"),
    "checkpoint": ("read_mechanism",),
    "engine": ("PrivacyEngine",),
    "loading.loader": ("BatchMemoryManager", "RecordStream"),
    "losses": ("causal_lm_loss", "seq2seq_loss"),
    "optimizer_kinds": ("CorrectedAdam",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        return found
