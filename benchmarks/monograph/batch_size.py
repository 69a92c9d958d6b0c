"""Figs. 3.5 and 4.3: what the batch size does to the max loss, and to the best number of bands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from monograph.bands import best_bands

from anechoic import optimize, workloads
from anechoic.accounting import gaussian_mu
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.losses.dispatch import error
from anechoic.strategies import Identity

# The text has N = 4069 and, two lines on, N / n = 2 with full batches of 4096. It names no delta.
STEPS, EXAMPLES, DELTA = 2048, 4096, 1e-6
SIZES = [2**power for power in range(13)]
SHOWN = (1.0, 10.0)
TUNED = (0.25, 1.0, 2.0, 4.0, 10.0)
_EQUAL = 1.0005  # losses closer than this are equal: the fewer bands are the best


@dataclass(frozen=True)
class Best:
    """The best banded Toeplitz mechanism at one batch size."""

    bands: int
    loss: float  # of the average gradient: max loss times sigma over B


@cache
def max_error(bands: int) -> float:
    """Max loss of the best banded Toeplitz strategy for one participation."""
    if bands == 1:
        return error(workloads.prefix_sum(STEPS), Identity(STEPS)).max
    return optimize.banded_toeplitz(workloads.prefix_sum(STEPS), bands=bands, loss="max").loss


def noise(
    epsilon: float,
    batch_size: int,
    groups: int,
    *,
    amplified: bool,
    steps: int = STEPS,
    examples: int = EXAMPLES,
    delta: float = DELTA,
) -> float:
    """Noise multiplier of a strategy of at most `groups` bands."""
    releases = -(-steps // groups)
    if amplified:
        rate = min(1.0, batch_size * groups / examples)
        return poisson_noise_multiplier_estimate(epsilon, delta, rate, releases)
    period = examples // batch_size  # every example once in so many steps
    return (-(-steps // period)) ** 0.5 / gaussian_mu(epsilon, delta)


def best_of(epsilon: float, batch_size: int, *, amplified: bool) -> Best:
    """Over bands up to the separation N / B, beyond which neither theorem holds."""
    most = min(STEPS, EXAMPLES // batch_size)
    tried = best_bands(
        lambda b: max_error(b) * noise(epsilon, batch_size, b, amplified=amplified), steps=STEPS, most=most
    )
    if amplified:
        tried[1] = max_error(1) * noise(epsilon, batch_size, 1, amplified=True)
    least = min(tried.values())
    bands = min(b for b, value in tried.items() if value <= _EQUAL * least)
    return Best(bands, tried[bands] / batch_size)


def figure_3_5(out: Callable[[str, Figure], None]) -> None:
    """Max loss of the average gradient against the batch size."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for place, epsilon in zip(axes, SHOWN, strict=True):
        for amplified in (False, True):
            banded = [best_of(epsilon, size, amplified=amplified).loss for size in SIZES]
            plain = [max_error(1) * noise(epsilon, size, 1, amplified=amplified) / size for size in SIZES]
            words = "amplified" if amplified else "not amplified"
            style = "o-" if amplified else "s--"
            place.loglog(SIZES, plain, style, color="tab:green", ms=3, lw=1.2, label=f"independent, {words}")
            place.loglog(SIZES, banded, style, color="tab:blue", ms=3, lw=1.2, label=f"banded, {words}")
            for name, values in (("independent", plain), ("banded", banded)):
                shown = ", ".join(f"{value:.4g}" for value in values)
                print(f"3.5 epsilon={epsilon:g} {name} {words}: {shown}")
        _batch_axis(place)
        place.set_title(f"ε = {epsilon:g}")
    axes[0].set_ylabel("max loss of the average gradient")
    axes[0].legend(fontsize=7)
    out("3.5", figure)


def figure_4_3(out: Callable[[str, Figure], None]) -> None:
    """Best number of bands against the batch size."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    unamplified = [best_of(1.0, size, amplified=False).bands for size in SIZES]
    axes.loglog(SIZES, unamplified, "k--", lw=1.5, label="not amplified")
    print(f"4.3 not amplified: {unamplified}")
    for epsilon in TUNED:
        bands = [best_of(epsilon, size, amplified=True).bands for size in SIZES]
        axes.loglog(SIZES, bands, "o-", ms=3, lw=1.2, label=f"amplified, ε = {epsilon:g}")
        print(f"4.3 epsilon={epsilon:g}: {bands}")
    _batch_axis(axes)
    axes.set_yscale("log", base=2)
    axes.set_ylabel("best number of bands")
    axes.legend(fontsize=7)
    out("4.3", figure)


def _batch_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel(f"batch size B ({STEPS} steps, {EXAMPLES} examples)")
