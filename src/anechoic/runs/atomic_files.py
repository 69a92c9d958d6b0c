"""Files written atomically: a line that names the format, a digest of what follows, and that.

Written under another name and moved into place when all of it is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from anechoic.errors import CheckpointError

_CHUNK = 2**22
_DIGITS = 64


@contextlib.contextmanager
def writing(target: Path, magic: bytes) -> Iterator[HashingWriter]:
    """Write a file that replaces `target` when the block ends without an error.

    Args:
        target: file name; its folder exists.
        magic: first line, with its line end; it names the format.
    """
    with _replacing(target, target.with_name(f".{target.name}.partial")) as partial:
        # readable by the owner alone
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(handle, "w+b") as file:
            file.write(magic + b"0" * _DIGITS + b"\n")
            hashing = HashingWriter(file)
            yield hashing
            file.seek(len(magic))
            file.write(hashing.digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def reading(source: Path, magic: bytes) -> Iterator[FileTail]:
    """Read what follows the head of a file of this format, and check its digest."""
    try:
        file: IO[bytes] = source.open("rb")
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}.") from error
    start = len(magic) + _DIGITS + 1
    with file:
        head = file.read(start)
        if not head.startswith(magic):
            raise CheckpointError(f"{source} is not an anechoic checkpoint, or its beginning is damaged.")
        digest = hashlib.sha256()
        while block := file.read(_CHUNK):
            digest.update(block)
        if digest.hexdigest().encode() + b"\n" != head[len(magic) :]:
            raise CheckpointError(
                f"{source} is corrupt or truncated (its SHA-256 digest differs): resume from an older"
                " checkpoint."
            )
        window = FileTail(file, start, digest.hexdigest())
        window.seek(0)
        yield window


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `target` when the block ends without an error.

    For what anybody may read: permissions are those of the file that was there, or as usual.
    """
    target = Path(os.path.realpath(target))
    with _replacing(target, _partial(target)) as partial:
        yield partial
        if target.exists():
            shutil.copymode(target, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(target: Path, partial: Path) -> Iterator[Path]:
    """Replace `target` by `partial`, one name for all attempts, at the end, or remove it."""
    partial.unlink(missing_ok=True)
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def check_writable(target: Path) -> None:
    """Refuse a file that `replaced` could not write.

    Raises:
        ValueError: for a folder that is missing or not writable, or a directory.
    """
    partial = _partial(Path(os.path.realpath(target)))
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        partial.open("wb").close()
        partial.unlink()
    except OSError as error:
        raise ValueError(
            f"{target} cannot be written ({error.strerror}): name a file in a folder that is there, and in"
            " which you may write."
        ) from error


def _partial(target: Path) -> Path:
    """The suffix says what it holds."""
    return target.with_name(f".{target.stem}.partial{target.suffix}")


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk, where the system can say so."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class HashingWriter:
    """File to write to, with a digest of all that is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


class FileTail(io.RawIOBase):
    """A file from `start` on, and the digest of that."""

    def __init__(self, file: IO[bytes], start: int, digest: str) -> None:
        self._file, self._start, self.digest = file, start, digest

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset + (self._start if whence == os.SEEK_SET else 0), whence) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)  # type: ignore[attr-defined,no-any-return]
