"""Keys of a fit: from the operating system, or from a seed and the data together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic.keys import checked_key, derive, new_key


@dataclass(frozen=True, repr=False)
class FitKeys:
    """What noise and batches are drawn with.

    Attributes:
        noise, sampling: 32 secret bytes each.
        secret: whether nobody else can know them: False where they follow from an integer seed.
    """

    noise: bytes
    sampling: bytes
    secret: bool


def keys_of(random_state: Any, given: Sequence[ArrayLike], text: str) -> FitKeys:
    """Keys of one fit.

    From a seed they depend on the data and on all settings too: two fits never share noise unless all is the
    same, as the difference of their releases would show the data bare.

    Args:
        random_state: None for fresh entropy; an integer for figures that can be reproduced, which protects
            from nobody who guesses it; or 32 secret bytes.
        given: arrays that the releases depend on.
        text: all else that they depend on.

    Raises:
        ValueError: for anything else.
    """
    if random_state is None:
        return FitKeys(new_key(), new_key(), secret=True)
    if isinstance(random_state, bytes):
        root, secret = checked_key(random_state, "random_state"), True
    elif isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        root, secret = hashlib.sha256(f"anechoic linear {int(random_state)}".encode()).digest(), False
    else:
        raise ValueError(
            f"random_state of type {type(random_state).__name__} must be None (fresh entropy, for a"
            " guarantee), an integer (for figures that can be reproduced), or 32 secret bytes."
        )
    digest = hashlib.sha256(text.encode())
    for one in given:
        array = np.ascontiguousarray(one)
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    words = np.frombuffer(digest.digest(), dtype="<u8").tolist()
    noise, sampling = (derive(root, f"linear {name}", *words, size=32) for name in ("noise", "sampling"))
    return FitKeys(noise, sampling, secret)
