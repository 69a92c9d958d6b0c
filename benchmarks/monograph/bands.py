"""The number of bands with the least score, which jumps where the number of releases does, by few scores."""

from __future__ import annotations

from collections.abc import Callable

from anechoic.planning.bands import FAR, ends, powers_of_two

#: A coarse minimum within this of the best is refined too.
NEAR = 1.03
#: Tried between two neighbours of the coarse search.
_BETWEEN = 4


def best_bands(score: Callable[[int], float], *, steps: int, most: int) -> dict[int, float]:
    """The predicted error at every number of bands that was tried, a minimum and its surroundings among them.

    Args:
        score: the predicted error of 1 <= b <= most bands.
        steps: n.
        most: b <= most.
    """
    found: dict[int, float] = {}

    def value(bands: int) -> float:
        if bands not in found:
            found[bands] = score(bands)
        return found[bands]

    def tried(bands: int) -> float:
        return min(value(b) for b in ends(bands, steps, most))

    coarse = powers_of_two(most)
    values: list[float] = []
    for bands in coarse:
        if len(values) > 2 and min(values[-2:]) > FAR * min(values):
            values.append(float("inf"))  # it only grows, but for the end
            continue
        values.append(tried(bands))
    values[-1] = tried(most)
    least = min(values)
    for i, bands in enumerate(coarse):
        beside = values[max(i - 1, 0) : i + 2]
        if values[i] > min(beside) or values[i] > NEAR * least:
            continue
        for low, high in zip(coarse[max(i - 1, 0) : i + 1], coarse[i : i + 2], strict=False):
            for part in range(1, _BETWEEN):
                tried(round(low * (high / low) ** (part / _BETWEEN)))
        tried(bands)
    return found
