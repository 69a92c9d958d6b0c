"""Text by author: the changelogs that packages install under /usr/share/doc, by who signed each entry."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

#: Where Debian's packages, and those of its descendants, put them.
DIRECTORY = "/usr/share/doc"

_SIGNED = re.compile(r"^ -- (.+?)\s*<")  # Debian: below an entry
_HEADED = re.compile(r"^\d{4}-\d\d-\d\d\s+(?:\d\d:\d\d\s+)?([^<\d][^<]*?)\s*<")  # GNU: above an entry


def changelogs(directory: str | os.PathLike[str] = DIRECTORY) -> dict[str, list[str]]:
    """Entries by author, as changelogs of Debian (signed below) and GNU (headed by date and name) have them.

    Authors are told apart by name, in small letters. An entry is counted once, however many packages repeat
    it; the white space in it is made single spaces.

    Args:
        directory: searched two folders deep for `changelog*.gz` and `ChangeLog*.gz`.

    Returns:
        Authors in alphabetical order; entries in the order of the files' paths.

    Raises:
        FileNotFoundError: the folder is not there, or holds no entry with an author.
        ValueError: a file is not gzip, or is truncated.
    """
    folder = Path(directory)
    files = sorted({*folder.glob("*/[cC]hange[lL]og*.gz"), *folder.glob("*/*/[cC]hange[lL]og*.gz")})
    found: dict[str, list[str]] = {}
    known: set[bytes] = set()
    for path in files:
        content = _content(path)
        if _new(content, known):
            lines = content.decode("utf-8", "replace").split("\n")
            for author, entry in _entries(lines):
                if entry and _new(f"{author}\n{entry}".encode(), known):
                    found.setdefault(author, []).append(entry)
    if not found:
        raise FileNotFoundError(
            f"directory={str(folder)!r} holds no changelog with an author. Debian's packages install theirs"
            f" in {DIRECTORY} (container images often leave them out); name another folder that has some."
        )
    return dict(sorted(found.items()))


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}. Install its package again.") from error


def _new(content: bytes, known: set[bytes]) -> bool:
    digest = hashlib.sha256(content).digest()
    before = len(known)
    known.add(digest)
    return len(known) > before


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """(author, entry) of each entry that has an author; an entry is what is indented."""
    body: list[str] = []
    author: str | None = None
    for line in lines:
        if signed := _SIGNED.match(line):
            yield _name(signed), _joined(body)
            body, author = [], None
        elif headed := _HEADED.match(line):
            if author is not None:
                yield author, _joined(body)
            body, author = [], _name(headed)
        elif line[:1] in (" ", "\t"):
            body.append(line)
    if author is not None:
        yield author, _joined(body)


def _name(match: re.Match[str]) -> str:
    return match.group(1).strip().strip('"').lower()


def _joined(body: list[str]) -> str:
    return " ".join(" ".join(body).split())
