"""Places of a long series that show its course."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array


def thinned(values: Array, most: int) -> NDArray[np.intp]:
    """Places of at most `most` values: the ends, and the least and the largest of runs of equal length.

    Args:
        values: shape (n,), n >= 1.
        most: >= 4.

    Returns:
        Increasing places, all of them where n <= most.
    """
    n = len(values)
    if n <= most:
        return np.arange(n)
    width = -(-n // (most // 2 - 1))
    places = np.minimum(np.arange(-(-n // width) * width), n - 1).reshape(-1, width)
    runs = np.asarray(values)[places]
    found = [places[np.arange(len(runs)), pick(runs, axis=1)] for pick in (np.argmin, np.argmax)]
    return np.unique(np.concatenate([*found, [0, n - 1]]))
