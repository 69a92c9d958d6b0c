"""Errors that `anechoic` raises.

Bad arguments raise the built-in `ValueError` (or `TypeError`) where the object is
constructed; the message names the value, the rule and the remedy. Everything below means
that a *guarantee* is at stake, or that a file cannot be trusted:

    AnechoicError
    ├── UnsupportedError          no theorem covers this combination (also a ValueError)
    ├── GuaranteeError            going on would break the privacy guarantee (also a RuntimeError)
    │   ├── MismatchError         an object does not fit the Mechanism it is used with
    │   ├── HorizonError          more releases were asked for than the Mechanism covers
    │   ├── DesynchronizedError   batches, gradients and noise rows no longer correspond
    │   └── ReplayError           noise rows would be used a second time for other data
    └── CheckpointError           a checkpoint is missing, corrupt or truncated

    PerformanceWarning            an n x n matrix is being materialised
"""

from __future__ import annotations

__all__ = [
    "AnechoicError",
    "CheckpointError",
    "DesynchronizedError",
    "GuaranteeError",
    "HorizonError",
    "MismatchError",
    "PerformanceWarning",
    "ReplayError",
    "UnsupportedError",
]


class AnechoicError(Exception):
    """Root of the errors defined by this library."""


class UnsupportedError(AnechoicError, ValueError):
    """No theorem covers the requested combination, so no guarantee can be stated."""


class GuaranteeError(AnechoicError, RuntimeError):
    """Going on would break the privacy guarantee."""


class MismatchError(GuaranteeError, ValueError):
    """An object does not fit the `Mechanism` it is used with."""


class HorizonError(GuaranteeError):
    """More releases were asked for than the `Mechanism` covers."""


class DesynchronizedError(GuaranteeError):
    """Batches, gradients and noise rows no longer correspond to one another."""


class ReplayError(GuaranteeError):
    """Noise rows would be used a second time for other data."""


class CheckpointError(AnechoicError, ValueError):
    """A checkpoint is missing, corrupt or truncated."""


class PerformanceWarning(UserWarning):
    """An n x n matrix is being materialised where structure could not be used."""
