"""The noise of a mechanism without horizon, seen by frequency.

beta = (beta_0, beta_1, …) is the first column of C^-1, B(w) = sum_t beta_t e^(i w t) its transfer function
and |B(w)|^2 the power spectrum of the injected rows C^-1 Z (paper 000, Section 1.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import Array, finite_array
from anechoic.algebra import generating
from anechoic.algebra.circle import Circle, away_from_one, circle, gap_power
from anechoic.errors import UnsupportedError
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.strategies.endless import (
    EXACT,
    Endless,
    EndlessBands,
    EndlessBLT,
    EndlessDamped,
    EndlessInverse,
)
from anechoic.strategies.endless_mixture_root import MixtureRoot

Complex = NDArray[np.complex128]
# Entries of the matrix of frequencies and modes that is held at once.
BLOCK = 1 << 21
# Relative difference of the norm of C by its own closed form and by the integral of 1 / |B|^2.
AGREEMENT = 1e-6
# Least 1 - |a| of a mode that float64 tells from one that does not fade.
SLOWEST = 1e-15


@dataclass(frozen=True, eq=False)
class Spectrum:
    """What a noise without horizon looks like by frequency; make one with `spectrum`.

    Attributes:
        noise: the strategy.
    """

    noise: Endless

    def __post_init__(self) -> None:
        check_stable(self.noise)

    def transfer(self, omega: ArrayLike) -> Complex:
        """B(omega), of any shape; omega in radians a step."""
        flat = finite_array("omega", np.ravel(omega))
        return transfer(self.noise, away_from_one(flat)).reshape(np.shape(omega))

    def power(self, omega: ArrayLike) -> Array:
        """|B(omega)|^2, of any shape: the power spectrum of C^-1 Z for Z of variance 1."""
        return np.asarray(np.square(np.abs(self.transfer(omega))))

    @property
    def gamma(self) -> float:
        """gamma_inf, the limit of the column norms of C: `Endless.limiting_norm`."""
        return self.noise.limiting_norm

    @cached_property
    def energy(self) -> float:
        """r_0 = sum_t beta_t^2: the stationary variance of the injected noise, for Z of variance 1."""
        points = self.points(0.1)
        return float(points.mean(self.power(points.angles)))

    def points(self, finest: float, *, widest: float = math.pi) -> Circle:
        """Angles on which means of |B|^2, 1 / |B|^2 and of modes of decay 1 - finest are found.

        Raises:
            ArithmeticError: if the integral of 1 / |B|^2 is not gamma^2, so that one of the two is wrong.
        """

        def rows(angles: Array) -> Array:
            power = self.power(angles)
            return np.stack([power, 1.0 / power])

        points = circle(rows, finest / 4, widest=widest)
        integral = float(points.mean(1.0 / self.power(points.angles)))
        if not math.isclose(integral, self.gamma**2, rel_tol=AGREEMENT):
            raise ArithmeticError(
                f"the limiting norm of {self.noise.describe()} is {self.gamma}, and the integral of 1/|B|^2"
                f" gives {math.sqrt(integral)}: its spectrum is not resolved, or it is not minimum phase."
            )
        return points

    def exposure(self, gaps: ArrayLike) -> Array:
        """q(a) = sum_k a^|k| r_k for a = 1 - gap: how much of the noise a mode that keeps a share a collects.

        r_k is the autocovariance sum_t beta_t beta_{t+k}. A mode x <- a x + w has the stationary variance
        q(a) / (1 - a^2). By frequency q is the mean of |B|^2 under the Poisson kernel of a.

        Args:
            gaps: shape (d,), in (0, 2).

        Returns:
            Shape (d,).

        Raises:
            ValueError: if a gap lies outside.
        """
        gaps = finite_array("gaps", gaps)
        near = float(np.minimum(gaps, 2.0 - gaps).min())
        if near < SLOWEST:
            raise ValueError(
                f"gaps={np.array2string(gaps, threshold=6)} must lie in (0, 2), {SLOWEST:g} from its ends:"
                " 1 - a of modes that fade."
            )
        # a kernel of negative a peaks at the angle pi: panels as narrow everywhere resolve it
        points = self.points(near, widest=math.pi if gaps.max() <= 1.0 else max(4 * near, 1e-3))
        return poisson_means(gaps, points, self.power(points.angles))


def poisson_means(gaps: Array, points: Circle, values: Array) -> Array:
    """Means of `values` under the kernels (1 - a^2) / |1 - a e^(i w)|^2, a = 1 - gap, shape (d,)."""
    weighted, out = values * points.weights, np.empty(len(gaps))
    step = max(1, BLOCK // len(weighted))
    for start in range(0, len(gaps), step):
        gap = gaps[start : start + step]
        out[start : start + step] = (
            gap * (2.0 - gap) * ((1.0 / gap_power(gap[:, None], points.half_sines)) @ weighted)
        )
    return out


@singledispatch
def spectrum(noise: Any) -> Spectrum:
    """The spectrum of a strategy without horizon, or of an `EndlessMechanism`'s.

    Bare coefficients of C^-1 are
    ``strategies.make_endless(strategies.BandedInverse(len(beta), beta))``.

    Raises:
        UnsupportedError: for a strategy of n steps: it has no spectrum.
        ValueError: if C^-1 is not square-summable.

    Example:
        >>> from anechoic.strategies import endless
        >>> damped = spectrum(endless.damped(0.01))
        >>> round(damped.gamma, 4), round(float(damped.power(0.0)), 4)
        (1.4618, 0.01)
    """
    raise UnsupportedError(
        f"noise={noise!r} has no spectrum: take a strategy without horizon (theory.optimal_noise,"
        " endless.damped(nu), strategies.make_endless(…) of a BLT or banded strategy), or"
        " theory.trajectory, which takes any strategy of n steps."
    )


@spectrum.register
def _(noise: Endless) -> Spectrum:
    return Spectrum(noise)


@spectrum.register
def _(noise: EndlessMechanism) -> Spectrum:
    return Spectrum(noise.strategy)


@singledispatch
def transfer(noise: Any, away: Complex) -> Complex:
    """B at the points 1 - `away` of the closed unit disc; register another class of noise here."""
    raise UnsupportedError(
        f"the transfer function of {type(noise).__name__} is not known here: register one with"
        " anechoic.theory.spectra.transfer.register."
    )


@transfer.register
def _(noise: EndlessBLT, away: Complex) -> Complex:
    alpha, decay = np.asarray(noise.scale), np.asarray(noise.decay)
    over = (1.0 - decay)[:, None] + decay[:, None] * away
    return np.asarray(1.0 / (1.0 + (1.0 - away) * (alpha @ (1.0 / over))))


@transfer.register
def _(noise: EndlessBands, away: Complex) -> Complex:
    return np.asarray(1.0 / polyval(1.0 - away, np.asarray(noise.coefficients)))


@transfer.register
def _(noise: EndlessInverse, away: Complex) -> Complex:
    return np.asarray(polyval(1.0 - away, np.asarray(noise.coefficients)), dtype=np.complex128)


@transfer.register
def _(noise: EndlessDamped, away: Complex) -> Complex:
    return np.asarray(np.sqrt(noise.damping + (1.0 - noise.damping) * away))


@transfer.register
def _(noise: MixtureRoot, away: Complex) -> Complex:
    weight, decay = np.asarray(noise.weight), np.asarray(noise.decay)
    over = (1.0 - decay)[:, None] + decay[:, None] * away
    return np.asarray(1.0 / np.sqrt(weight @ (1.0 / over)))


@singledispatch
def check_stable(noise: Endless) -> None:
    """Refuse noise whose injected rows grow for ever; C itself is square-summable already."""


@check_stable.register
def _(noise: EndlessBands) -> None:
    band = np.asarray(noise.coefficients)
    stable = (
        generating.stable_norm_squared(band) is not None
        if len(band) <= EXACT
        else generating.certified_norm(band) is not None
    )
    if not stable:
        raise ValueError(
            f"C = {np.array2string(band, threshold=6)} has a zero in the closed unit disc, or is not proven"
            " to have none: the rows of C^-1 Z grow without end, and with them the error of every learner."
            " Mirror the zeros at the unit circle, or multiply coefficient j by 0.99**j."
        )


@check_stable.register
def _(noise: EndlessBLT) -> None:
    alpha, decay = np.asarray(noise.scale), np.asarray(noise.decay)
    # every row of 1 alpha^T is alpha: C^-1 runs on the state matrix diag(decay) - 1 alpha^T
    largest = float(np.abs(np.linalg.eigvals(np.diag(decay) - alpha)).max())
    if largest >= 1.0:
        raise ValueError(
            f"the inverse of this BLT has a decay of modulus {largest:.6g} >= 1: the rows of C^-1 Z grow"
            " without end, and with them the error of every learner. Take positive scales, or BLT.from_poles"
            " with inverse decays in (-1, 1)."
        )
