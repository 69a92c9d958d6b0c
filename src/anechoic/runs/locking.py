"""A lock on an open file, against other processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from anechoic.errors import GuaranteeError


def lock(handle: int, path: Path, what: str = "journal") -> None:
    """Lock the whole file for this process until `handle` is closed.

    `path` and `what` say in messages what the lock is for.

    The lock belongs to the open file, so a fork that closes its own handle does not end it, and a reader in
    this process does not either.

    Raises:
        GuaranteeError: if another process holds it, or the file system has no locks.
    """
    try:
        _lock(handle)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            raise GuaranteeError(
                f"{what} {path} is open in another process: two processes that go on with one run would use"
                " the same rows of noise. Wait until the other one has ended, or end it."
            ) from error
        raise GuaranteeError(
            f"{what} {path} cannot be locked ({error.strerror or error}), so two processes could go on with"
            " one run unseen: give it a place on a local file system, as PrivacyEngine(journal=…) does."
        ) from error


if os.name == "nt":  # pragma: no cover - no such machine among those tested

    def _lock(handle: int) -> None:
        import msvcrt

        os.lseek(handle, 2**30, os.SEEK_SET)  # locked bytes cannot be read, so not those of the content
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        os.lseek(handle, 0, os.SEEK_SET)

    def unlock(handle: int) -> None:
        """Closing the handle gives the lock back here."""

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(handle: int) -> None:
        """Give the lock back for all handles of this open file, those that forks inherited among them."""
        fcntl.flock(handle, fcntl.LOCK_UN)
