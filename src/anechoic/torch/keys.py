"""Noise key and sampling key of a run: drawn where it begins, and used in that process alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from anechoic.errors import GuaranteeError
from anechoic.keys import checked_key
from anechoic.noise import new_key

Key = bytes | Callable[[], bytes] | None


@dataclass(frozen=True)
class Keys:
    """Keys of one run.

    Attributes:
        noise, sampling: 32 secret bytes each.
        given: whether the caller knows both, and can give them again.
        by_caller: those that the caller gave, by name.
    """

    noise: bytes = field(repr=False)
    sampling: bytes = field(repr=False)
    given: bool
    by_caller: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Where they come from, and who answers for them."""
        if not self.by_caller:
            return "from the operating system"
        theirs = " and ".join(self.by_caller)
        return (
            f"{theirs} given by the caller, who answers for it: 32 bytes of the operating system, secret, and"
            " for this run only (a key that follows from a seed protects nobody)"
        )


class KeySource:
    """Source of a run's keys.

    Args:
        noise_key, sampling_key: 32 secret bytes each; or a function that returns them, called when the run
            begins; None for fresh ones from the operating system.

    Raises:
        ValueError: for bytes of another length, or twice the same key.
    """

    def __init__(self, noise_key: Key, sampling_key: Key) -> None:
        self._noise, self._sampling = _checked(noise_key, "noise"), _checked(sampling_key, "sampling")
        _check_different(self._noise, self._sampling)
        self._process = os.getpid()

    @property
    def given(self) -> dict[str, Key]:
        """Return the caller's keys, by name."""
        return {"noise_key": self._noise, "sampling_key": self._sampling}

    def draw(self) -> Keys:
        """The keys of the run that begins now, in this process.

        Raises:
            GuaranteeError: for given keys in a fork of the process that they were given to: its siblings
                have them too.
        """
        fixed = [key for key in (self._noise, self._sampling) if isinstance(key, bytes)]
        if fixed and os.getpid() != self._process:
            raise GuaranteeError(
                f"process {self._process} was given the keys, and process {os.getpid()} is a fork of it:"
                " every fork would make its releases with the same noise. Make the engine in the fork, with"
                " keys of its own (or none)."
            )
        noise, sampling = _drawn(self._noise, "noise"), _drawn(self._sampling, "sampling")
        _check_different(noise, sampling)
        theirs = tuple(name for name, key in self.given.items() if key is not None)
        return Keys(noise, sampling, len(theirs) == 2, theirs)


def _drawn(key: Key, name: str) -> bytes:
    return new_key() if key is None else checked_key(key() if callable(key) else key, f"{name}_key")


def _checked(key: Key, name: str) -> Key:
    return key if key is None or callable(key) else checked_key(key, f"{name}_key")


def _check_different(noise: Key, sampling: Key) -> None:
    if noise is not None and noise == sampling:
        raise ValueError("noise_key and sampling_key are equal: pass two different keys, or none.")
