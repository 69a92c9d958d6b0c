"""The state of a stream as one SQLite file: every step is there as a whole, once, or not at all.

What an update or a release changes (sums of the open step, memory of the noise, accounts of units, the noisy
row as published) is one transaction, on disk before anybody sees the release. So a process that is killed
leaves the state before an instruction or after it; and a release that was lost before its commit was seen by
nobody.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from anechoic.keys import derive
from anechoic.mechanism.rows import NoiseRows
from anechoic.runs.settings_check import MECHANISM
from anechoic.runs.state_file import StateFile
from anechoic.streaming.ledger import Table
from anechoic.streaming.stream_state import StreamState
from anechoic.units.ids import DIGEST

#: What a state file says of its stream besides identity and MECHANISM, for those who read it without a key.
LABELS = "labels"
_STEP = struct.Struct("<Q")  # of a batch


class Store(StateFile):
    """A state file of a stream; see `StateFile`, and `anechoic.streaming.stream_state.InMemory`.

    Of every step it keeps the noisy row, of which the release follows. It holds sums of the open step, noise,
    counts, units and batches too: it is as secret as the data.

    Args:
        path, identity, key, adopt: see `StateFile`.
        shown: LABELS, of entries of statistics, and MECHANISM, as JSON.
    """

    KIND = "stream"
    SHOWN: ClassVar[tuple[str, ...]] = (LABELS, MECHANISM)
    TABLES: ClassVar[tuple[str, ...]] = ("units", "batches")
    NEW_RUN = "Start a new stream in another file, whose privacy cost adds to this one's."
    AGAIN = "repeat the batch only under the batch_id that it had: then it counts once"
    OTHERWISE = (
        "Open it with what it was begun with; for another mechanism, statistic or clock begin another file,"
        " whose privacy cost adds to this one's."
    )

    def __init__(self, path: str | os.PathLike[str], **how: Any) -> None:
        super().__init__(path, **how)
        self.units: Table = self.tables["units"]
        self._batches, self._secret = self.tables["batches"], derive(self.key, "batches", size=32)

    def load(self, noise: NoiseRows) -> StreamState | None:
        held = self.held()
        if held is None:
            return None
        content = memoryview(held)
        size = 8 + int.from_bytes(content[:8], "little")
        head = json.loads(bytes(content[8:size]))
        end, ahead = size + head["sums"], head["ahead"]
        rows = np.frombuffer(content[size:end], "<i8").astype(np.int64).reshape(2 + len(ahead), -1)
        noise.restore(head["step"], head["noise_dtype"], tuple(head["noise_shape"]), bytes(content[end:]))
        later = dict(zip(ahead, rows[2:], strict=True))
        return StreamState(head["step"], rows[0], rows[1], Counter(head["counts"]), head["time"], later)

    def save(self, standing: StreamState, noise: NoiseRows) -> None:
        _, dtype, shape, memory = noise.saved()
        sums = np.array([standing.open, standing.total, *standing.ahead.values()], "<i8")
        head = {
            "step": standing.step,
            "noise_dtype": dtype,
            "noise_shape": shape,
            "counts": dict(standing.counts),
            "time": standing.time,
            "ahead": list(standing.ahead),
            "sums": sums.nbytes,
        }
        written = json.dumps(head).encode()
        self.keep(b"".join([len(written).to_bytes(8, "little"), written, sums.tobytes(), memory]))

    def step_of_batch(self, batch_id: str) -> int | None:
        for held in self._batches.fetch([self._batch(batch_id)]).values():
            return int(_STEP.unpack(held)[0])
        return None

    def mark(self, batch_id: str, step: int) -> None:
        self._batches.write({self._batch(batch_id): _STEP.pack(step)})

    def _batch(self, batch_id: str) -> bytes:
        return derive(self._secret, batch_id, size=DIGEST)

    def published(self, step: int) -> tuple[str | float | None, bytes]:
        time, row = self._database.run("SELECT time, row FROM releases WHERE step = ?", (step,))[0]
        return json.loads(time), row
