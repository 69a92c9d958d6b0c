"""Chain of a state file's releases: a row each, so that none can be missing or replaced."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError
from anechoic.runs.database import PATIENCE, source_of
from anechoic.runs.settings_check import FORMAT

#: Rows of the table, in order.
ROWS = "SELECT step, time, row FROM releases ORDER BY step"


class ReleaseChain:
    """Chain of digests of a file's settings and of every release.

    Args:
        of: kind of the file.
        path: of it.
        meta: what it says of itself.

    Attributes:
        first: number of the first release in the file.
        made: of the next one.
        link: of the last one in the chain.
    """

    def __init__(self, of: Any, path: Path, meta: Mapping[str, Any]) -> None:
        self._of, self._path = of, path
        self.first = self.made = int(meta.get("first", 0))
        self._end = meta.get("link")
        said = (str(meta[name]).encode() for name in ("identity", *of.SHOWN))
        self.link = digest_of_parts(of.KIND, *said)

    def add(self, time: str, row: bytes) -> None:
        """Add the next release."""
        self.link = digest_of_parts("release", self.link, time.encode(), row)
        self.made += 1

    def read(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, bytes]]:
        """Read time and content of all releases of a file.

        Raises:
            CheckpointError: where one is missing, or another one than was written.
        """
        for step, time, row in rows:
            if step != self.made:
                raise CheckpointError(
                    f"release {self.made} is missing in state file {self._path}, so what was released cannot"
                    f" be told. {self._of.NEW_RUN}"
                )
            self.add(time, row)
            yield time, row
        if self._end != self.link and (self._end is not None or self.made > self.first):
            raise CheckpointError(
                f"what was released, or what it is called, is damaged in state file {self._path}, or the last"
                f" ones are missing, so it cannot be told. {self._of.NEW_RUN}"
            )


def begun(path: Path) -> bool:
    """Whether a state file is at `path`: a process killed as it made one may leave one without tables.

    Of a damaged file it is True: whoever reads it says what is wrong.
    """
    if not path.exists() or not path.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(source_of(path), uri=True, timeout=PATIENCE)) as database:
            return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error:
        return True


@contextmanager
def reading(
    path: str | os.PathLike[str], of: Any, *, still: bool = False
) -> Iterator[tuple[dict[str, Any], ReleaseChain, Iterator[tuple[str, bytes]]]]:
    """Read settings, release chain, and time and content of each release from the file at `path`.

    It needs no key. Nothing is changed; a run that writes the file does not wait, nor does the reader.

    Args:
        path: of the file.
        of: its kind.
        still: whether to leave its log alone, in which the last commits may be.
    """
    target = Path(os.path.realpath(path))
    try:
        with closing(sqlite3.connect(source_of(target, still), uri=True, timeout=PATIENCE)) as database:
            database.execute("BEGIN")  # all of it as it is now
            meta = dict(database.execute("SELECT name, value FROM meta"))
            if int(meta["format"]) != FORMAT:
                raise ValueError(f"format {meta['format']}, and this version reads format {FORMAT}")
            chain = ReleaseChain(of, target, meta)
            yield meta, chain, chain.read(database.execute(ROWS))
    except CheckpointError:
        raise
    except (sqlite3.Error, ValueError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{target} cannot be read as a state file: {error}.") from error


def digest_of_parts(head: str, *blobs: bytes) -> bytes:
    """SHA-256 of text and blobs, each of the blobs behind its length."""
    found = hashlib.sha256(head.encode())
    for blob in blobs:
        found.update(len(blob).to_bytes(8, "little"))
        found.update(blob)
    return found.digest()
