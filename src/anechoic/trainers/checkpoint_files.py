"""Private files of a trainer: beside the folder of its checkpoints, never inside of it.

Trainers upload, copy and delete the folders that they write (hubs, artifacts, rotation). The keys of a run
undo its noise, so they are in none of those: the checkpoint `out/checkpoint-8` has its twin, with keys and
noise, in `out.private/checkpoint-8.ckpt`, and the journal of the run is in `out.private` too.
Lightning overwrites its files, so their twins have the step in their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError, UnsupportedError

Name = str | os.PathLike[str]


def private_folder(folder: Name) -> Path:
    """Return the private folder of the checkpoints in `folder`."""
    whole = Path(os.path.abspath(folder))
    return whole.with_name(f"{whole.name}.private")


def twin(checkpoint: Name) -> Path:
    """Return the private file (keys and noise) of a trainer's checkpoint."""
    whole = Path(os.path.abspath(checkpoint))
    return private_folder(whole.parent) / f"{whole.name}.ckpt"


def made(folder: Path) -> Path:
    """Make the folder if it is missing, for its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def found_twin(checkpoint: Name) -> Path:
    """Find the private file of a checkpoint to resume from."""
    path = twin(checkpoint)
    if not path.is_file():
        raise CheckpointError(
            f"{os.fspath(checkpoint)} has no keys: {path} is missing, so the run cannot go on under the noise"
            " that it has used. Put that folder back beside this one. Or train anew from these weights as a"
            " new run which counts what was released before: Privacy(…, charge=…), with the Mechanism of the"
            " old run."
        )
    return path


def pair(filepath: Name, checkpoint: dict[str, Any]) -> str:
    """The name by which a checkpoint has its twin: with its step, as `last.ckpt` is written every time."""
    return f"{os.fspath(filepath)}.{checkpoint['global_step']}"


def twins(filepath: Name) -> list[Path]:
    """List the private files of all checkpoints that had this name."""
    whole = Path(os.path.abspath(filepath))
    pattern = re.compile(re.escape(whole.name) + r"\.\d+\.ckpt")
    return [path for path in private_folder(whole.parent).glob("*.ckpt") if pattern.fullmatch(path.name)]


@contextmanager
def kept_in_pairs(filepath: Name, checkpoint: dict[str, Any]) -> Iterator[Path]:
    """The twin to write; inside, the checkpoint is written after it. Older twins go when both are there."""
    if "://" in os.fspath(filepath):
        raise UnsupportedError(f"{filepath} is not a local file: keys are kept beside the checkpoint.")
    older, path = twins(filepath), twin(pair(filepath, checkpoint))
    made(path.parent)
    yield path
    for other in {*older} - {path}:
        other.unlink(missing_ok=True)
