"""A file that this process alone has open, whatever name it was opened by."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from pathlib import Path

from anechoic.errors import CheckpointError, GuaranteeError
from anechoic.runs.files import sync_folder

#: Files that this process has open, by place.
_HELD: weakref.WeakValueDictionary[str, HeldFile] = weakref.WeakValueDictionary()


class HeldFile:
    """A state file, begun where there is none, and locked until `close`.

    The lock is on the file itself: another name of it, or a link to it, is the same file. It stays at one
    place under one name, since what SQLite keeps beside it is found by that name. A fork holds no lock, so
    that a process that ends gives it back, whatever children live on.

    Args:
        path: without symbolic links.

    Attributes:
        path: where it is.
        place: which file it is, on which file system; another one for every copy.

    Raises:
        GuaranteeError: if another process has it open, or it has several names.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._handle = path, -1
        if is_held(path):  # to open and close it here would end the locks of SQLite
            raise GuaranteeError(
                f"state file {path} is open in this process already: two that go on with one run would"
                " use the same rows of noise. Close the other one first: close(), or shut() of a"
                " federated.Server."
            )
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
        self.place = _place_of(path)
        try:
            self._lock()
            self.check()
        except BaseException:
            self.close()
            raise
        _HELD[self.place] = self

    def _lock(self) -> None:
        try:
            _lock(self._handle)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise GuaranteeError(
                    f"state file {self.path} is open in another process: two processes that go on with one"
                    " run would use the same rows of noise. Wait until the other one has ended, or end it."
                ) from error
            raise GuaranteeError(
                f"state file {self.path} cannot be locked ({error.strerror or error}), so two processes could"
                " go on with one run unseen: give it a place on a local file system, as"
                " PrivacyEngine(journal=…) does."
            ) from error

    def check(self) -> None:
        """The locked file is the one at its path, and has no other name.

        Raises:
            GuaranteeError: otherwise.
        """
        own = os.fstat(self._handle)
        try:
            same = os.path.samestat(os.stat(self.path), own)
        except FileNotFoundError:
            same = False
        if not same:
            raise GuaranteeError(
                f"state file {self.path} was moved, removed or replaced while it was open. Put it back"
                " in its place, and open it again; if it is lost, start a new run, whose privacy cost adds to"
                " this one's."
            )
        if own.st_nlink > 1:
            raise GuaranteeError(
                f"state file {self.path} has {own.st_nlink} names (hard links), and a commit that is cut"
                " short under one would not be mended under the other. Remove all but one."
            )

    def close(self) -> None:
        """Give the lock back. The database is closed before: it would lose locks of its own."""
        if self._handle >= 0:
            _unlock(self._handle)  # closing is not enough while a fork has a handle of its own
            self.drop()

    def drop(self) -> None:
        """Forget it; another process that has the handle keeps its lock."""
        os.close(self._handle)
        if _HELD.get(self.place) is self:
            del _HELD[self.place]
        self._handle = -1

    def __del__(self) -> None:
        """A state that nobody can close any more, as after a constructor that failed, is given back."""
        self.close()


def _forget_in_child() -> None:
    """A child would keep locks alive after its parent's death."""
    for file in list(_HELD.values()):
        file.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def is_held(path: Path) -> bool:
    """Whether this process has the file at `path` open as a state."""
    return path.exists() and _place_of(path) in _HELD


def _place_of(path: Path) -> str:
    """The number of a file, and that of its file system, which outlive a restart of the machine."""
    status = os.stat(path)
    system = os.statvfs(path).f_fsid if hasattr(os, "statvfs") else status.st_dev
    return f"{system:x}.{status.st_ino:x}"


if os.name == "nt":  # pragma: no cover - no such machine among those tested

    def _lock(handle: int) -> None:
        import msvcrt

        os.lseek(handle, 2**31 - 1, os.SEEK_SET)  # locked bytes cannot be read, and SQLite has its own
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        os.lseek(handle, 0, os.SEEK_SET)

    def _unlock(handle: int) -> None:
        """Closing the handle gives the lock back here."""

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)
