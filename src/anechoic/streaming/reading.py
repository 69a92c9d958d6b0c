"""Releases of a state file, read while a stream writes it."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from anechoic.errors import CheckpointError
from anechoic.runs.held import PATIENCE
from anechoic.streaming.release import Release
from anechoic.streaming.store import LABELS


def read_releases(path: str | os.PathLike[str], *, since: int = 0) -> list[Release]:
    """What was released at step `since` and later; nothing is changed, and the stream waits while it is read.

    Args:
        path: of a state file, whether or not a stream has it open.
        since: first step.

    Raises:
        CheckpointError: if it is missing, or no such file.
    """
    target = Path(os.path.abspath(path))
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(target))}?mode=ro", uri=True, timeout=PATIENCE)
        ) as database:
            found = database.execute(
                "SELECT published FROM releases WHERE step >= ? ORDER BY step", (since,)
            ).fetchall()
            written = database.execute("SELECT value FROM meta WHERE name = ?", (LABELS,)).fetchone()
        names = {} if written is None else json.loads(written[0])
        labels = {statistic: tuple(map(str, entries)) for statistic, entries in names.items()}
    except (sqlite3.Error, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{target} cannot be read as a state file: {error}.") from error
    return [Release.from_bytes(published, labels) for (published,) in found]
