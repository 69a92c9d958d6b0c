"""The Mechanism: one frozen record that binds strategy, sampling, noise and guarantee.

Everything downstream (noise, training, reports) reads this record and refuses what does not match it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from anechoic._serialize import decode, encode
from anechoic._validate import fraction
from anechoic.accounting import Verified, gaussian_epsilon
from anechoic.accounting.accountant import Accountant, Accounting, accountant_of, adjacency_factor
from anechoic.errors import MismatchError
from anechoic.mechanism.compatibility import check_covered
from anechoic.mechanism.has_guarantee import FORMAT, REMEDY, SavedGuarantee
from anechoic.noise import NoiseStream
from anechoic.noise.filter_choice import rounded_filter
from anechoic.noise.grid import Grid, checked_bits, spacing
from anechoic.noise.rounding.drift import DRIFT, before_drift
from anechoic.participation.base import Participation
from anechoic.plots.mechanism import mechanism_figure
from anechoic.sampling.base import Sampling
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy

Adjacency = Literal["zero_out", "replace_one", "add_or_remove"]


@dataclass(frozen=True, eq=False, repr=False)
class Mechanism(SavedGuarantee):
    """A correlated noise mechanism with its guarantee.

    The release at step t is the sum of the clipped contributions plus
    ``noise_std * clip_norm * (C^-1 Z)[t]`` with Z i.i.d. standard normal, divided by the constant
    ``expected_batch_size``.

    Guarantee: as `report()` states it. Make one with `calibrate` or `plan`.

    Args:
        strategy: C, with n = sampling.steps.
        sampling: how batches are formed; the participation follows from it.
        noise_std: std of one entry of Z as injected, over the clip norm; > 0.
        clip_norm: largest 2-norm of one unit's contribution to one step, > 0.
        adjacency: "zero_out" (one unit's contributions become zero), "replace_one", or "add_or_remove".
        unit: what is protected: "example", or what owns several of them ("user", "client"). Batches are then
            drawn of units, and `sampling.examples` counts units; `PrivacyEngine(…, unit_ids=…)` does so.
            Under `External` sampling whoever forms the batches promises the participation of units.
        delta: the delta at which the guarantee is printed, in (0, 1).
        accounting: "deterministic", or a `Verified` where Monte Carlo shows a smaller epsilon
            (`BallsInBins`). The record then holds what was drawn.
        grid_bits: contributions and noise are integer multiples of clip_norm * 2**-grid_bits, added up
            exactly; None for sums and noise in floating point.
            `noise.grid.default_bits(m)` is enough for m entries.

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: where no theorem covers the combination of strategy, sampling and adjacency.
    """

    versioned: ClassVar[str] = "format"

    strategy: Strategy
    sampling: Sampling
    noise_std: float
    clip_norm: float = 1.0
    adjacency: Adjacency = "zero_out"
    unit: str = "example"
    delta: float = 1e-6
    accounting: Accounting = "deterministic"
    grid_bits: int | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        check_covered(self.strategy, self.sampling, self.adjacency, self.accounting)
        if self.grid_bits is not None:
            object.__setattr__(self, "grid_bits", checked_bits(self.grid_bits))
            spacing(self.clip_norm, self.grid_bits)

    # -- what is bound -------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of releases n."""
        return self.strategy.n

    @property
    def participation(self) -> Participation:
        """Which steps one unit may touch."""
        return self.sampling.participation

    @property
    def expected_batch_size(self) -> int | float:
        """Constant divisor of every noisy sum."""
        return self.sampling.expected_batch_size

    @property
    def amplified(self) -> bool:
        """Whether (epsilon, delta) uses the secrecy of the batches."""
        return self.sampling.amplified

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """sens(C, participation) for rows of norm 1 under zero-out adjacency, in every dimension."""
        return sensitivity(self.strategy, self.participation)

    @cached_property
    def reference_sensitivity(self) -> float:
        """sens(C, participation), or the largest column norm of C where the run is amplified."""
        return self.strategy.largest_column_norm() if self.amplified else self.sensitivity.value

    @cached_property
    def accountant(self) -> Accountant | None:
        """What gives epsilon of an amplified run; None for one that is not amplified."""
        return accountant_of(self.sampling, self.strategy, self.adjacency, self.accounting)

    @cached_property
    def drift(self) -> float:
        """What rounding in the noise's memory may add to mu: 0, or 2**-39 on a grid where C never forgets."""
        if self.grid_bits is None or rounded_filter(self.strategy.recurrence(), 1.0).exact:
            return 0.0
        return 2 * DRIFT

    @property
    def noise_multiplier(self) -> float:
        """sigma = noise_std / reference_sensitivity; unamplified, the release is (1/sigma)-GDP."""
        return self.noise_std / self.reference_sensitivity

    # -- releases ------------------------------------------------------------------------------

    def stream(self, dimension: int, **options: Any) -> NoiseStream:
        """The noise rows of a sum of clipped contributions, noise_std * clip_norm * C^-1 Z.

        With `grid_bits` they are integers, to be added to the sum of what `grid.to_grid` returned.

        Args:
            dimension: m, entries of one row.
            options: of `NoiseStream`: key, backend, device, and so on.
        """
        if self.grid_bits is None:
            return NoiseStream(self.strategy, dimension, std=self.noise_std * self.clip_norm, **options)
        # in clip norms, where both numbers are exact
        return NoiseStream(self.strategy, dimension, std=self.noise_std, grid=2.0**-self.grid_bits, **options)

    @property
    def grid(self) -> Grid:
        """The integers of contributions and releases; MismatchError if this mechanism has none."""
        if self.grid_bits is None:
            raise MismatchError(
                "this mechanism adds up floating-point numbers: give grid_bits to Mechanism or calibrate."
            )
        return Grid(self.clip_norm, self.grid_bits, self.expected_batch_size)

    # -- the guarantee -------------------------------------------------------------------------

    def epsilon(self, delta: float | None = None, *, steps: int | None = None) -> float:
        """An epsilon such that the first `steps` releases are (epsilon, delta)-DP, rounded up.

        Args:
            delta: in (0, 1); None for the mechanism's own.
            steps: 0 <= steps <= n; None for all. Never above the epsilon of all releases.
        """
        delta = self.delta if delta is None else fraction("delta", delta)
        steps = self.steps if steps is None else steps
        if not 0 <= steps <= self.steps:
            raise ValueError(f"steps={steps} must lie between 0 and n={self.steps}.")
        if steps == 0:
            return 0.0
        key = (delta, steps)
        if key not in self._epsilons:
            whole = math.inf if steps == self.steps else self.epsilon(delta)
            self._epsilons[key] = float(min(whole, self._epsilon(delta, steps)))
        return self._epsilons[key]

    @cached_property
    def _epsilons(self) -> dict[tuple[float, int], float]:
        return {}

    def _epsilon(self, delta: float, steps: int) -> float:
        if self.accountant is not None:
            inner, excess = before_drift(delta, self.drift)
            if steps == self.steps:
                return self.accountant.epsilon(inner, self.noise_std) + excess
            # what was verified are all releases: a leading block has the bound without sampling error
            strategy, sampling = self.strategy.truncate(steps), self.sampling.truncate(steps)
            block = accountant_of(sampling, strategy, self.adjacency, self.accounting)
            return math.inf if block is None else block.bound(inner, self.noise_std) + excess
        value = self.sensitivity.value
        if steps < self.steps:
            leading = self.sampling.truncate(steps).participation
            value = min(value, sensitivity(self.strategy.truncate(steps), leading).value)
        return gaussian_epsilon(delta, adjacency_factor(self.adjacency) * value / self.noise_std + self.drift)

    def gdp(self) -> float:
        """mu such that all releases are mu-GDP. Does not use amplification, also where `epsilon` does."""
        return adjacency_factor(self.adjacency) * self.sensitivity.value / self.noise_std + self.drift

    def plot(self, *, releases: int | None = None) -> Any:
        """Two pictures: the std of the noise in running sums, and epsilon over the releases.

        The first is for noisy sums of all steps so far, in clip norms, beside independent noise with the same
        batches and epsilon. The second is an upper bound, exact where its stairs rise.

        Args:
            releases: how many were made so far, to be marked: 0 to n. Of a run, `engine.releases`.

        Returns:
            A matplotlib `Figure` that notebooks show; its `savefig` writes it.

        Raises:
            ValueError: for more releases than there are.
            AnechoicError: without matplotlib (`pip install 'anechoic[plot]'`).
        """
        return mechanism_figure(self, releases)

    # -- identity and files --------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        fields = {
            "format": FORMAT,
            "strategy": encode(self.strategy),
            "sampling": encode(self.sampling),
            "noise_std": self.noise_std,
            "clip_norm": self.clip_norm,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "delta": self.delta,
        }
        if self.accounting != "deterministic":
            fields["accounting"] = encode(self.accounting)
        if self.grid_bits is not None:
            fields["grid_bits"] = self.grid_bits
        return fields

    def _claims(self) -> dict[str, Any]:
        return {
            "sensitivity": self.sensitivity.value,
            "exact": self.sensitivity.exact,
            "method": self.sensitivity.method,
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon(),
        }

    @classmethod
    def _from_fields(cls, record: dict[str, Any]) -> Mechanism:
        return cls(
            decode(record["strategy"]),
            decode(record["sampling"]),
            **{name: record[name] for name in ("noise_std", "clip_norm", "adjacency", "unit", "delta")},
            accounting=decode(record.get("accounting", "deterministic")),
            grid_bits=record.get("grid_bits"),
        )

    def _recomputed_claims(self, stated: Mapping[str, Any]) -> dict[str, float]:
        if self.accountant is None or not isinstance(self.accounting, Verified):
            return super()._recomputed_claims(stated)
        if not self.accountant.plausible(float(stated["epsilon"]), self.delta, self.noise_std):
            raise MismatchError(
                f"the file states epsilon={stated['epsilon']}, which its own samples contradict. {REMEDY}"
            )
        return {"sensitivity": self.sensitivity.value, "noise_multiplier": self.noise_multiplier}

    def __repr__(self) -> str:
        return (
            f"Mechanism({self.strategy.describe()}, {type(self.sampling).__name__},"
            f" noise_std={self.noise_std}, clip_norm={self.clip_norm:g}, adjacency={self.adjacency!r},"
            f" fingerprint={self.fingerprint[:12]}…)"
        )
