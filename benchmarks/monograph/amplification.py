"""Figs. 3.1 and 3.2: what amplification by sampling gives, and what it gives besides correlated noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from monograph import batch_size
from monograph.bands import best_bands

from anechoic import optimize, workloads
from anechoic.accounting import gaussian_mu, poisson_epsilon
from anechoic.losses.dispatch import error
from anechoic.strategies import Identity

RATE, DELTA = 1e-3, 1e-5

# CIFAR-10 in arXiv 2306.08153: 20 passes of 100 batches of 500.
STEPS, EXAMPLES, BATCH_SIZE = 2000, 50_000, 500
BUDGETS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)


def amplified_bound(epsilon: float, rate: float) -> float:
    """ln(1 + p (e^epsilon - 1)): Poisson sampling of any (epsilon, delta)-DP mechanism, with delta p."""
    return math.log1p(rate * math.expm1(epsilon))


def figure_3_1(out: Callable[[str, Figure], None]) -> None:
    """The generic bound, and the Gaussian mechanism as the library accounts for it, at rate 10^-3."""
    epsilons = np.geomspace(0.05, 30, 31)
    exact = [poisson_epsilon(RATE * DELTA, 1 / gaussian_mu(e, DELTA), RATE, 1) for e in epsilons]
    bound = [amplified_bound(e, RATE) for e in epsilons]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(epsilons, epsilons, color="0.6", lw=2, label="not amplified")
    axes.loglog(epsilons, bound, color="tab:orange", lw=2, label="any mechanism: ln(1 + p(e^ε − 1))")
    axes.loglog(epsilons, exact, "--", color="tab:blue", lw=1.2, label="Gaussian mechanism, accounted")
    axes.loglog(epsilons, RATE * epsilons, ":", color="k", lw=0.8, label="p ε")
    late = epsilons[epsilons > 8]
    axes.loglog(late, late - math.log(1 / RATE), "-.", color="k", lw=0.8, label="ε − ln(1/p)")
    axes.set(xlabel="ε of one step", ylabel="ε after sampling", ylim=(1e-5, 60))
    axes.set_title(f"p = {RATE:g}, δ = {DELTA:g} before and p δ after", fontsize=9)
    axes.legend(fontsize=8)
    for e, b, x in list(zip(epsilons, bound, exact, strict=True))[::5]:
        print(f"3.1 epsilon={e:.4g}: any mechanism {b:.4g}, Gaussian {x:.4g}")
    out("3.1", figure)


@cache
def rms_error(bands: int) -> float:
    """RMS loss of the best banded Toeplitz strategy for one participation."""
    if bands == 1:
        return error(workloads.prefix_sum(STEPS), Identity(STEPS)).rms
    return optimize.banded_toeplitz(workloads.prefix_sum(STEPS), bands=bands, loss="rms").loss


def loss_of(epsilon: float, bands: int, *, amplified: bool) -> float:
    """RMS loss of the sums of average gradients, with as many groups as bands where batches are sampled."""
    sigma = batch_size.noise(
        epsilon, BATCH_SIZE, bands, amplified=amplified, steps=STEPS, examples=EXAMPLES, delta=DELTA
    )
    return rms_error(bands) * sigma / BATCH_SIZE


def figure_3_2(out: Callable[[str, Figure], None]) -> None:
    """Noise of independent and correlated mechanisms, sampled and not, in the setting of the figure."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for amplified, style in ((False, "s--"), (True, "o-")):
        plain = [loss_of(e, 1, amplified=amplified) for e in BUDGETS]
        tuned = []
        for e in BUDGETS:
            tried = best_bands(
                lambda b, e=e, a=amplified: loss_of(e, b, amplified=a),
                steps=STEPS,
                most=EXAMPLES // BATCH_SIZE,
            )
            tuned.append(min(*tried.values(), plain[len(tuned)]))
        words = "amplified" if amplified else "not amplified"
        for name, values, colour in (("independent", plain, "tab:green"), ("correlated", tuned, "tab:blue")):
            axes.loglog(BUDGETS, values, style, color=colour, ms=4, lw=1.2, label=f"{name}, {words}")
            print(f"3.2 {name}, {words}: {', '.join(f'{value:.4g}' for value in values)}")
    axes.set(xlabel="ε", ylabel="RMS loss of the sums of average gradients")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], labels=["0.5", "1", "2", "5", "10", "20"])
    axes.set_title(f"CIFAR-10: N = {EXAMPLES}, B = {BATCH_SIZE}, {STEPS} steps, δ = {DELTA:g}", fontsize=9)
    axes.legend(fontsize=8)
    out("3.2", figure)
