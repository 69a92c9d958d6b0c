"""Lock of a file beside it, held by one object of one process."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

from anechoic.errors import CheckpointError, GuaranteeError
from anechoic.runs.atomic_files import sync_folder

#: Files that this process has open, by path.
_OPEN: weakref.WeakValueDictionary[Path, LockedFile] = weakref.WeakValueDictionary()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # a fork holds no lock: filelock closes its handles


class LockedFile:
    """Hold a state file, begun where there is none, until `close` or the end of the process.

    Args:
        path: without symbolic links.

    Attributes:
        place: number of the file in its file system, which a copy does not have.

    Raises:
        CheckpointError: if it cannot be opened.
        GuaranteeError: if this process or another one has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path in _OPEN:  # to open and close it here would end the locks of SQLite
            raise GuaranteeError(
                f"state file {path} is open in this process already: two that go on with one run would"
                " use the same rows of noise. Close the other one first: close(), or shut() of a"
                " federated.Server."
            )
        self._lock = FileLock(
            f"{path}.lock", timeout=0, mode=0o600, thread_local=False, fallback_to_soft=False
        )
        try:
            path.parent.stat()  # filelock would make it
            self._lock.acquire()
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            sync_folder(path.parent)
            self.place = _place_of(path)
        except Timeout as error:
            raise GuaranteeError(
                f"state file {path} is open in another process: two processes that go on with one run"
                " would use the same rows of noise. Wait until the other one has ended, or end it."
            ) from error
        except NotImplementedError as error:
            raise GuaranteeError(
                f"state file {path} cannot be locked ({error}), so two processes could go on with one"
                " run unseen: give it a place on a local file system, as PrivacyEngine(journal=…) does."
            ) from error
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"state file {path} cannot be opened ({error.strerror or error}): name a file, or a place for"
                " one, in a folder that is there and in which you may write."
            ) from error
        _OPEN[path] = self

    def check(self) -> None:
        """Refuse to go on where another file, or none, is at the path."""
        if not self.path.exists() or _place_of(self.path) != self.place:
            raise GuaranteeError(
                f"state file {self.path} was moved, removed or replaced while it was open. Put it back"
                " in its place, and open it again; if it is lost, start a new run, whose privacy cost adds to"
                " this one's."
            )

    def close(self) -> None:
        """Release the lock. The database is closed before: it would lose locks of its own."""
        self._lock.release()
        if _OPEN.get(self.path) is self:
            del _OPEN[self.path]

    def remove(self) -> None:
        """Remove the lock of a file that is closed, and has another place now."""
        Path(self._lock.lock_file).unlink(missing_ok=True)


def _place_of(path: Path) -> str:
    return f"{path.stat().st_ino:x}"
