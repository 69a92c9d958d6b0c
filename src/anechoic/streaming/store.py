"""The state of a stream as one SQLite file: every step is there as a whole, once, or not at all.

What an update or a release changes (sums of the open step, memory of the noise, accounts of units, the
release as published) is one transaction, on disk before anybody sees the release. So a process that is killed
leaves the state before an instruction or after it; and a release that was lost before its commit was seen by
nobody, so that its row of noise may be used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from anechoic.errors import CheckpointError
from anechoic.runs.state_file import StateFile, digest_of_parts, new_salt
from anechoic.streaming.ledger import Accounts
from anechoic.streaming.members import Members
from anechoic.streaming.release import Release
from anechoic.streaming.state import Snapshot

#: Name under which a state file has labels: for those who read it, the stream itself does not.
LABELS = "labels"


class Store(StateFile):
    """A state file of a stream; see `StateFile`, and `anechoic.streaming.state.State`.

    It holds the noise of past steps and the sums of the open step: it is as secret as the data. A key may
    serve several files: each has a salt of its own, from which, and the key, its noise follows.

    Args:
        path, identity, key, counter, adopt: see `StateFile`.
        labels: of entries of statistics, for those who read releases.

    Raises:
        CheckpointError, GuaranteeError, MismatchError, ReplayError: as `StateFile`.
    """

    KIND = "stream"
    FORMAT = 2
    SCHEMA = (
        "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), head TEXT NOT NULL, open BLOB NOT NULL,"
        " total BLOB NOT NULL, noise BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE releases (step INTEGER PRIMARY KEY, published BLOB NOT NULL, row BLOB NOT NULL,"
        " link BLOB NOT NULL)",
        "CREATE TABLE batches (id TEXT PRIMARY KEY, step INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE units (unit BLOB PRIMARY KEY, steps INTEGER NOT NULL, last INTEGER NOT NULL,"
        " records INTEGER NOT NULL) WITHOUT ROWID",
    )
    NEW_RUN = "Start a new stream in another file, whose privacy cost adds to this one's."
    AGAIN = "repeat the batch"
    AGAIN_UNKNOWN = "repeat the batch only under the batch_id that it had: then it counts once"
    WRITTEN = "Do not repeat the batch; it is in the file."
    OTHERWISE = (
        "Open it with what it was begun with; for another mechanism or statistic begin another file, whose"
        " privacy cost adds to this one's."
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        key: bytes | None = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        self._labels = dict(labels or {})
        super().__init__(path, identity=identity, salt=new_salt(), key=key, counter=counter, adopt=adopt)
        self.accounts: Accounts = self._members
        self.kept = self.made

    # -- opening -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._set("head", hashlib.sha256(self.identity.encode()).digest())
        self._set("members", Members(self._database).digest)
        self._set(LABELS, json.dumps(self._labels))

    def _check_content(self, meta: dict[str, Any]) -> None:
        self._head, members = bytes(meta["head"]), bytes(meta["members"])
        self._check_links()
        self._members = Members(self._database)
        if self._members.read_all() != members:
            raise CheckpointError(
                f"the accounts of units or batches in state file {self.path} are damaged, so who took part"
                f" cannot be told. {self.NEW_RUN}"
            )

    def _check_links(self) -> None:
        link = hashlib.sha256(self.identity.encode()).digest()
        expected = 0
        for step, published, row, stored in self._database.execute(
            "SELECT step, published, row, link FROM releases ORDER BY step"
        ):
            link = _link(link, published, row)
            if step != expected or link != stored:
                raise CheckpointError(
                    f"release {expected} in state file {self.path} is damaged or missing, so what was"
                    f" released cannot be told. {self.NEW_RUN}"
                )
            expected += 1
        self.made = expected
        if link != self._head:
            raise CheckpointError(f"state file {self.path} lacks its last releases. {self.NEW_RUN}")

    def _seal(self) -> None:
        self._set("head", self._head)
        self._set("members", self._members.digest)

    @property
    def releases_made(self) -> int:
        return self.made

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
        self.kept = self.made  # on disk, and counted

    # -- content -------------------------------------------------------------------------------

    def load(self) -> Snapshot | None:
        found = self._database.execute("SELECT head, open, total, noise, digest FROM state").fetchone()
        if found is None:
            if self.made:
                raise CheckpointError(f"state file {self.path} has lost its open step. {self.NEW_RUN}")
            return None
        head, *blobs, digest = found
        if digest_of_parts(head, *blobs) != digest:
            raise CheckpointError(f"the open step in state file {self.path} is damaged. {self.NEW_RUN}")
        fields = json.loads(head)
        snapshot = Snapshot(
            fields["step"],
            blobs[0],
            fields["total_dtype"],
            blobs[1],
            fields["noise_dtype"],
            tuple(fields["noise_shape"]),
            blobs[2],
            fields["counts"],
            fields["time"],
        )
        if snapshot.step != self.made:
            raise CheckpointError(
                f"state file {self.path} holds {self.made} releases and stands at step {snapshot.step}."
                f" {self.NEW_RUN}"
            )
        if (fields["commits"], fields["members"]) != (self.commits, self._members.digest.hex()):
            raise CheckpointError(
                f"state file {self.path} holds parts of two states: a commit was cut short, and its"
                f" journal is not beside it. Put {self.path.name}-journal back; else: {self.NEW_RUN}"
            )
        return snapshot

    def save(self, take: Callable[[], Snapshot]) -> None:
        snapshot = take()
        head = json.dumps(
            {
                "step": snapshot.step,
                "commits": self.commits + 1,  # of the transaction that this is part of
                "members": self._members.digest.hex(),
                "total_dtype": snapshot.total_dtype,
                "noise_dtype": snapshot.noise_dtype,
                "noise_shape": snapshot.noise_shape,
                "counts": snapshot.counts,
                "time": snapshot.time,
            }
        )
        blobs = (snapshot.open, snapshot.total, snapshot.noise)
        self._database.execute(
            "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?)",
            (head, *blobs, digest_of_parts(head, *blobs)),
        )

    def seen(self, batch_id: str) -> int | None:
        return self._members.step_of(batch_id)

    def mark(self, batch_id: str, step: int) -> None:
        self._members.mark(batch_id, step)

    def append(self, release: Release, row: bytes) -> None:
        published = release.to_bytes()
        self._head = _link(self._head, published, row)
        self._database.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?)", (release.step, published, row, self._head)
        )
        self.made = release.step + 1

    def release(self, step: int) -> Release:
        query = "SELECT published FROM releases WHERE step = ?"
        published = self._database.execute(query, (step,)).fetchone()[0]
        return Release.from_bytes(published, self._labels)

    def row(self, step: int) -> bytes:
        return bytes(self._database.execute("SELECT row FROM releases WHERE step = ?", (step,)).fetchone()[0])

    def releases(self, first: int, last: int) -> list[Release]:
        query = "SELECT published FROM releases WHERE step >= ? AND step < ? ORDER BY step"
        found = self._database.execute(query, (first, last)).fetchall()
        return [Release.from_bytes(published, self._labels) for (published,) in found]


def _link(before: bytes, published: bytes, row: bytes) -> bytes:
    return hashlib.sha256(before + len(published).to_bytes(8, "little") + published + row).digest()
