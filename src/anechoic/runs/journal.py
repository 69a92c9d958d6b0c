"""The journal of a run: what each release was, on disk before anybody uses it.

A resumed run makes the releases after its checkpoint again, under the same rows of noise. The journal holds
it to them: a release that differs in a bit is refused before it is seen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anechoic._validate import positive_int
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.runs.files import sync_folder
from anechoic.runs.journal_format import SECOND, Mark, Record, Seal, checked_digest_key, digest_of, parse
from anechoic.runs.locking import lock

logger = logging.getLogger("anechoic")

#: Seconds between the last line and the last change of its file beyond which the file is taken for one that
#: was put back: clocks of file servers differ by less.
SLACK = 60.0

#: Journals that this process has open, by the file that they are: two engines share one.
_OPEN: weakref.WeakValueDictionary[tuple[int, int], Journal] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


class Journal:
    """Digests of releases in one file, each line chained to the one before; made by `Journal.open`.

    Guarantee: `record` returns only if the release is on disk, under a digest that no other release of this
    position has, as long as all processes of the run use this file. A process that is killed leaves whole
    lines, or one torn line at the end of a release that nobody saw.

    The file is locked: another process cannot open it. A forked child holds no lock, and cannot record.

    A torn line is cut within a minute of the last whole one, as after a crash. Later the file may as well
    have been cut by hand, in the middle of an old line, and has to be adopted.

    Lines are sealed under the run's key: whoever lacks it can write none, and cannot tell from the file how
    long a step took. He can still delete the file, or cut it at a line end. A missing file is refused with a
    checkpoint, and begun anew without one; a cut that is older than a minute is refused.

    Not seen: a copy that is continued on another machine while this one goes on (the copy has to be adopted
    there, and nothing tells this one); a whole disk that is put back to an earlier state, or a clock; a file
    that was put back or cut to lines after the checkpoint's within a minute of the last of them.
    """

    def __init__(
        self, path: Path, handle: int, record: Record, sync_every: int, digest_key: bytes | None = None
    ) -> None:
        self.path = path
        self._digest_key = digest_key
        self._handle, self._record = handle, record
        self._sync_every, self._unsynced = sync_every, 0
        self._writing = threading.Lock()
        self._process = os.getpid()
        self._fault = ""
        self._closing = weakref.finalize(self, _close, handle, os.getpid())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        identity: str,
        fingerprint: str,
        position: int,
        mark: Mark | None = None,
        adopt: bool = False,
        sync_every: int = 1,
        digest_key: bytes | None = None,
    ) -> Journal:
        """The journal at `path` for a run that goes on at `position`.

        Without `mark` it may be missing, and is then begun.

        Args:
            path: file name; its folder exists.
            identity: see `identity_of`.
            fingerprint: of the mechanism.
            position: the next release, >= 0.
            mark: how far the journal was when the checkpoint was written that the run goes on from.
            adopt: take a file that was moved, copied or put back, on the caller's word that no other copy
                is continued.
            sync_every: releases between two waits for the disk. Above 1, a killed process still loses none;
                after a power cut the last sync_every - 1 may be missing, and a resumed run that makes
                others in their place is then not seen.
            digest_key: see `digest_key_of`; None for digests and lines without a key. A journal that an
                earlier version began goes on as it was begun, but has to be adopted: anybody can write it.

        Raises:
            CheckpointError: if it is missing (with `mark`), shorter than `mark` says, damaged or edited.
            GuaranteeError: if another process has it open, or its file system has no locks.
            MismatchError: if it belongs to another run or mechanism.
            ReplayError: if it is a copy, was put back, or anybody could have written it (without `adopt`);
                if it does not know `position`.
        """
        target = Path(os.path.abspath(path))
        positive_int("sync_every", sync_every)
        if digest_key is not None:
            checked_digest_key(digest_key)
        with _OPENING:
            handle = _handle(target, create=mark is None)
            shared = _OPEN.get(_file(handle))
            if shared is not None and shared._handle >= 0:
                os.close(handle)
                shared._check(identity, fingerprint, position, mark)
                return shared
            try:
                lock(handle, target)
                record = _begun(target, handle, digest_key, identity, fingerprint, position)
                found = cls(target, handle, record, sync_every, digest_key)
            except BaseException:
                os.close(handle)
                raise
            found._check(identity, fingerprint, position, mark)
            found._settle(adopt)
            _OPEN[_file(handle)] = found
            return found

    # -- what it holds ---------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """Position of the first release recorded."""
        return self._record.first

    @property
    def end(self) -> int:
        """Position of the first release that is not recorded."""
        return self._record.end

    def mark(self) -> Mark:
        """How far it is, for a checkpoint; all of it is on disk."""
        self._check_own()
        with self._writing:
            self._sync()
            record = self._record
            return Mark(record.identity, self.path.name, str(self.path), len(record.links), record.head)

    # -- releases --------------------------------------------------------------------------------

    def digest(self, parts: Iterable[Any]) -> str:
        """What `record` takes: the digest of a release, as this journal holds them; see `digest_of`."""
        return digest_of(parts, self._digest_key if self._record.keyed else None)

    def record(self, position: int, digest: str) -> None:
        """Note that release `position` is what has `digest`, or compare it with what it was.

        Raises:
            ReplayError: if it was another release: the two would show the difference of their gradients.
            GuaranteeError: if it cannot be written, or the file was deleted.
        """
        self._check_own()
        with self._writing:
            if self._fault:
                raise GuaranteeError(self._fault)
            self._check_position(position)
            if position < self.end:
                self._compare(position, digest)
                return
            if os.fstat(self._handle).st_nlink == 0:
                raise GuaranteeError(
                    f"journal {self.path} was deleted while the run goes on: a resumed run could not be held"
                    " to its releases, so no further ones are made. Start a new run, whose privacy cost adds"
                    " to this one's, and keep the journal as long as its checkpoints."
                )
            self._append("release", position, digest)
            self._unsynced += 1
            if self._unsynced >= self._sync_every:
                self._sync()

    def link(self, folder: str | os.PathLike[str]) -> None:
        """Let the file be found in `folder` too, under the same name, where the file system has links.

        Raises:
            MismatchError: if another file has the name there.
        """
        self._check_own()
        target = Path(os.path.abspath(folder)) / self.path.name
        try:
            there = target.stat()
        except OSError:
            with contextlib.suppress(OSError):  # without links a checkpoint finds it by its whole path
                os.link(self.path, target)
                with self._writing:
                    self._append("place", self._record.token)
                    self._sync()
            return
        if (there.st_dev, there.st_ino) != _file(self._handle):
            raise MismatchError(
                f"{target} is not the journal of this run, which is {self.path}: move it out of the way, or"
                " write checkpoints into another folder."
            )

    def close(self) -> None:
        """Give the file and its lock back; nothing can be recorded afterwards."""
        if self._handle >= 0 and os.getpid() == self._process:
            with self._writing:
                self._sync()
            self._closing()
        self._handle = -1

    # -- inside ----------------------------------------------------------------------------------

    def _compare(self, position: int, digest: str) -> None:
        before = self._record.digests[position - self.first]
        if digest != before:
            raise ReplayError(
                f"release {position} was made before and would now be another one (its digest is"
                f" {digest[:12]}…, journal {self.path} has {before[:12]}…): both have the same row of noise,"
                " and their difference would show gradients. The script, the data, an augmentation, or a"
                " library differs from the first time. Resume with what ran then; or start a new run, and"
                " count this one's releases too (PrivacyEngine.charge)."
            )

    def _check(self, identity: str, fingerprint: str, position: int, mark: Mark | None) -> None:
        record = self._record
        if record.identity != identity:
            raise MismatchError(
                f"journal {self.path} belongs to run {record.identity[:12]}…, and this is run"
                f" {identity[:12]}…: load that run's checkpoint to go on with it, or give this one"
                " another file or folder."
            )
        if record.fingerprint != fingerprint:
            raise MismatchError(
                f"journal {self.path} belongs to a mechanism with fingerprint {record.fingerprint[:12]}…,"
                f" this run's is {fingerprint[:12]}…: a key is for one mechanism. Set up the run as it was,"
                " or give it keys of its own."
            )
        if record.keyed and self._digest_key is None:
            raise MismatchError(
                f"journal {self.path} has digests under a key: open it with"
                " digest_key=runs.digest_key_of(noise_key)."
            )
        if mark is not None:
            if not 0 < mark.lines <= len(record.links):
                raise CheckpointError(
                    f"journal {self.path} has {len(record.links)} lines and had {mark.lines} when the"
                    " checkpoint was written: it was cut or put back, so what was released cannot be told."
                    " Put back the whole journal, or start a new run and count this one's releases too"
                    " (PrivacyEngine.charge)."
                )
            if record.links[mark.lines - 1] != mark.head:
                raise ReplayError(
                    f"journal {self.path} is not the one that the checkpoint was written with: line"
                    f" {mark.lines} differs, so another copy of this run went on by itself. Keep to one of"
                    " them."
                )
        self._check_position(position)

    def _check_position(self, position: int) -> None:
        if not self.first <= position <= self.end:
            raise ReplayError(
                f"journal {self.path} holds {self.end - self.first} releases from {self.first} on, and the"
                f" run would make release {position}: what was not recorded cannot be compared. Go on from"
                " the newest checkpoint of the run, with the whole journal."
            )

    def _settle(self, adopt: bool) -> None:
        """Refuse a file that is not the one last written to; then say that this process has it open."""
        record, here = self._record, _token(self._handle)
        if self._digest_key is not None and not (record.authentic or adopt):
            raise ReplayError(
                f"journal {self.path} was begun by an earlier version, and anybody can write its lines: some"
                " could have been cut and one added, and releases made again unseen. If nobody had it, say"
                " adopt_journal=True; or start a new run, and count this one's releases too"
                " (PrivacyEngine.charge)."
            )
        if record.token and not adopt:
            idle = (os.fstat(self._handle).st_ctime_ns - record.time) / 1e9
            if record.token != here:
                why = "is another file than the one that the run wrote"
            elif os.name != "nt" and idle > SLACK:
                why = f"was changed {idle:.0f} s after its last line was written"
            else:
                why = ""
            if why:
                raise ReplayError(
                    f"journal {self.path} {why}: it was copied, moved or put back from a copy. If two copies"
                    " of a run go on, rows of noise are used for different releases, and nothing here can see"
                    " it. If no other copy is continued and nothing was released after this one was taken,"
                    " say adopt_journal=True."
                )
        if record.torn:
            logger.info("journal %s ends in a torn line, of a release that nobody saw: it is cut.", self.path)
            os.ftruncate(self._handle, record.whole)
            record.torn = False
        self._append("place", here)
        self._sync()

    def _append(self, kind: str, *fields: object) -> None:
        line = self._record.line(kind, *fields, _time(self._record.authentic))
        self._fault = (
            f"journal {self.path} could not be written, so the release was not made: make room on the disk,"
            " restart the process, and resume from the last checkpoint."
        )
        if os.write(self._handle, line) != len(line):
            raise GuaranteeError(self._fault)
        self._fault = ""
        self._record.take(line)

    def _sync(self) -> None:
        if self._unsynced or self._handle >= 0:
            getattr(os, "fdatasync", os.fsync)(self._handle)
        self._unsynced = 0

    def _check_own(self) -> None:
        if os.getpid() != self._process:
            raise GuaranteeError(
                f"journal {self.path} was opened by process {self._process}, and process {os.getpid()} is a"
                " fork of it: make each run in its own process."
            )
        if self._handle < 0:
            raise GuaranteeError(f"journal {self.path} is closed.")

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}, releases {self.first} to {self.end - 1})"


def _handle(target: Path, *, create: bool) -> int:
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | (os.O_CREAT if create else 0)
    try:
        return os.open(target, flags, 0o600)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"journal {target} is missing: without it a resumed run cannot be held to the releases that were"
            " made after the checkpoint. Put it beside the checkpoint; or start a new run, and count this"
            " one's releases too (PrivacyEngine.charge)."
        ) from error
    except OSError as error:
        raise CheckpointError(f"journal {target} cannot be opened: {error.strerror or error}.") from error


def _begun(
    target: Path, handle: int, key: bytes | None, identity: str, fingerprint: str, position: int
) -> Record:
    """What is in the file; a head is written where there is none."""
    with os.fdopen(os.dup(handle), "rb") as file:
        file.seek(0)
        content = file.read()
    record = parse(content, target)
    if record.links:  # of another run its seals are under another key, and it is refused by its name
        own = record.authentic and record.identity == identity
        return parse(content, target, key=key) if own else record
    os.ftruncate(handle, 0)  # a process that was killed while it began
    record = Record(seal=None if key is None else Seal(key))
    kind = "run" if key is None else "authentic"
    line = record.line(kind, identity, fingerprint, position, _time(key is not None))
    os.write(handle, line)
    os.fsync(handle)
    record.take(line)
    sync_folder(target.parent)
    return record


def _time(hidden: bool) -> int:
    """Now, rounded up: to a second where nobody can read it, else to a minute, which tells less of a step."""
    grain = SECOND if hidden else 60 * SECOND
    return -(-time.time_ns() // grain) * grain


def _file(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


def _token(handle: int) -> str:
    """Which file this is: its number, and that of its file system, which outlive a restart of the machine."""
    status = os.fstat(handle)
    system = os.fstatvfs(handle).f_fsid if hasattr(os, "fstatvfs") else status.st_dev
    return f"{system:x}.{status.st_ino:x}"


def _close(handle: int, process: int) -> None:
    if os.getpid() == process:
        os.close(handle)


def _forget_in_child() -> None:
    """A child would keep the lock alive after its parent's death."""
    for journal in list(_OPEN.values()):
        if journal._handle >= 0:
            os.close(journal._handle)
            journal._handle = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
