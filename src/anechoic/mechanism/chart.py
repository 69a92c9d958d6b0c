"""A mechanism as two pictures: its noise in running sums, and what the releases so far have cost."""

from __future__ import annotations

from typing import Any

from anechoic.accounting.accountant import accountant_of
from anechoic.algebra.thinning import thinned
from anechoic.losses.dispatch import error
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.statement.charts import Axis, Line, Panel, panel_figure
from anechoic.strategies import Identity
from anechoic.strategies.base import Strategy
from anechoic.workloads.sums import prefix_sum

#: Steps of a curve of noise, and of one of epsilon: each of these is an account of its own.
_STEPS, _ACCOUNTS, _AMPLIFIED = 800, 24, 8


def mechanism_figure(mechanism: Any, releases: int | None = None) -> Any:
    """Both pictures: see `Mechanism.plot`."""
    n = mechanism.steps
    if releases is not None and not 0 <= releases <= n:
        raise ValueError(f"releases={releases} must lie between 0 and n={n}.")
    lines = [_noise("this mechanism", "planned", mechanism.strategy, mechanism.noise_std)]
    if not isinstance(mechanism.strategy, Identity):
        std = independent_std(mechanism)
        lines.append(_noise("independent noise, same guarantee", "independent", Identity(n), std))
    steps, epsilons = spent(mechanism, releases)
    cost = [Line("at most", "planned", steps, epsilons, markers=False)]
    if releases is not None:
        now = mechanism.epsilon(steps=releases)
        cost.append(Line(f"now: {releases:,} releases", "independent", [releases], [now]))
    words = "; ".join(f"{line.label}: {line.y[-1]:.3g}" for line in lines)
    title = (
        f"Std of the noise in running sums over {n:,} steps; after the last one, in clip norms: {words}."
        f" Epsilon of the releases so far; of all {n:,}: {mechanism.epsilon():.3g}."
    )
    noise = Axis("step", form=_whole), Axis("std of the noise (clip norms)", zero=True)
    account = Axis("releases", form=_whole), Axis(f"epsilon at delta = {mechanism.delta:.3g}", zero=True)
    return panel_figure(
        [Panel("Noise in the sum of all steps", lines, *noise), Panel("Epsilon so far", cost, *account)],
        title,
    )


def spent(mechanism: Any, releases: int | None = None) -> tuple[list[float], list[float]]:
    """Releases, and an epsilon of so many, as corners of stairs: between two accounts the later holds."""
    n, most = mechanism.steps, _AMPLIFIED if mechanism.amplified else _ACCOUNTS
    ends = {round(k * n / min(n, most)) for k in range(1, min(n, most) + 1)} | {1, releases or 1}
    steps, epsilons = [0.0], [0.0]
    for end in sorted(ends):
        epsilon = mechanism.epsilon(steps=end)
        steps += [steps[-1], float(end)]
        epsilons += [epsilon, epsilon]
    return steps, epsilons


def independent_std(mechanism: Any) -> float:
    """Std of independent noise with the batches and the epsilon of a mechanism, in clip norms."""
    plain, sampling = Identity(mechanism.steps), mechanism.sampling
    accountant = accountant_of(sampling, plain, mechanism.adjacency, "deterministic")
    if accountant is not None:
        return float(accountant.noise_std(mechanism.epsilon(), mechanism.delta))
    least = sensitivity(plain, mechanism.participation).value
    return float(mechanism.noise_std * least / mechanism.sensitivity.value)


def _noise(label: str, role: str, strategy: Strategy, std: float) -> Line:
    errors = std * error(prefix_sum(strategy.n), strategy).per_step
    places = thinned(errors, _STEPS)
    return Line(label, role, (places + 1.0).tolist(), errors[places].tolist(), markers=False)


def _whole(value: float) -> str:
    return f"{value:,.0f}"
