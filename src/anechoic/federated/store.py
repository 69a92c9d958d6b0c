"""The state of a federated run as a directory: who was asked, who took part, and the model as released last.

Everything small is one SQLite file, in which a charge or a release is one transaction. Vectors are files
beside it: on disk before the commit that names them, with their digests. So a server that is killed goes on
before an instruction or after it; and a release that was lost before its commit was seen by nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anechoic.federated.clients import ClientId
from anechoic.federated.state import RunStanding, RunTally
from anechoic.federated.vectors import Vectors
from anechoic.mechanism.rows import NoiseRows
from anechoic.runs.settings_check import MECHANISM
from anechoic.runs.state_file import StateFile

#: In the state directory.
FILE = "state.db"
#: Fewest releases between two snapshots of the noise.
_ROWS_BETWEEN = 16


class RunStore(StateFile):
    """A state directory, open for this process alone; see `StateFile`, and `federated.state.RunInMemory`.

    The directory holds models as released, the noise of past rounds, the ids of the clients of the open
    round, and what clients that took part did, by keyed digests of them: it is as secret as the data.

    Args:
        path: directory; it is made, for its owner alone, where there is none, in a folder that exists.
        identity, shown, key, adopt: see `StateFile`.

    Raises:
        ValueError: for a path at which no directory can be made.
        CheckpointError, GuaranteeError, MismatchError, ReplayError: as `StateFile`.
    """

    KIND = "federated run"
    TABLES: ClassVar[tuple[str, ...]] = ("clients",)
    NEW_RUN = "Start a new run in another directory, whose privacy cost adds to this one's."
    AGAIN = "ask again: an open round has the same clients, and the step shows whether it was released"
    OTHERWISE = (
        "Open it with what it was begun with; for another mechanism, model or policy begin another run,"
        " whose privacy cost adds to this one's."
    )

    def __init__(self, path: str | os.PathLike[str], **how: Any) -> None:
        folder = check_folder(path)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._vectors = Vectors(folder)
        self._files: dict[str, list[str]] = {}
        self._head: dict[str, Any] | None = None
        self._steps = 0
        super().__init__(folder / FILE, **how)
        self._sweep()

    def _admitted(self) -> int:
        found = self.held()
        if found is None:
            return 0
        self._head = json.loads(found)
        self._files, self._steps = self._head["files"], int(self._head["step"])
        return self._steps

    @property
    def steps(self) -> int:
        return self._steps

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
        self._sweep()  # files of the commit before: nothing names them any more

    def _sweep(self) -> None:
        self._vectors.sweep({name for name, _ in self._files.values()})

    def load(self) -> RunStanding | None:
        head = self._head
        if head is None:
            return None
        arrays = self._vectors.read(self._files["model"], self.NEW_RUN)
        memory = [arrays[f"memory {i}"] for i in range(head["memory"])]
        fixed = {name[6:]: array for name, array in arrays.items() if name.startswith("fixed ")}
        tally = dict(head["tally"])
        return RunStanding(
            head["step"],
            head["attempt"],
            None if head["asked"] is None else tuple(map(_read_id, head["asked"])),
            arrays["model"],
            tuple(memory),
            fixed,
            RunTally(**{**tally, "refused": Counter(tally["refused"])}),
        )

    def remember(self, noise: NoiseRows) -> None:
        if "noise" in self._files:
            arrays = self._vectors.read(self._files["noise"], self.NEW_RUN)
            rows = arrays["rows"]
            noise.restore(int(arrays["step"]), rows.dtype.str, rows.shape, rows.tobytes())

    def entries(self) -> Mapping[bytes, bytes]:
        return self.tables["clients"].all()

    def charge(self, entries: Mapping[bytes, bytes]) -> None:
        self.tables["clients"].write(entries)

    def save(self, standing: RunStanding) -> None:
        if "model" not in self._files:
            self._write_model(standing)
        head = json.dumps(
            {
                "step": standing.step,
                "attempt": standing.attempt,
                "asked": None if standing.asked is None else [_written_id(c) for c in standing.asked],
                "memory": len(standing.memory),
                "files": self._files,
                "tally": {**vars(standing.tally), "refused": dict(standing.tally.refused)},
            }
        )
        self._steps = standing.step
        self.keep(head.encode())

    def save_model(self, standing: RunStanding) -> None:
        self._write_model(standing)
        self.save(standing)

    def save_noise(self, noise: NoiseRows) -> None:
        step, dtype, shape, data = noise.saved()
        arrays = {"step": np.array(step), "rows": np.frombuffer(data, dtype).reshape(shape)}
        self._files = {**self._files, "noise": self._vectors.write("noise", step, arrays)}

    def rows_between(self, rows: int) -> float:
        # a snapshot is `rows` vectors: so it costs a release no more than writing one; a restart makes the
        # rows since the last one again
        return max(_ROWS_BETWEEN, rows)

    def _write_model(self, standing: RunStanding) -> None:
        arrays = {
            "model": standing.model,
            **{f"memory {i}": part for i, part in enumerate(standing.memory)},
            **{f"fixed {name}": array for name, array in standing.fixed.items()},
        }
        self._files = {**self._files, "model": self._vectors.write("model", standing.step, arrays)}


def mechanism_in(state: str | os.PathLike[str] | None) -> str | None:
    """The mechanism of the run in a state directory, as JSON; None where there is none."""
    return None if state is None else RunStore.shown(check_folder(state) / FILE, MECHANISM)


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Where a state directory is, or can be made.

    Raises:
        ValueError: for a file, or where the folder is missing that it would be made in.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"state={path!r} must be the path of a directory.")
    folder = Path(os.path.realpath(path))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"state={path} is a file: give a directory, which is made where there is none.")
    if not folder.parent.is_dir():
        raise ValueError(
            f"state={path} lies in {folder.parent}, which is no folder that is there: make that first, or"
            " correct the path."
        )
    return folder


def _written_id(client: ClientId) -> list[str]:
    if isinstance(client, bytes):
        return ["bytes", client.hex()]
    return ["str", client] if isinstance(client, str) else ["int", hex(client)]


def _read_id(written: list[str]) -> ClientId:
    kind, text = written
    if kind == "bytes":
        return bytes.fromhex(text)
    return text if kind == "str" else int(text, 16)
