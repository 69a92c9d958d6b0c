"""What a study leaves on disk to go on from: outcomes of finished runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from anechoic.errors import CheckpointError
from studies.comparison.study import Outcome, TrainingRun


def check_empty(folder: Path | None) -> None:
    """Refuse to begin a study where another one left its runs.

    Raises:
        CheckpointError: naming one of them.
    """
    if folder is None or not folder.is_dir():
        return
    kept = [file.name for file in sorted(folder.iterdir()) if file.suffix == ".json"]
    if kept:
        raise CheckpointError(
            f"--checkpoint {folder} holds runs already ({kept[0]} among them), which would be written over:"
            " go on with them by --resume, or name another folder."
        )


def keep(run: TrainingRun, identity: str, outcome: Outcome) -> None:
    """Write the outcome of a finished run."""
    path = _finished(run)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps({"identity": identity, **asdict(outcome)}, indent=1), encoding="utf-8")
    os.replace(draft, path)


def finished(run: TrainingRun, identity: str) -> Outcome | None:
    """The outcome of this very run, where it is on disk.

    Raises:
        CheckpointError: if the file is damaged, or of a run with other settings under the same name.
    """
    path = _finished(run)
    if run.checkpoint is None or not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = record.pop("identity")
        outcome = Outcome(**record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}. Delete it, and the run starts again.") from error
    if known != identity:
        raise CheckpointError(
            f"{path} is of a run with other settings (steps, data, mechanism): resume with the"
            " settings it was begun"
            " with, or take another --checkpoint folder."
        )
    return outcome


def _finished(run: TrainingRun) -> Path:
    return Path(run.checkpoint or ".") / f"{run.name}.json"
