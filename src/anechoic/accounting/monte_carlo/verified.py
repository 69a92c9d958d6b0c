"""Accounting by Monte Carlo as a record: what to draw, so that anybody draws the same."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from anechoic._serialize import serializable
from anechoic._validate import fraction, positive_int

#: Noise levels that a calibration tries to verify, over the one that should do.
GROWTH = (1.0, 1.01, 1.03, 1.1)
#: How many there are; each claim gets this part of the failure probability.
ATTEMPTS = len(GROWTH)


@serializable
@dataclass(frozen=True)
class Verified:
    """Accounting that takes epsilon from a one-sided confidence bound on sampled privacy losses.

    The samples depend on the seed alone, never on the data. A mechanism whose epsilon was verified at
    delta - failure is (epsilon, delta)-DP over the choice of the seed: with probability at most `failure`
    the bound was too small, and that is a part of delta. This holds for a seed that was chosen before
    anything was computed with it; trying seeds until one gives less voids it. So does keeping the best of
    several verified mechanisms: of K candidates, or of K attempts with more samples, one fails with up to K
    times `failure`. Choose by point estimates and verify the choice, as `plan` does, or divide `failure`.

    Args:
        samples: of the direction that needs more, >= 1000. A few millions bring the noise within about 1 %.
        failure: probability that the bound fails, in (0, 1); below the delta of every question.
        seed: >= 0; without one it comes from the operating system, and the record keeps it.

    Raises:
        ValueError: for an argument out of range.
    """

    samples: int = 4_000_000
    failure: float = 1e-8
    seed: int = field(default_factory=lambda: secrets.randbits(63))

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", positive_int("samples", self.samples, minimum=1000))
        object.__setattr__(self, "failure", fraction("failure", self.failure))
        object.__setattr__(self, "seed", positive_int("seed", self.seed, minimum=0))

    @classmethod
    def within(cls, delta: float) -> Verified:
        """One that fails with about a hundredth of `delta`."""
        return cls(failure=float(f"{delta / 100:.2g}"))

    def describe(self) -> str:
        """One line for a privacy statement."""
        return (
            f"a one-sided confidence bound on {self.samples} Monte Carlo samples (seed {self.seed}), both"
            f" directions; it fails with probability at most {self.failure!r} over the seed, which is a part"
            " of delta"
        )
