"""Keys of a fit: from the operating system, or from a seed and all that the fit is computed from."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from anechoic.keys import checked_key, derive, new_key
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.result import mechanism_in
from anechoic.statement.software import software


class HiddenKey(bytes):
    """Bytes that are not shown: scikit-learn prints parameters in cells, in logs and in error messages."""

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __deepcopy__(self, memo: Any) -> HiddenKey:
        return self  # `clone` wants the object back that it gave


@dataclass(frozen=True, repr=False)
class FitKeys:
    """Keys of noise and batches.

    Attributes:
        noise, sampling: 32 secret bytes each.
        secret: whether nobody else can know them: False where they follow from an integer seed.
    """

    noise: bytes
    sampling: bytes
    secret: bool


def keys_of(random_state: Any, computed_from: Mapping[str, Any]) -> FitKeys:
    """Keys of one fit.

    From a seed they depend on all that the fit is computed from: two fits never share noise unless all is the
    same, as the difference of their releases would show the data bare.

    Args:
        random_state: None for fresh entropy; an integer for figures that can be reproduced, which protects
            from nobody who guesses it; or 32 secret bytes.
        computed_from: all of the data and parameters, by name.

    Raises:
        ValueError: for another seed, or where a value cannot be told from others of its kind.
    """
    if random_state is None:
        return FitKeys(new_key(), new_key(), secret=True)
    if isinstance(random_state, bytes):
        root, secret = checked_key(random_state, "random_state"), True
        # exp is rounded otherwise elsewhere: the sums of one fit may differ by a step of the grid there
        known = software()
        computed_from = {**computed_from, "made by": [known["anechoic"], known["numpy"], platform.machine()]}
    elif isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        root, secret = hashlib.sha256(f"anechoic linear {int(random_state)}".encode()).digest(), False
    else:
        raise ValueError(
            f"random_state of type {type(random_state).__name__} must be None (fresh entropy, for a"
            " guarantee), an integer (for figures that can be reproduced), or 32 secret bytes."
        )
    digest = hashlib.sha256()
    for name, value in computed_from.items():
        for piece in _pieces(name, [name, value]):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
    words = np.frombuffer(digest.digest(), dtype="<u8").tolist()
    noise, sampling = (derive(root, f"linear {name}", *words, size=32) for name in ("noise", "sampling"))
    return FitKeys(noise, sampling, secret)


def _pieces(name: str, value: Any) -> Iterator[bytes]:
    """An encoding of a value that no other value has: first what it is and how many follow, then those."""
    value = mechanism_in(value)
    for kind in (bool, int, float, str, bytes):
        if isinstance(value, kind):
            yield f"{kind.__name__} {kind.__repr__(value)}".encode()  # type: ignore[arg-type]
            return
    if value is None:
        yield b"None"
    elif isinstance(value, Mechanism):
        yield f"mechanism {value.fingerprint}".encode()
    elif isinstance(value, Sequence):
        yield f"list of {len(value)}".encode()
        for entry in value:
            yield from _pieces(name, entry)
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__} {type(value).__qualname__}".encode()
        yield from _pieces(name, [getattr(value, field.name) for field in fields(value)])
    elif hasattr(value, "__array__") and (array := np.ascontiguousarray(value)).dtype.kind != "O":
        yield f"array {array.dtype.str} {np.shape(value)}".encode()
        yield array.reshape(-1).view(np.uint8).data  # type: ignore[misc]
    elif hasattr(value, "__array__") and isinstance(listed := np.asarray(value).tolist(), list):
        yield from _pieces(name, listed)
    else:
        raise ValueError(
            f"{name} holds something of type {type(value).__name__}, of which noise cannot be made to depend,"
            " as it must under a given random_state: leave random_state out."
        )
