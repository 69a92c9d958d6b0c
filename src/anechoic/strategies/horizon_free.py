"""Strategies without a number of steps: one causal Toeplitz C, calibrated once and run for ever.

The column norms of the leading n x n blocks grow with n to gamma_inf = sqrt(sum_t c_t^2), the limiting
sensitivity for one participation. Only a square-summable C is accepted: for any other the noise of a step
would have to grow with the number of steps (paper 000, Eq. 5; monograph, Section 3.5).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ellipkm1

from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, fraction, positive_float, positive_int
from anechoic.strategies import blt_sums, generating
from anechoic.strategies.banded_inverse import BandedInverse
from anechoic.strategies.base import Strategy
from anechoic.strategies.blt import BLT
from anechoic.strategies.toeplitz import BandedToeplitz, Toeplitz

if TYPE_CHECKING:
    from anechoic.endless import EndlessMechanism
    from anechoic.sensitivity import Sensitivity

# Relative excess that covers rounding in closed forms and sums.
ROUNDING = 1e-12
# Coefficients of a polynomial r up to which its zeros are located exactly, in at most a second.
EXACT = 64


@dataclass(frozen=True, eq=False, repr=False)
class HorizonFree(ABC):
    """A causal, square-summable Toeplitz C of infinitely many steps. Subclasses are final.

    Make one with `Toeplitz.damped`, `Toeplitz.from_generating_function` or `rational_blt` and n=None, or with
    `without_horizon` from a BLT or banded Toeplitz strategy. Making one fails where C is not known to be
    square-summable.
    """

    @abstractmethod
    def at(self, n: int) -> Strategy:
        """The leading n x n block. Its noise rows are the first n of those of any larger one, to rounding."""

    @cached_property
    @abstractmethod
    def limiting_norm(self) -> float:
        """gamma_inf, the limit of the column norms of `at(n)`: rounded up, never below any of them."""

    @property
    def window(self) -> int | None:
        """Rows of memory that an endless noise stream keeps; None where they grow with the step."""
        return None

    @property
    def limiting_sensitivity(self) -> Sensitivity:
        """Sensitivity of every `at(n)` for one participation: a bound of each, and their limit."""
        from anechoic.sensitivity import Sensitivity

        return Sensitivity(self.limiting_norm, False, "limit of the column norms (square-summable C)")

    def calibrate(self, **arguments: Any) -> EndlessMechanism:
        """A mechanism for one participation and any number of steps; see `anechoic.endless.calibrate`."""
        from anechoic.endless import calibrate

        return calibrate(self, **arguments)

    @abstractmethod
    def describe(self) -> str:
        """One line for statements."""

    def __repr__(self) -> str:
        return self.describe()


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class EndlessBLT(HorizonFree):
    """A BLT for ever: c_0 = 1, c_t = sum_i scale_i decay_i^(t-1).

    Args:
        scale, decay: as for `BLT`, shape (d,).
    """

    scale: ArrayLike
    decay: ArrayLike

    def __post_init__(self) -> None:
        one = BLT(1, self.scale, self.decay)
        object.__setattr__(self, "scale", one.scale)
        object.__setattr__(self, "decay", one.decay)

    def at(self, n: int) -> BLT:
        return BLT(n, self.scale, self.decay)

    @cached_property
    def limiting_norm(self) -> float:
        alpha, lam = np.asarray(self.scale), np.asarray(self.decay)
        sums = -1.0 / np.expm1(-blt_sums.pairs(blt_sums.rates_of(lam)))  # of (lambda_i lambda_j)^t
        # scales of mixed sign cancel; what rounding may have taken is added again
        rounding = len(lam) * ROUNDING * float(np.abs(alpha) @ sums @ np.abs(alpha))
        return math.sqrt((1.0 + float(alpha @ sums @ alpha) + rounding) * (1.0 + ROUNDING))

    @property
    def window(self) -> int:
        return len(np.asarray(self.scale))

    def describe(self) -> str:
        return f"BLT(buffers={self.window}, without horizon)"


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class EndlessBands(HorizonFree):
    """A banded C for ever.

    Args:
        coefficients: c_0 > 0, …, shape (bands,).
    """

    coefficients: ArrayLike

    def __post_init__(self) -> None:
        band = finite_array("coefficients", self.coefficients)
        object.__setattr__(self, "coefficients", BandedToeplitz(len(band), band).band)

    @property
    def _c(self) -> Array:
        return self.coefficients  # type: ignore[return-value]

    def at(self, n: int) -> BandedToeplitz:
        return BandedToeplitz(n, self._c[: positive_int("n", n)])

    @cached_property
    def limiting_norm(self) -> float:
        return math.sqrt(float(self._c @ self._c)) * (1.0 + ROUNDING)

    @property
    def window(self) -> int:
        return len(self._c)

    def describe(self) -> str:
        return f"BandedToeplitz(bands={len(self._c)}, without horizon)"


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class EndlessDamped(HorizonFree):
    """The damped square root for ever: C^-1 is generated by sqrt(1 - (1 - damping) x) (paper 000, Eq. 7).

    Args:
        damping: nu in (0, 1).
    """

    damping: float

    def __post_init__(self) -> None:
        remedy = "Without damping C is not square-summable: its sensitivity grows like log(n)."
        object.__setattr__(self, "damping", fraction("damping", self.damping, remedy=remedy))

    def at(self, n: int) -> Toeplitz:
        return Toeplitz.damped(n, self.damping)

    @cached_property
    def limiting_norm(self) -> float:
        # sum_t ((2t choose t) / 4^t)^2 x^t = (2 / pi) K(x) at x = (1 - nu)^2
        return math.sqrt(2.0 / math.pi * float(ellipkm1(self.damping * (2.0 - self.damping)))) * (
            1 + ROUNDING
        )

    def describe(self) -> str:
        return f"Toeplitz.damped(damping={self.damping:g}, without horizon)"


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class EndlessInverse(HorizonFree):
    """A banded C^-1 for ever: noise row t is sum_j r_j z_{t-j}.

    Args:
        coefficients: r_0 > 0, …, first column of C^-1, shape (bands,). The polynomial must be minimum phase:
            all of its zeros outside the closed unit disc. For up to 64 coefficients that is decided in exact
            arithmetic, for more by the certificate of `generating.certified_norm`, which needs the zeros to
            stay about 1e-5 off the unit circle.

    Raises:
        ValueError: if a zero lies in the closed unit disc, as for (1, -2) and (1, -1), or, with more
            than 64 coefficients, is not proven to lie outside.
    """

    coefficients: ArrayLike

    def __post_init__(self) -> None:
        r = finite_array("coefficients", self.coefficients)
        if r[0] <= 0:
            raise ValueError(f"coefficients[0]={r[0]} must be > 0: it is the diagonal of C^-1.")
        object.__setattr__(self, "coefficients", r)
        if not math.isfinite(self.limiting_norm):
            fault = "has a zero" if len(r) <= EXACT else "is not proven to have no zero"
            raise ValueError(
                f"C^-1 = {np.array2string(r, threshold=6)} {fault} in the closed unit disc: C is not known to"
                " be square-summable, without which no noise is enough for any number of steps. Mirror the"
                " zeros at the unit circle, damp them by coefficient j times 0.99**j, or give the strategy a"
                " number of steps."
            )

    @property
    def _r(self) -> Array:
        return self.coefficients  # type: ignore[return-value]

    def at(self, n: int) -> BandedInverse:
        return BandedInverse(n, self._r[: positive_int("n", n)])

    @cached_property
    def limiting_norm(self) -> float:
        if len(self._r) > EXACT:
            return generating.certified_norm(self._r)[0] or math.inf
        squared = generating.stable_norm_squared(self._r)
        return math.sqrt(squared or math.inf) * (1.0 + ROUNDING)

    @property
    def window(self) -> int:
        return len(self._r)

    def describe(self) -> str:
        return f"banded inverse (bands={len(self._r)}, without horizon)"


@dataclass(frozen=True, eq=False, repr=False)
class EndlessSeries(HorizonFree):
    """C^-1 generated by a function r, for ever. It cannot be written to a file.

    Guarantee: `limiting_norm` bounds the column norms, and zeros of r in the closed unit disc are refused, if
    r is analytic in |x| < radius and has no features finer than three grids of coprime numbers of points,
    which must agree, can tell: that is the caller's promise, see `generating.limiting_norm`. For a
    polynomial pass the coefficients: then there is nothing to promise.

    Args:
        r: as in `generating.series`, analytic in |x| < radius.
        radius: > 1.

    Raises:
        ValueError: if radius <= 1, or r has zeros there, or is not what it must be.
    """

    r: generating.GeneratingFunction
    radius: float

    def __post_init__(self) -> None:
        radius = positive_float("radius", self.radius)
        if radius <= 1.0:
            raise ValueError(
                f"radius={radius} must be > 1: r has to be analytic beyond the unit circle, or C = 1/r need"
                " not be square-summable (it is not for sqrt(1 - x)). Damp r, as r((1 - damping) x)."
            )
        object.__setattr__(self, "radius", radius)
        generating.inverse_of(self.r, 1)
        self.limiting_norm  # noqa: B018 - refuses zeros in the disc

    def at(self, n: int) -> Toeplitz:
        return Toeplitz(n, generating.inverse_of(self.r, n))

    @cached_property
    def limiting_norm(self) -> float:
        return generating.limiting_norm(self.r, self.radius)

    def describe(self) -> str:
        name = getattr(self.r, "__name__", type(self.r).__name__)
        return f"Toeplitz.from_generating_function({name}, without horizon)"


def without_horizon(strategy: Strategy) -> HorizonFree:
    """A BLT, banded Toeplitz or banded inverse strategy without its number of steps.

    Raises:
        ValueError: for any other strategy: its n coefficients do not say how C goes on.
    """
    if isinstance(strategy, BLT):
        return EndlessBLT(strategy.scale, strategy.decay)
    if isinstance(strategy, BandedToeplitz):
        return EndlessBands(strategy.band)
    if isinstance(strategy, BandedInverse):
        return EndlessInverse(strategy.inverse_coefficients)
    raise ValueError(
        f"strategy={strategy!r} does not say how C goes on after its last step: pass a BLT, BandedToeplitz or"
        " BandedInverse, or make one with n=None (Toeplitz.damped, Toeplitz.from_generating_function)."
    )
