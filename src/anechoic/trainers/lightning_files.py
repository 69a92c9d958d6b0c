"""Checkpoints of Lightning, which overwrites files, and their keys: a pair whenever the process is killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anechoic.errors import UnsupportedError
from anechoic.trainers.files import Name, made, private_folder, twin


def pair(filepath: Name, checkpoint: dict[str, Any]) -> str:
    """The name by which a checkpoint has its twin: with its step, as `last.ckpt` is written every time."""
    return f"{os.fspath(filepath)}.{checkpoint['global_step']}"


def twins(filepath: Name) -> list[Path]:
    """Those of all checkpoints that had this name."""
    whole = Path(os.path.abspath(filepath))
    pattern = re.compile(re.escape(whole.name) + r"\.\d+\.ckpt")
    return [path for path in private_folder(whole.parent).glob("*.ckpt") if pattern.fullmatch(path.name)]


@contextmanager
def kept_in_pairs(filepath: Name, checkpoint: dict[str, Any]) -> Iterator[Path]:
    """The twin to write; inside, the checkpoint is written after it. Older twins go when both are there.

    Raises:
        UnsupportedError: for a file that is not local.
    """
    if "://" in os.fspath(filepath):
        raise UnsupportedError(f"{filepath} is not a local file: keys are kept beside the checkpoint.")
    older, path = twins(filepath), twin(pair(filepath, checkpoint))
    made(path.parent)
    yield path
    for other in older:
        if other != path:
            other.unlink(missing_ok=True)
