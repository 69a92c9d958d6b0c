"""Mechanisms of every kind that plan() can choose, and faults to put into the library.

benchmarks/audit_faults.py makes the table of docs/audit.md from them. Every fault is one that
shipped somewhere. Each replaces one function for as long as its context lasts.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from anechoic import workloads
from anechoic.accounting import Verified
from anechoic.audit.report import AuditReport
from anechoic.batches.base import batches_of
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream, derive
from anechoic.noise import stream as stream_module
from anechoic.noise.filters.windowed import AutoregressiveFilter, past_gains
from anechoic.participation import MinSep
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Dense, Identity, Output, Toeplitz
from anechoic.strategies.base import SquareStrategy
from anechoic.torch import audit_training

STEPS = 24
EXAMPLES = 400
BANDS = (1.0, 0.6, 0.4, 0.3)

# -- mechanisms: every kind that plan() can choose ---------------------------------------------


def fixed(
    strategy: SquareStrategy, batch_size: int = 100, mu: float = 3.0, unit: str = "example"
) -> Mechanism:
    """Four batches in a pass, one order for the whole run, mu-GDP."""
    sampling = FixedOrder(EXAMPLES, batch_size, steps=strategy.n)
    return calibrate(strategy, sampling=sampling, noise_multiplier=1 / mu, delta=1e-5, unit=unit)


def root() -> Toeplitz:
    return Toeplitz.square_root(workloads.prefix_sum(STEPS))


def banded() -> BandedToeplitz:
    return BandedToeplitz(STEPS, BANDS)


def external(strategy: SquareStrategy) -> Mechanism:
    sampling = External(MinSep(6, 3), 64, strategy.n)
    return calibrate(strategy, sampling=sampling, noise_multiplier=1 / 3, delta=1e-5)


def poisson() -> Mechanism:
    return calibrate(Identity(STEPS), sampling=Poisson(EXAMPLES, 80, STEPS), epsilon=8.0, delta=1e-5)


def cyclic(strategy: SquareStrategy, examples: int = EXAMPLES, unit: str = "example") -> Mechanism:
    """Four groups, each sampled at rate 1/2."""
    sampling = CyclicPoisson(examples, examples // 8, 4, STEPS)
    return calibrate(strategy, sampling=sampling, epsilon=8.0, delta=1e-5, unit=unit)


def bins(strategy: SquareStrategy, **more: Any) -> Mechanism:
    return Mechanism(strategy, BallsInBins(EXAMPLES, 4, STEPS), 1.3, delta=1e-5, **more)


def allocated() -> Mechanism:
    return Mechanism(Identity(STEPS), RandomAllocation(EXAMPLES, 4, STEPS), 1.3, delta=1e-5)


def separated() -> Mechanism:
    """At least five steps apart, and eight on average."""
    sampling = MinSepSampling(EXAMPLES, EXAMPLES // 8, 5, STEPS)
    return Mechanism(
        banded(), sampling, 1.3, delta=1e-5, accounting=Verified(samples=20_000, failure=1e-8, seed=0)
    )


MECHANISMS: dict[str, Callable[[], Mechanism]] = {
    "identity, Poisson": poisson,
    "banded Toeplitz, fixed order": lambda: fixed(banded()),
    "banded Toeplitz normalised, cyclic Poisson": lambda: cyclic(ColumnNormalized(banded())),
    "dense, fixed order": lambda: fixed(Dense(root().to_dense())),
    "BLT, min-sep": lambda: external(BLT(STEPS, [0.3, 0.2], [0.95, 0.5])),
    "banded Toeplitz, balls in bins": lambda: bins(banded()),
    "identity, random allocation": allocated,
    "banded Toeplitz, min-sep sampling": separated,
    "output, fixed order": lambda: fixed(Output(workloads.prefix_sum(STEPS))),
}

# -- faults ------------------------------------------------------------------------------------


def cross_terms_dropped(_: Mechanism | None = None) -> Any:
    """sqrt(sum ||C[:, j]||^2) over a cycle instead of ||sum C[:, j]||."""

    def sensitivity(strategy: Any, participation: Any) -> Sensitivity:
        squares = strategy.column_norms_squared()
        best = max(
            float(squares[phase :: participation.period].sum()) for phase in range(participation.period)
        )
        return Sensitivity(math.sqrt(best), exact=True, method="no cross-terms")

    return patch("anechoic.mechanism.mechanism.sensitivity", sensitivity)


@contextmanager
def row_reused(_: Mechanism | None = None) -> Iterator[None]:
    """A resumed stream draws the last row of Z once more and goes on from there."""
    resumed: list[int] = []
    restore, made = NoiseStream.restore, stream_module.FreshRows

    def restored(self: Any, saved: Any) -> Any:
        resumed.append(int(saved["step"]))
        return restore(self, saved)

    def late(key: bytes, step: int, offset: int) -> Any:
        return made(key, step - bool(resumed and step >= resumed[0]), offset)

    with patch.object(NoiseStream, "restore", restored), patch.object(stream_module, "FreshRows", late):
        yield


def ring_off_by_one(_: Mechanism | None = None) -> Any:
    """Once the ring buffer is full, every coefficient meets the row one step too old."""

    def plan(self: Any, t: int) -> Any:
        local = self._recurrence.local(t)
        row, gain = self._recurrence.row(local), self._recurrence.gain(t)
        late = int(local >= self.rows)
        weights = np.zeros(min(local + 1, self.rows))
        lagged = -row * (gain / past_gains(self._recurrence, t, len(row))) / row[0]
        weights[(local - late - np.arange(len(row))) % self.rows] = lagged
        slot = local % self.rows
        weights[slot] = self._std * gain / row[0]

        def step(columns: Any) -> None:
            memory = columns.memory
            columns.draw(memory[slot], 1.0)
            columns.combine(weights, memory[: len(weights)], columns.row)
            columns.assign(memory[slot], columns.row)

        return step

    return patch.object(AutoregressiveFilter, "plan", plan)


def sampled_under_fixed_order(_: Mechanism | None = None) -> Any:
    """Batches are Poisson samples, where the proof takes one fixed order."""

    def batches(sampling: Any, key: bytes, **options: Any) -> Any:
        return batches_of(Poisson(sampling.examples, sampling.batch_size, sampling.steps), key, **options)

    return patch("anechoic.torch.setup.build_run.batches_of", batches)


def divided_twice(mechanism: Mechanism | None = None) -> Any:
    """The noise of the sum is divided by the batch size, and so is the noisy sum."""

    def stream(strategy: Any, dimension: int, *, std: float, **options: Any) -> NoiseStream:
        divisor = 1.0 if mechanism is None else mechanism.expected_batch_size
        return NoiseStream(strategy, dimension, std=std / divisor, **options)

    return patch("anechoic.mechanism.mechanism.NoiseStream", stream)


@contextmanager
def clipped_by_example(_: Mechanism | None = None) -> Iterator[None]:
    """A unit's examples are clipped one by one, and so is nothing that the unit adds in all."""
    from anechoic.torch.sources.rows import RowsSource

    def contributions(self: Any, rows: Any, found: Any, delivery: Any) -> Any:
        return found, None

    with patch.object(RowsSource, "_contributions", contributions):
        yield


def allocated_once(_: Mechanism | None = None) -> Any:
    """Every epoch repeats the allocation of the first, where the proof has it drawn anew."""

    def batches(sampling: Any, key: bytes, **options: Any) -> Any:
        return batches_of(BallsInBins(sampling.examples, sampling.period, sampling.steps), key, **options)

    return patch("anechoic.torch.setup.build_run.batches_of", batches)


@dataclass(frozen=True)
class Fault:
    """A fault, the mechanism it is shown on, and the findings that must see it."""

    name: str
    inject: Callable[..., Any]
    mechanism: Callable[[], Mechanism]
    caught_by: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


FAULTS = (
    Fault(
        "cross-terms dropped from the sensitivity",
        cross_terms_dropped,
        lambda: fixed(root(), mu=2.0),
        ("participation", "canary", "canary fit"),
    ),
    Fault(
        "noise row reused after resume",
        row_reused,
        lambda: fixed(banded()),
        ("covariance",),
        {"resume_at": 10},
    ),
    Fault("off by one in the ring buffer", ring_off_by_one, lambda: fixed(banded()), ("covariance",)),
    Fault(
        "Poisson sampling under a fixed-order proof",
        sampled_under_fixed_order,
        lambda: fixed(banded()),
        ("participation", "canary fit"),
        {"canaries": 160},
    ),
    Fault(
        "noise divided by the batch twice",
        divided_twice,
        lambda: fixed(banded(), mu=0.5),
        ("canary", "canary fit", "epsilon", "covariance"),
    ),
    Fault("one allocation for all epochs, the proof draws anew", allocated_once, allocated, ("sampling",)),
    Fault(
        "clipped by example, the proof is about users",
        clipped_by_example,
        lambda: fixed(banded(), unit="user"),
        ("canary fit", "covariance"),
        {"examples_per_unit": 3},
    ),
)


def run(
    make: Callable[[], Mechanism],
    inject: Callable[..., Any] | None = None,
    *,
    number: int = 0,
    label: str = "",
    **options: Any,
) -> AuditReport:
    """One audited run; `number` and `label` fix all its randomness."""
    with ExitStack() as stack:
        if inject is cross_terms_dropped:  # the calibration must see it too
            stack.enter_context(inject())
            mechanism = make()
        else:
            mechanism = make()
            stack.enter_context(nullcontext() if inject is None else inject(mechanism))
        name = inject.__name__ if inject is not None else "clean"
        seed = derive(
            bytes(32),
            f"audit {name} {label} {mechanism.fingerprint} {sorted(options.items())}",
            number,
            size=32,
        )
        return audit_training(
            mechanism,
            noise_key=derive(seed, "noise", size=32),
            sampling_key=derive(seed, "sampling", size=32),
            seed=number,
            **{"canaries": EXAMPLES, **options},
        )
