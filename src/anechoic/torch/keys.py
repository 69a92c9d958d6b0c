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
    """Keys of one run: 32 secret bytes each, and the names of those that the caller gave."""

    noise: bytes = field(repr=False)
    sampling: bytes = field(repr=False)
    by_caller: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        """Whether the caller knows both, and can give them again."""
        return len(self.by_caller) == 2

    def __str__(self) -> str:
        """Say where they come from, and who answers for them."""
        if not self.by_caller:
            return "from the operating system"
        return (
            f"{' and '.join(self.by_caller)} given by the caller, who answers for it: 32 bytes of the"
            " operating system, secret, and for this run only"
        )


class KeySource:
    """Source of a run's keys: 32 secret bytes each, a function that returns them, or None for fresh ones."""

    def __init__(self, noise_key: Key, sampling_key: Key) -> None:
        self.given: dict[str, Key] = {
            name: key if key is None or callable(key) else checked_key(key, name)
            for name, key in (("noise_key", noise_key), ("sampling_key", sampling_key))
        }
        self._process = os.getpid()

    def draw(self) -> Keys:
        """Draw the keys of the run that begins now; given ones are refused in a fork: others have them."""
        if os.getpid() != self._process and any(isinstance(key, bytes) for key in self.given.values()):
            raise GuaranteeError(
                f"process {self._process} was given the keys, and process {os.getpid()} is a fork of it: make"
                " the engine in the fork, with keys of its own (or none)."
            )
        drawn = {
            name: new_key() if key is None else checked_key(key() if callable(key) else key, name)
            for name, key in self.given.items()
        }
        if drawn["noise_key"] == drawn["sampling_key"]:
            raise ValueError("noise_key and sampling_key are equal: pass two different keys, or none.")
        theirs = tuple(name for name, key in self.given.items() if key is not None)
        return Keys(drawn["noise_key"], drawn["sampling_key"], theirs)
