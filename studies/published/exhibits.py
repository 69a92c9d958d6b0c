"""Every figure and table that is computed again, by name."""

from collections.abc import Callable
from pathlib import Path

from studies.published import anytime, correlated, descent, ftrl, training
from studies.published.exhibit import Exhibit

EXHIBITS: dict[str, Callable[[], Exhibit]] = {
    "spectra": correlated.click,
    "000-1": correlated.figure_1,
    "000-2": correlated.figure_2,
    "000-3": correlated.figure_3,
    "000-table-1": correlated.table_1,
    "000-table-2": correlated.table_2,
    "000-table-3": correlated.table_3,
    "000-table-4": correlated.table_4,
    "000-directions": correlated.directions,
    "001-last-iterate": ftrl.last_iterate,
    "001-lq": ftrl.lq,
    "001-regret": ftrl.regret,
    "001-table-1": ftrl.table_1,
    "004-2": descent.figure_2,
    "004-4": descent.figure_4,
    "004-5": descent.figure_5,
    "004-6": descent.figure_6,
}

#: Those that train on data of the caller's, and take long: made only when they are asked for by name.
TRAINED: dict[str, Callable[[str, Path], Exhibit]] = {"000-4": anytime.figure_4, "004-3": training.figure_3}
#: The same on data that every machine has.
TRAINED_ON_TEXT: dict[str, Callable[[Path], Exhibit]] = {"004-table-2": anytime.table_2}


def exhibit(name: str, *, data: str | None = None, folder: Path | None = None) -> Exhibit:
    """The figure or table of this name.

    Args:
        name: in `EXHIBITS`, `TRAINED` or `TRAINED_ON_TEXT`.
        data: folder of the data set, for one of `TRAINED`.
        folder: where what trains keeps its outcomes, and goes on from them; None for a folder of its name
            where the program runs.

    Raises:
        ValueError: for an unknown name, or one of `TRAINED` without data.
    """
    if name in TRAINED:
        if data is None:
            raise ValueError(f"{name} trains on images: give --data-dir, the folder with the four files.")
        return TRAINED[name](data, folder or Path(f"{name}-runs"))
    if name in TRAINED_ON_TEXT:
        return TRAINED_ON_TEXT[name](folder or Path(f"{name}-runs"))
    if name not in EXHIBITS:
        raise ValueError(
            f"name={name!r} is unknown: choose one of {', '.join([*EXHIBITS, *TRAINED, *TRAINED_ON_TEXT])}."
        )
    return EXHIBITS[name]()
