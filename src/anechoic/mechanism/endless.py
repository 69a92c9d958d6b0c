"""Mechanisms without a last step: noise calibrated once to the limiting sensitivity.

The promise is one participation per privacy unit. Then the first n releases are a Gaussian mechanism with
sensitivity ||C[:n, :n]|| <= gamma_inf for every n, and what has been released so far is always covered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from anechoic._serialize import decode, encode
from anechoic._validate import one_of, plain, positive_float
from anechoic.accounting import gaussian_epsilon, gaussian_mu
from anechoic.accounting.accountant import adjacency_factor
from anechoic.errors import UnsupportedError
from anechoic.mechanism.calibrate import check_goal, with_proven_noise
from anechoic.mechanism.has_guarantee import FORMAT, SavedGuarantee
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.participation import Single
from anechoic.sampling import External
from anechoic.sensitivity import theorems
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.endless import Endless

# More rows than any process emits: at one row a nanosecond they last 146 years.
FOR_EVER = 2**62


@dataclass(frozen=True, eq=False, repr=False)
class EndlessMechanism(SavedGuarantee):
    """A horizon-free strategy with its noise and its guarantee; make one with `calibrate_endless`.

    The release at step t is the sum of the clipped contributions plus
    ``noise_std * clip_norm * (C^-1 Z)[t]``, divided by the constant ``batch_size``, for t = 0, 1, 2, …

    Guarantee: all releases together, however many there are, are `gdp()`-GDP and (epsilon(delta), delta)-DP
    for one unit that takes part in at most one step. Whoever forms the batches promises that.

    Args:
        strategy: horizon-free.
        noise_std: std of one entry of Z as injected, over the clip norm; > 0.
        batch_size: the constant divisor of every noisy sum, > 0.
        clip_norm: largest 2-norm of one unit's contribution, > 0.
        adjacency: "zero_out" or "replace_one".
        unit: what is protected.
        delta: the delta at which the guarantee is printed, in (0, 1).

    Raises:
        ValueError: for an argument out of range.
    """

    versioned: ClassVar[str] = "endless_format"
    accountant: ClassVar[None] = None
    accounting: ClassVar[str] = "deterministic"
    grid_bits: ClassVar[None] = None
    amplified: ClassVar[bool] = False
    drift: ClassVar[float] = 0.0

    strategy: Endless
    noise_std: float
    batch_size: float
    clip_norm: float = 1.0
    adjacency: str = "zero_out"
    unit: str = "example"
    delta: float = 1e-6

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Endless):
            raise ValueError(
                f"strategy={self.strategy!r} must be horizon-free, such as strategies.endless.damped(0.01)."
                " A strategy with n steps goes to anechoic.calibrate."
            )
        self._check_numbers()
        positive_float("batch_size", self.batch_size)
        object.__setattr__(self, "batch_size", plain(self.batch_size))
        one_of("adjacency", self.adjacency, ("zero_out", "replace_one"))

    @property
    def expected_batch_size(self) -> float:
        """Constant divisor of every noisy sum."""
        return self.batch_size

    @property
    def sensitivity(self) -> Sensitivity:
        """The limiting sensitivity: a bound for every number of releases."""
        norm = self.strategy.limiting_norm
        return Sensitivity(norm, False, "limit of the column norms (square-summable C)", theorems.LIMITING)

    @property
    def noise_multiplier(self) -> float:
        """sigma = noise_std / limiting sensitivity; the releases are (1/sigma)-GDP for zero-out adjacency."""
        return self.noise_std / self.sensitivity.value

    def gdp(self) -> float:
        """Return mu such that all releases are mu-GDP."""
        return adjacency_factor(self.adjacency) * self.sensitivity.value / self.noise_std

    def epsilon(self, delta: float | None = None) -> float:
        """Return an epsilon such that all releases are (epsilon, delta)-DP, rounded up."""
        return float(gaussian_epsilon(self.delta if delta is None else delta, self.gdp()))

    def at(self, steps: int) -> Mechanism:
        """Return the mechanism of the first `steps` releases, of the same noise and no weaker guarantee."""
        sampling = External(Single(), self.batch_size, steps=steps)
        rest = (self.noise_std, self.clip_norm, self.adjacency, self.unit, self.delta)
        return Mechanism(self.strategy.at(steps), sampling, *rest)  # type: ignore[arg-type]

    def stream(self, dimension: int, *, horizon: int | None = None, **options: Any) -> NoiseStream:
        """Return the noise rows in gradient units, noise_std * clip_norm * C^-1 Z, one by one, without end.

        Args:
            dimension: m, entries of one row.
            horizon: a number of rows, after which the stream raises; needed where the memory of C^-1 grows
                with the step. None: the stream does not end.
            options: of `NoiseStream`: key, backend, dtype, device.

        Raises:
            UnsupportedError: without a horizon, where every row depends on all rows before it.
        """
        if horizon is None and self.strategy.window is None:
            raise UnsupportedError(
                f"{self.strategy.describe()} needs all earlier rows for the next one, so a stream without"
                " end would need memory without end. Give a horizon, or take a strategy with a recurrence,"
                " such as strategies.endless.rational(buffers=8, accurate_to=10**6)."
            )
        strategy = self.strategy.at(FOR_EVER if horizon is None else horizon)
        return NoiseStream(strategy, dimension, std=self.noise_std * self.clip_norm, **options)

    def _fields(self) -> dict[str, Any]:
        return {self.versioned: FORMAT, **{f.name: encode(getattr(self, f.name)) for f in fields(self)}}

    def _claims(self) -> dict[str, Any]:
        return {"sensitivity": self.sensitivity.value, "epsilon": self.epsilon()}

    @classmethod
    def _from_fields(cls, record: dict[str, Any]) -> EndlessMechanism:
        if missing := {f.name for f in fields(cls)} - set(record):
            raise KeyError(sorted(missing)[0])
        return cls(**{name: decode(value) for name, value in record.items()})

    def __repr__(self) -> str:
        return (
            f"EndlessMechanism({self.strategy.describe()}, noise_std={self.noise_std},"
            f" clip_norm={self.clip_norm:g}, adjacency={self.adjacency!r})"
        )


def calibrate_endless(
    strategy: Endless,
    *,
    batch_size: float,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip_norm: float = 1.0,
    adjacency: str = "zero_out",
    unit: str = "example",
) -> EndlessMechanism:
    """Return the mechanism with the least noise that gives (epsilon, delta) for ever, or with given noise.

    Args:
        strategy, batch_size, clip_norm, adjacency, unit: see `EndlessMechanism`.
        delta: in (0, 1).
        epsilon: > 0; give this or `noise_multiplier`.
        noise_multiplier: sigma, in units of the limiting sensitivity, > 0.

    Raises:
        ValueError: for an argument out of range, or where not exactly one of the two is given.

    Example:
        >>> from anechoic.strategies import endless
        >>> mechanism = calibrate_endless(endless.damped(0.01), batch_size=100, epsilon=1, delta=1e-6)
        >>> mechanism.at(1000).epsilon() <= mechanism.epsilon() <= 1
        True
    """
    asked, by_epsilon = check_goal(epsilon, noise_multiplier)

    def with_std(std: float) -> EndlessMechanism:
        return EndlessMechanism(strategy, std, batch_size, clip_norm, adjacency, unit, delta)

    unscaled = with_std(1.0)
    if not by_epsilon:
        return with_std(asked * unscaled.sensitivity.value)
    return with_proven_noise(with_std, unscaled.gdp() / gaussian_mu(asked, delta), asked)
