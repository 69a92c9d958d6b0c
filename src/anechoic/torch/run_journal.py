"""Journal of a training run: begun with its first checkpoint, it records every release from there on."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anechoic.budget.book import Reservation
from anechoic.errors import CheckpointError
from anechoic.runs import Journal, identity_of
from anechoic.runs.journal import JournalMark, read_journal
from anechoic.runs.release_chain import begun
from anechoic.torch.noise_adder import NoiseAdder


class RunJournal:
    """Record the digest of each release before the optimizer sees it.

    Without a checkpoint nothing can be made again, so nothing is written, or hashed, before there is one;
    unless a path is given (a file, or a folder): then every release is recorded, from the first.

    Attributes:
        follows: whether another process writes the journal of the run.
        known: releases that the journal of the other process had when the run was resumed.
        booked: the run in the budget book, which every journal of it tells of releases; or None.
    """

    def __init__(
        self,
        release: NoiseAdder,
        *,
        path: str | os.PathLike[str] | None = None,
        sync_every: int = 1,
        follows: bool = False,
    ) -> None:
        self._release = release
        self.follows, self.known = follows, 0
        self.booked: Reservation | None = None
        self._path = None if path is None or follows else Path(path)
        self.sync_every = sync_every
        self.journal: Journal | None = None

    def made(self, noise_key: bytes) -> int:
        """Count the releases under `noise_key` that the journal has: 0 where there is none.

        A resumed run stands before the end of its journal until it has repeated what follows its checkpoint.
        """
        if self.journal is not None:
            return self.journal.end
        place = None if self._path is None else _file(self._path, noise_key)
        if place is None or not begun(place):
            return self.known
        record = read_journal(place)
        return record.end if record.identity == identity_of(noise_key) else 0

    def ready(self, step: int, noise_key: bytes) -> None:
        """Begin the journal before release `step`, where a path was given."""
        if self.journal is None and self._path is not None:
            self.attach(self._open(self._path, step, noise_key))

    def mark(self, folder: Path, step: int, noise_key: bytes) -> dict[str, Any]:
        """Return the journal's length for a checkpoint in `folder`; one is begun if there is none."""
        journal = self.journal
        if journal is None:
            journal = self._open(self._path or folder, step, noise_key)
            self.attach(journal)
        if self._path is None and journal.path.parent != Path(os.path.realpath(folder)):
            mark, place = journal.mark(), journal.carry(folder)
            journal = self._open(place, step, noise_key, mark=mark)
            self.attach(journal)
        return asdict(journal.mark())

    def resumed(
        self, saved: dict[str, Any], folder: Path, noise_key: bytes, step: int, *, adopt: bool
    ) -> Journal:
        """Open the journal that a checkpoint in `folder` was written with; `attach` it to use it."""
        mark = JournalMark(**saved)
        places = [folder / mark.name, Path(mark.path)]
        if self._path is not None:
            places = [self._path / mark.name if self._path.is_dir() else self._path]
            if not places[0].exists():
                raise CheckpointError(
                    f"journal {places[0]} is missing: the checkpoint was written with {mark.path}. Give that"
                    " folder (journal=…, a trainer's output_dir, default_root_dir), or move it."
                )
        place = next((place for place in places if place.exists()), places[0])
        return self._open(place, step, noise_key, mark=mark, adopt=adopt)

    def attach(self, journal: Journal | None) -> None:
        """Use `journal`; None where another process has it."""
        if journal is not None and self.booked is not None:
            self.booked.follow(journal)
        self.journal = self._release.journal = journal

    def _open(self, place: Path, step: int, noise_key: bytes, **how: Any) -> Journal:
        return Journal.open(
            _file(place, noise_key),
            key=noise_key,
            fingerprint=self._release.mechanism.fingerprint,
            position=step,
            sync_every=self.sync_every,
            **how,
        )


def _file(place: Path, noise_key: bytes) -> Path:
    """Path of the journal of a run at `place`, which may be a folder."""
    return place / f"anechoic-{identity_of(noise_key)[:16]}.journal" if place.is_dir() else place
