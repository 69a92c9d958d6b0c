"""A count of commits outside the state file, by which an older version of that file is recognised."""

from __future__ import annotations

import os
from pathlib import Path

from anechoic.errors import CheckpointError, GuaranteeError, ReplayError


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
        """(mark, commits), or None where there is no such file, or an empty one.

        Raises:
            CheckpointError: if it holds something else.
        """
        try:
            text = self.path.read_text("ascii")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"counter {self.path} cannot be read: {error}.") from error
        if not text:
            return None  # it was made, and its writer killed before the first line
        mark, _, count = text.strip().partition(" ")
        if not count.isdigit():
            raise CheckpointError(f"counter {self.path} holds {text!r:.40}, which is no count of commits.")
        return mark, int(count)

    def check(self, mark: str, commits: int, may_begin: bool) -> None:
        """Hold a state file against it, and note where that stands.

        Args:
            mark: of the state file.
            commits: in it.
            may_begin: whether the counter may be new.

        Raises:
            ReplayError: for an older version of the file, another file, or a counter that is missing.
        """
        outside = self.read()
        if outside is not None and (outside[0] != mark or outside[1] > commits):
            raise ReplayError(
                f"counter {self.path} stands at {outside[1]} commits, the state file at {commits}: an older"
                " version was put back, or the counter belongs to another stream or run. Going on would"
                " release steps a second time. Put back the newest version of the file; if it is lost, begin"
                " a new one, whose privacy cost adds to this one's."
            )
        if outside is None and commits and not may_begin:
            raise ReplayError(
                f"counter {self.path} is missing although {commits} commits were counted: without it an older"
                " version of the state file could not be told from the newest. Put it back, or say adopt=True"
                " on your own word that this is the newest."
            )
        self.write(mark, commits)

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
