"""A count of commits outside the state file, by which an older version of that file is recognised."""

from __future__ import annotations

import os
from pathlib import Path

from anechoic.errors import CheckpointError, GuaranteeError


class Counter:
    """One line of fixed length: whose commits, and how many.

    It is written after a commit, before its release is seen. So it never stands above the newest version of
    the state file, and one commit below it at most.

    Args:
        path: file name; its folder exists. It should lie where backups of the state file do not reach it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))

    def read(self) -> tuple[str, int] | None:
        """(mark, commits), or None where there is no such file.

        Raises:
            CheckpointError: if it holds something else.
        """
        try:
            text = self.path.read_text("ascii")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"counter {self.path} cannot be read: {error}.") from error
        mark, _, count = text.strip().partition(" ")
        if not count.isdigit():
            raise CheckpointError(f"counter {self.path} holds {text!r:.40}, which is no count of commits.")
        return mark, int(count)

    def write(self, mark: str, commits: int) -> None:
        """Set it, and wait for the disk.

        Raises:
            GuaranteeError: if it cannot be written.
        """
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, f"{mark} {commits:020d}\n".encode("ascii"), 0)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise GuaranteeError(
                f"counter {self.path} cannot be written ({error}): the release is in the state file and was"
                " not returned. Make the counter writable, and open the state file again."
            ) from error
