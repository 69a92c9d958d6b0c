"""A mechanism as two pictures: its noise in running sums, and what the releases so far have cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anechoic.accounting.accountant import accountant_of
from anechoic.algebra.thinning import thinned
from anechoic.losses.dispatch import error
from anechoic.plots.curves import Axis, Line, draw_curves
from anechoic.plots.style import blank, in_style, shown
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Identity
from anechoic.workloads.sums import prefix_sum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Steps of a curve of noise, and releases of one of epsilon: each of these is an account of its own.
_STEPS, _ACCOUNTS, _AMPLIFIED = 800, 24, 8


def mechanism_figure(mechanism: Any, releases: int | None = None) -> Figure:
    """Draw the noise in running sums, and epsilon of the releases so far: see `Mechanism.plot`."""
    n = mechanism.steps
    if releases is not None and (isinstance(releases, bool) or not 0 <= releases <= n):
        raise ValueError(f"releases={releases} must lie between 0 and n={n}.")

    def noise(label: str, role: str, strategy: Any, std: float) -> Line:
        errors = std * error(prefix_sum(n), strategy).per_step
        places = thinned(errors, _STEPS)
        return Line(label, role, (places + 1.0).tolist(), errors[places].tolist(), markers=False)

    lines = [noise("this mechanism", "planned", mechanism.strategy, mechanism.noise_std)]
    if not isinstance(mechanism.strategy, Identity):
        std = independent_std(mechanism)
        lines.append(noise("independent noise, same guarantee", "independent", Identity(n), std))
    cost = [Line("at most", "planned", *epsilon_stairs(mechanism, releases), markers=False)]
    if releases is not None:
        now = mechanism.epsilon(steps=releases)
        cost.append(Line(f"now: {releases:,} releases", "independent", [releases], [now]))
    ends = "; ".join(f"{line.label}: {line.y[-1]:.3g}" for line in lines)
    words = (
        f"Std of the noise in running sums over {n:,} steps; after the last one, in clip norms: {ends}."
        f" Epsilon of the releases so far; of all {n:,}: {mechanism.epsilon():.3g}."
    )
    step, release = (Axis(name, form=lambda value: f"{value:,.0f}") for name in ("step", "releases"))
    std_axis = Axis("std of the noise (clip norms)", zero=True)
    account = Axis(f"epsilon at delta = {mechanism.delta:.3g}", zero=True)
    panels = [
        ("Noise in the sum of all steps", lines, step, std_axis),
        ("Epsilon so far", cost, release, account),
    ]
    with in_style():
        figure = blank((10.4, 3.9))
        for axes, (heading, curves, x, y) in zip(figure.subplots(1, 2), panels, strict=True):
            handles = draw_curves(axes, curves, (), x, y, heading)
            axes.set_title(heading)
            if len(handles) > 1:
                axes.legend(handles=handles, loc="best")
        return shown(figure, words)


def epsilon_stairs(mechanism: Any, releases: int | None = None) -> tuple[list[float], list[float]]:
    """Return releases, and an epsilon of so many, as corners: between two accounts the later holds."""
    n, most = mechanism.steps, _AMPLIFIED if mechanism.amplified else _ACCOUNTS
    ends = {round(k * n / min(n, most)) for k in range(1, min(n, most) + 1)} | {1, releases or 1}
    steps, epsilons = [0.0], [0.0]
    for end in sorted(ends):
        steps += [steps[-1], float(end)]
        epsilons += [mechanism.epsilon(steps=end)] * 2
    return steps, epsilons


def independent_std(mechanism: Any) -> float:
    """Return the std of independent noise with a mechanism's batches and epsilon, in clip norms."""
    plain = Identity(mechanism.steps)
    accountant = accountant_of(mechanism.sampling, plain, mechanism.adjacency, "deterministic")
    if accountant is not None:
        return float(accountant.noise_std(mechanism.epsilon(), mechanism.delta))
    least = sensitivity(plain, mechanism.participation).value
    return float(mechanism.noise_std * least / mechanism.sensitivity.value)
