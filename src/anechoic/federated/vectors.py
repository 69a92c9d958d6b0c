"""Large arrays beside the state file: written and on disk before a commit names them, gone after the next."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anechoic.errors import CheckpointError
from anechoic.runs.atomic_files import reading, writing

_MAGIC = b"anechoic federated vectors 1\n"
_NAME = re.compile(r"\.?(model|noise)-[0-9]+-[0-9a-f]{16}\.bin(\.partial)?")

Named = Mapping[str, np.ndarray[Any, Any]]


class Vectors:
    """Files of arrays in one folder, each written once under a name of its own.

    Args:
        folder: that is there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, kind: str, step: int, arrays: Named) -> list[str]:
        """[name, digest] of a new file that is on disk.

        Args:
            kind: "model" or "noise".
            step: for the eye.
            arrays: by name, not of objects.
        """
        name = f"{kind}-{step}-{secrets.token_hex(8)}.bin"
        try:
            with writing(self._folder / name, _MAGIC) as file:
                for array in (np.array(json.dumps([*arrays])), *arrays.values()):
                    np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name} cannot be written ({error.strerror or type(error).__name__}): nothing"
                " was released. Make room on the disk, and open the state again."
            ) from error
        return [name, file.digest.hexdigest()]

    def read(self, written: list[str], again: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of a file that `write` made; `again` says what to do where they cannot be had.

        Raises:
            CheckpointError: if the file is missing, damaged or another one.
        """
        source, digest = self._folder / written[0], written[1]
        try:
            with reading(source, _MAGIC) as file:
                if file.digest != digest:
                    raise CheckpointError(f"{source} is another file than the one that was committed.")
                read: Any = file
                return {name: np.load(read) for name in json.loads(str(np.load(read)))}
        except CheckpointError as error:
            raise CheckpointError(f"{error} Put the file back that the run wrote; else: {again}") from error

    def sweep(self, kept: set[str]) -> None:
        """Remove files of other commits, and what was cut short."""
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name) and path.name not in kept:
                path.unlink(missing_ok=True)
