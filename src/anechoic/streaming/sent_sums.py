"""Sums as bytes, for another process."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import CheckpointError
from anechoic.streaming.layout import FORMAT, SumsLayout, check_same

_CHECK = 16


def packed(layout: SumsLayout, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return plain data and arrays as bytes, with a checksum first: the same bytes for the same content."""
    said = {"format": FORMAT, "stream": layout.stream, "layout": layout.mark, **head}
    file = io.BytesIO()
    held = np.frombuffer(json.dumps(said, sort_keys=True).encode(), np.uint8)
    np.savez(file, head=held, **arrays)  # type: ignore[arg-type]  # it has no argument of these names
    return _checksum(file.getvalue()) + file.getvalue()


def unpacked(content: bytes, layout: SumsLayout) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the plain data and the arrays of which `packed` made these bytes for this layout.

    Raises:
        CheckpointError, MismatchError: see `Accumulator.from_bytes`.
    """
    check, content = content[:_CHECK], content[_CHECK:]
    if _checksum(content) != check:
        raise CheckpointError(
            "these bytes are no accumulator, damaged or cut short: give what to_bytes() gave, once more."
        )
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    head = json.loads(arrays.pop("head").tobytes())
    if head["format"] != FORMAT:
        raise CheckpointError(
            f"an accumulator of format {head['format']}, where this version reads {FORMAT}: let workers and"
            " stream have the same version of anechoic."
        )
    check_same(head["stream"], head["layout"], layout)
    return head, arrays


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECK).digest()
