"""The privacy loss distribution of one sampled Gaussian on a grid, as dp-accounting composes it.

For P and Q with a privacy loss that rises along the line, each cell of the grid of losses is an interval of
the line. Its P-mass p goes to the two ends l and l + h of the cell so that its Q-mass q is kept too: a share
u = (p - q e^l) / (1 - e^-h) to the upper end, the rest to the lower one. That is a pair which dominates
(P, Q) (Doroshenko et al. 2022, "Connect the Dots", arXiv 2207.04380), and the discretisation of
`dp_accounting.pld.from_gaussian_mechanism`. What lies above the grid is split between its last point and an
infinite loss in the same way; what lies below moves up to its first point.

dp-accounting inverts the loss in Python, point by point. Here that is done for all points at once, and masses
are differences of the normal distribution on the side on which it is small, so that nothing is lost on fine
grids: dp-accounting takes second differences of delta, which are off by 1e-16 / h at every point.

Of batches of a fixed size, drawn without replacement, one pair has the largest profile above loss 0 and
another one below; both have the same at 0 (docs/proofs/amplification.md#batches-of-a-fixed-size). What
dominates both has the losses of the one above 0, those of the other below, and the rest of its mass at 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import ndtri_exp

from anechoic._validate import Array
from anechoic.accounting.loss_distributions.likelihood_ratio import normal_cells

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LOG_TAIL, _FARTHEST = -50.0, -550.0  # logarithm of the mass of the noise beyond the grid
_SHARE = 7.0  # by so much its logarithm lies below that of a delta that it must not decide
#: Points of the finest grid of one release that is computed.
MOST_CELLS = 2**18
_LEAST_MASS = 1e-250
Direction = Literal["remove", "add", "replace", "exchange", "exchanged"]
#: How far the unit moves P and Q where it takes part, such that the loss rises.
_SHIFTS = {"remove": (1, 0), "add": (0, -1), "replace": (1, -1), "exchange": (2, 1), "exchanged": (-1, -2)}
#: By adjacency, the pairs of each direction: of all losses, or of those above 0 and of those below.
_LAWS: dict[str, list[tuple[Direction, ...]]] = {
    "zero_out": [("remove",), ("add",)],
    "add_or_remove": [("remove",), ("add",)],
    "replace_one": [("replace",)],
    "zero_out_fixed_size": [("exchange", "add"), ("remove", "exchanged")],
    "replace_one_fixed_size": [("remove", "add")],
}


def sampled_gaussian_pld(
    noise_multiplier: float, rate: float, adjacency: str, width: float, tail: float = LOG_TAIL
) -> PrivacyLossDistribution:
    """`sampled_gaussian_losses` for dp-accounting."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    laws = sampled_gaussian_losses(noise_multiplier, rate, adjacency, width, tail)
    return PrivacyLossDistribution(*(DensePLDPmf(width, *law, True) for law in laws))


def sampled_gaussian_losses(
    noise_multiplier: float, rate: float, adjacency: str, width: float, tail: float = LOG_TAIL
) -> list[tuple[int, Array, float]]:
    """A pair that dominates one release: index of the first loss, all masses, that at infinity, by direction.

    Args:
        noise_multiplier: sigma > 0.
        rate: sampling probability in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove"; the first and the last have the same law.
            Of batches without replacement "zero_out_fixed_size" or "replace_one_fixed_size".
        width: of the grid of privacy losses, > 0.
        tail: `log_tail` of what is composed.
    """
    sigma = _relative(noise_multiplier, adjacency)
    return [_joined([_masses(sigma, rate, each, width, tail) for each in laws]) for laws in _LAWS[adjacency]]


def gaussian_pld(mu: float, width: float, tail: float = LOG_TAIL) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1.0 / mu,
        pessimistic_estimate=True,
        value_discretization_interval=width,
        log_mass_truncation_bound=tail,
    )


def log_tail(delta: float, compositions: int) -> float:
    """Logarithm of the mass of the noise that each of so many releases may leave beyond its grid.

    Below a delta of about 1e-230 it counts, and then next to nothing is gained by sampling.
    """
    return max(_FARTHEST, min(LOG_TAIL, math.log(delta) - math.log(compositions) - _SHARE))


def loss_moments(
    noise_multiplier: float, rate: float, adjacency: str, tail: float = LOG_TAIL
) -> tuple[float, float]:
    """(standard deviation of the loss of one release, its range on the grid), for the choice of a width."""
    sigma, points, laws = _relative(noise_multiplier, adjacency), 200, _LAWS[adjacency][0]
    direction = laws[0]
    z = np.linspace(-8.0, 8.0, points)
    x = np.concatenate([sigma * z, sigma * z + _SHIFTS[direction][0]])
    weights = np.exp(-z * z / 2)
    weights = np.concatenate([(1 - rate) * weights, rate * weights]) / weights.sum()
    losses = _loss(x, sigma, rate, direction)
    spread = float(np.sqrt(weights @ np.square(losses - weights @ losses)))
    ends = [_loss(np.array(_ends(sigma, each, tail)), sigma, rate, each) for each in laws]
    return spread, float(np.ptp(ends, axis=1).sum())


def _relative(noise_multiplier: float, adjacency: str) -> float:
    """The noise std over what the laws move by: of a replaced unit that is twice the clip norm."""
    return noise_multiplier / 2 if adjacency == "replace_one_fixed_size" else noise_multiplier


def _joined(laws: list[tuple[int, Array, float]]) -> tuple[int, Array, float]:
    """One law; or the losses of the first above 0, those of the second below, and the rest at 0."""
    if len(laws) == 1:
        return laws[0]
    (start, above, infinite), (first, below, _) = laws
    above, below = above[1 - start :], below[:-first]
    rest = max(0.0, 1.0 - infinite - float(above.sum()) - float(below.sum()))
    return first, np.concatenate([below, [rest], above]), infinite


def _ends(sigma: float, direction: Direction, tail: float) -> tuple[float, float]:
    """Where the grid of the noise ends: the loss rises from one to the other."""
    reach = -float(ndtri_exp(tail - math.log(2.0))) * sigma
    if direction == "exchange":
        return 1.5, reach + 2  # the losses above 0
    if direction == "exchanged":
        return -reach - 2, -1.5
    return (-reach - 1, reach) if direction == "add" else (-reach, reach + 1)


def _masses(
    sigma: float, rate: float, direction: Direction, width: float, tail: float
) -> tuple[int, Array, float]:
    # the loss rises in x; where the unit takes part P and Q are noise + their shifts
    lowest, highest = _loss(np.array(_ends(sigma, direction, tail)), sigma, rate, direction) / width
    first, last = math.floor(lowest), math.ceil(highest)
    losses: Array = width * np.arange(first, last + 1, dtype=np.float64)
    places = _places(losses, sigma, rate, direction) / sigma
    plain = _between(places)
    p, q = (
        (1 - rate) * plain + rate * _between(places - shift / sigma) if shift else plain
        for shift in _SHIFTS[direction]
    )
    # q e^l of what lies above l, at most p; where q is out of range everything moves up
    lifted = np.exp(np.minimum(losses + np.log(np.maximum(q[1:], _LEAST_MASS)), 0.0))
    lifted = np.where(q[1:] > _LEAST_MASS, np.minimum(lifted, p[1:]), 0.0)
    inner = p[1:-1]
    up = np.minimum((inner - lifted[:-1]) / -math.expm1(-width), inner)
    masses = np.append(inner - up, 0.0) + np.append(0.0, up)
    masses[0] += p[0]
    masses[-1] += lifted[-1]
    none = masses < _LEAST_MASS  # dp-accounting divides by masses
    infinite = float(p[-1] - lifted[-1]) + float(masses[none].sum())
    return first, np.where(none, 0.0, masses), infinite


def _loss(x: Array, sigma: float, rate: float, direction: Direction) -> Array:
    """log dP/dQ at x."""

    def ratio(shift: int) -> Array | float:
        exponent = (2 * shift * x - shift**2) / (2 * sigma**2)
        return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent) if shift else 0.0

    one, other = _SHIFTS[direction]
    return np.asarray(ratio(one) - ratio(other))


def _places(losses: Array, sigma: float, rate: float, direction: Direction) -> Array:
    """Where the loss reaches each of `losses`; infinite where it does nowhere."""
    if direction in ("add", "exchanged"):
        return -_places(-losses, sigma, rate, "remove" if direction == "add" else "exchange")
    if direction == "remove":
        # the loss without sampling is log(1 + (e^l - 1) / rate)
        small = np.minimum(losses, 1.0)
        with np.errstate(divide="ignore"):
            near = np.log1p(np.maximum(np.expm1(small) / rate, -1.0))
        far = losses - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, 1.0)))
        return sigma**2 * np.where(losses < 1.0, near, far) + 0.5
    if direction == "exchange":
        # w = e^(x / sigma^2) solves rate (w^2 e^(-2 / sigma^2) - w e^(l - 1 / (2 sigma^2))) = (1 - rate)
        # (e^l - 1), a quadratic equation
        square, linear = math.log(rate) - 2 / sigma**2, math.log(rate) - 0.5 / sigma**2 + losses
        with np.errstate(divide="ignore"):
            level = math.log1p(-rate) + losses + np.log(-np.expm1(-losses))
        root = 0.5 * np.logaddexp(2 * linear, math.log(4.0) + square + level)
        return np.asarray(sigma**2 * (np.logaddexp(linear, root) - math.log(2.0) - square))
    # asinh(sinh(l / 2) e^a) + l / 2 in units of sigma^2, with e^a = e^(1 / (2 sigma^2)) (1 - rate) / rate
    half = np.abs(losses) / 2
    scale = 0.5 / sigma**2 + math.log1p(-rate) - math.log(rate)
    with np.errstate(divide="ignore"):
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2) + scale
    asinh = np.logaddexp(0.5 * np.logaddexp(0.0, 2 * log_sinh), log_sinh)
    return np.sign(losses) * sigma**2 * (asinh + half)


def _between(z: Array) -> Array:
    """Standard normal mass below the first place, of each cell, and above the last, shape (places + 1,)."""
    return np.asarray(np.maximum(normal_cells(np.concatenate([[-math.inf], z, [math.inf]])), 0.0))
