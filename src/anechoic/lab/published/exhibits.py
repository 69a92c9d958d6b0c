"""Every figure and table that is computed again, by name."""

from collections.abc import Callable

from anechoic.lab.published import correlated, descent, ftrl
from anechoic.lab.published.exhibit import Exhibit

EXHIBITS: dict[str, Callable[[], Exhibit]] = {
    "spectra": correlated.click,
    "000-1": correlated.figure_1,
    "000-2": correlated.figure_2,
    "000-3": correlated.figure_3,
    "000-table-1": correlated.table_1,
    "000-table-2": correlated.table_2,
    "000-table-3": correlated.table_3,
    "000-directions": correlated.directions,
    "001-last-iterate": ftrl.last_iterate,
    "004-2": descent.figure_2,
    "004-4": descent.figure_4,
}


def exhibit(name: str) -> Exhibit:
    """The figure or table of this name.

    Raises:
        ValueError: for a name that is not in `EXHIBITS`.
    """
    if name not in EXHIBITS:
        raise ValueError(f"name={name!r} is unknown: choose one of {', '.join(EXHIBITS)}.")
    return EXHIBITS[name]()
