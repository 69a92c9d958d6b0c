"""Numbers of bands to compare: few bands leave amplification, many cancel noise.

Under cyclic Poisson sampling with as many groups as bands b, each example is exposed in T = ceil(n / b)
releases at rate B b / N. The error falls smoothly in b, the noise grows with the rate and falls where T does:
between two such places the product has no inner minimum to speak of, so that only the least and the largest b
of each T are tried. Around that it has one minimum, or two, of which one is at an end; it is flat there.
"""

from __future__ import annotations

#: Bands beyond which the predicted error has been this many times the least are not tried.
FAR = 1.6
#: The largest b of some T is tried apart from the least where they differ by more than this.
_APART = 1.04
#: Ratio of neighbours on the grid of numbers of bands, from `_EVERY` on; below it every number is there.
_RATIO = 1.15
_EVERY = 12


def grid(steps: int, most: int) -> list[int]:
    """Numbers of bands 1 <= b <= most that are worth comparing: every small one, and the ends of each T.

    What is compared at a smaller `most` is compared at a larger one too, but for `most` itself.
    """
    found, bands = set(range(1, min(most, _EVERY) + 1)), float(_EVERY)
    while bands < most:
        found.update(b for b in ends(round(bands), steps, steps) if b <= most)
        bands *= _RATIO
    return sorted({*found, most})


def ends(bands: int, steps: int, most: int) -> list[int]:
    """The least b <= most with as many releases of each group as `bands` groups have, and the largest."""
    releases = -(-steps // bands)
    low = min(most, -(-steps // releases))
    high = most if releases == 1 else min(most, -(-steps // (releases - 1)) - 1)
    return [low, high] if high > _APART * low else [low]


def powers_of_two(most: int) -> list[int]:
    """2, 4, … and `most`, or [1]."""
    powers = [2**i for i in range(1, most.bit_length()) if 2**i < most]
    return [*powers, most] if most >= 1 else powers
