"""A file that this process alone has open, whatever name it was opened by."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from anechoic.errors import CheckpointError, GuaranteeError
from anechoic.runs.files import sync_folder
from anechoic.runs.locking import lock, unlock


class HeldFile:
    """A state file, begun where there is none, and locked until `close`.

    The lock is on the file itself: another name of it, or a link to it, is the same file. It stays at one
    place under one name, since what SQLite keeps beside it is found by that name.

    Args:
        path: without symbolic links.

    Attributes:
        place: which file it is, on which file system; another one for every copy.

    Raises:
        GuaranteeError: if another process has it open, or it has several names.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._process = path, os.getpid()
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
                sync_folder(path.parent)
            self._handle = os.open(path, os.O_RDWR)
        except OSError as error:
            raise CheckpointError(
                f"state file {path} cannot be opened ({error.strerror}): name a file, or a place for one,"
                " in a folder that is there and in which you may write."
            ) from error
        try:
            held = _place_of(self._handle)
            if held in _HELD:
                raise GuaranteeError(
                    f"state file {path} is open in this process already: two that go on with one run would"
                    " use the same rows of noise. Close the other one first: close(), or shut() of a"
                    " federated.Server."
                )
            lock(self._handle, path, "state file")
            self.check()
        except BaseException:
            os.close(self._handle)
            raise
        self.place = held
        _HELD.add(held)

    def check(self) -> None:
        """The locked file is the one at its path, and has no other name.

        Raises:
            GuaranteeError: otherwise.
        """
        own = os.fstat(self._handle)
        try:
            same = os.path.samestat(os.stat(self._path), own)
        except FileNotFoundError:
            same = False
        if not same:
            raise GuaranteeError(
                f"state file {self._path} was moved, removed or replaced while it was open. Put it back"
                " in its place, and open it again."
            )
        if own.st_nlink > 1:
            raise GuaranteeError(
                f"state file {self._path} has {own.st_nlink} names (hard links), and a commit that is cut"
                " short under one would not be mended under the other. Remove all but one."
            )

    def close(self) -> None:
        """Give the lock back. The database is closed before: it would lose locks of its own."""
        if self._handle >= 0:
            if os.getpid() == self._process:
                _HELD.discard(self.place)
                unlock(self._handle)  # closing is not enough while a fork has a handle of its own
            os.close(self._handle)
        self._handle = -1

    def __del__(self) -> None:
        """A state that nobody can close any more, as after a constructor that failed, is given back."""
        if hasattr(self, "place"):
            self.close()


#: Places of the files that this process has open; a fork has none, whatever it inherits.
_HELD: set[str] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HELD.clear)


def _place_of(handle: int) -> str:
    status = os.fstat(handle)
    system = os.fstatvfs(handle).f_fsid if hasattr(os, "fstatvfs") else status.st_dev
    return f"{system:x}.{status.st_ino:x}"
