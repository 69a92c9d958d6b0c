"""The state of a stream as one SQLite file: every step is there as a whole, once, or not at all.

What an update or a release changes (sums of the open step, memory of the noise, accounts of units, the noisy
row as published) is one transaction, on disk before anybody sees the release. So a process that is killed
leaves the state before an instruction or after it; and a release that was lost before its commit was seen by
nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anechoic.errors import CheckpointError
from anechoic.mechanism.rows import NoiseRows
from anechoic.runs.sealing import filled
from anechoic.runs.state_file import MECHANISM, StateFile, digest_of_parts
from anechoic.streaming.account_table import Members
from anechoic.streaming.ledger import Table
from anechoic.streaming.stream_state import Standing

#: What a state file says of its stream besides identity and MECHANISM, for those who read it without a key.
LABELS = "labels"
#: Parts of a snapshot that are bytes; the others are JSON.
_BLOBS = ("open", "total", "noise")


class Store(StateFile):
    """A state file of a stream; see `StateFile`, and `anechoic.streaming.state.InMemory`.

    Of every step it keeps the noisy row, of which the release follows, in the clear. Sums of the open step,
    noise, counts, units and batches are sealed.

    Args:
        path, identity, key, counter, adopt: see `StateFile`.
        shown: LABELS, of entries of statistics, and MECHANISM, as JSON.

    Raises:
        CheckpointError, GuaranteeError, MismatchError, ReplayError: as `StateFile`.
    """

    KIND = "stream"
    FORMAT = 3
    SCHEMA = (
        "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), sealed BLOB NOT NULL)",
        "CREATE TABLE releases (step INTEGER PRIMARY KEY, time TEXT NOT NULL, row BLOB NOT NULL)",
        "CREATE TABLE batches (id BLOB PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE units (id BLOB PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID",
    )
    NEW_RUN = "Start a new stream in another file, whose privacy cost adds to this one's."
    AGAIN = "repeat the batch"
    AGAIN_UNKNOWN = "repeat the batch only under the batch_id that it had: then it counts once"
    WRITTEN = "Do not repeat the batch; it is in the file."
    OTHERWISE = (
        "Open it with what it was begun with; for another mechanism, statistic or clock begin another file,"
        " whose privacy cost adds to this one's."
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str,
        shown: Mapping[str, str],
        key: bytes | None = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        self._saved = ""
        super().__init__(path, identity=identity, shown=shown, key=key, counter=counter, adopt=adopt)
        self.units: Table = self._members.units
        self.kept = self.made

    # -- opening -------------------------------------------------------------------------------

    def _read_public(self, meta: dict[str, Any]) -> None:
        self._link, self.made = first_link(meta), 0
        for step, time, row in self._database.each("SELECT step, time, row FROM releases ORDER BY step"):
            if step != self.made:
                raise CheckpointError(
                    f"release {self.made} is missing in state file {self.path}, so what was released cannot"
                    f" be told. {self.NEW_RUN}"
                )
            self._link = next_link(self._link, time, row)
            self.made += 1
        if self.made and meta["link"] != self._link:
            raise CheckpointError(
                f"releases in state file {self.path} are damaged, or the last ones are missing, so what was"
                f" released cannot be told. {self.NEW_RUN}"
            )
        self._members = Members(self._database, self.seal, self.key)

    def _public(self) -> bytes:
        return self._link

    def _private(self) -> dict[str, Any]:
        self._set("link", self._link)
        return {"members": self._members.state, "state": self._saved}

    def _read_private(self, private: dict[str, Any]) -> None:
        self._saved = str(private["state"])
        if not self._members.checked(private["members"]):
            raise CheckpointError(
                f"the accounts of units or batches in state file {self.path} are damaged, so who took part"
                f" cannot be told. {self.NEW_RUN}"
            )

    @property
    def releases_made(self) -> int:
        return self.made

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
        self.kept = self.made  # on disk, and counted

    # -- content -------------------------------------------------------------------------------

    def load(self, noise: NoiseRows) -> Standing | None:
        found = self._database.run("SELECT sealed FROM state")
        if not found and not self._saved:
            return None
        sealed = bytes(found[0][0]) if found else b""
        if digest_of_parts("state", sealed).hex() != self._saved:
            raise CheckpointError(
                f"the open step in state file {self.path} is damaged or of another time. {self.NEW_RUN}"
            )
        content = memoryview(self.seal.open(b"state", sealed))
        size = int.from_bytes(content[:8], "little")
        head, place = json.loads(bytes(content[8 : 8 + size])), 8 + size
        for name in _BLOBS:
            head[name], place = bytes(content[place : place + head[name]]), place + head[name]
        noise.restore(head["step"], head["noise_dtype"], tuple(head["noise_shape"]), head["noise"])
        return Standing(
            head["step"],
            np.frombuffer(head["open"], "<i8").astype(np.int64),
            np.frombuffer(head["total"], head["total_dtype"]).copy(),
            Counter(head["counts"]),
            head["time"],
        )

    def save(self, standing: Standing, noise: NoiseRows) -> None:
        _, dtype, shape, memory = noise.saved()
        total = np.ascontiguousarray(standing.total)
        blobs = (np.ascontiguousarray(standing.open, "<i8").tobytes(), total.tobytes(), memory)
        head = {
            "step": standing.step,
            "total_dtype": total.dtype.str,
            "noise_dtype": dtype,
            "noise_shape": shape,
            "counts": dict(standing.counts),
            "time": standing.time,
            **{name: len(blob) for name, blob in zip(_BLOBS, blobs, strict=True)},
        }
        written = filled(json.dumps(head))
        content = b"".join([len(written).to_bytes(8, "little"), written, *blobs])
        sealed = self.seal.close(b"state", content)
        self._saved = digest_of_parts("state", sealed).hex()
        self._database.run("INSERT OR REPLACE INTO state VALUES (1, ?)", (sealed,))

    def seen(self, batch_id: str) -> int | None:
        return self._members.step_of(batch_id)

    def mark(self, batch_id: str, step: int) -> None:
        self._members.mark(batch_id, step)

    def append(self, step: int, time: str | float | None, row: bytes) -> None:
        written = json.dumps(time)
        self._link = next_link(self._link, written, row)
        self._database.run("INSERT INTO releases VALUES (?, ?, ?)", (step, written, row))
        self.made = step + 1

    def published(self, step: int) -> tuple[str | float | None, bytes]:
        time, row = self._database.run("SELECT time, row FROM releases WHERE step = ?", (step,))[0]
        return json.loads(time), row

    def forget(self, before: int) -> None:
        """A file keeps all."""


def first_link(meta: Mapping[str, Any]) -> bytes:
    """Of the chain of digests of all that is published: what the file says of its stream."""
    return digest_of_parts("stream", *(str(meta[name]).encode() for name in ("identity", LABELS, MECHANISM)))


def next_link(before: bytes, time: str, row: bytes) -> bytes:
    """The same with another release."""
    return digest_of_parts("release", before, time.encode(), row)
