"""plan(): from a training setting to a ranked table of mechanisms and a chosen one.

The rules are those of the monograph's Section 4.4: design for plain prefix sums whatever the optimiser
(unless another workload is asked for); take cyclic Poisson sampling where batches may be sampled, a fixed
order where they may not, and the promised participation where somebody else forms batches; banded Toeplitz
in data centres and BLT for federated and very long runs; rank by the predicted error of prefix sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anechoic._validate import one_of, positive_float, positive_int
from anechoic.losses import error
from anechoic.mechanism import Adjacency, Mechanism, calibrate
from anechoic.optimize import banded_toeplitz, blt
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Participation, Single
from anechoic.plan_text import plan_text, short
from anechoic.sampling import CyclicPoisson, External, FixedOrder, Poisson, Sampling
from anechoic.strategies import ColumnNormalized, Identity, Output, Strategy
from anechoic.workloads import Workload, prefix_sum

#: Candidates whose predicted error is this close (relative) count as equal; the one with less memory wins.
TOLERANCE = 0.005
#: In federated runs a BLT is taken unless something else is better by more than this (Section 4.4.4).
FEDERATED_TOLERANCE = 0.05
#: Longest run for which column-normalised strategies are tried: their error takes O(n bands) work.
NORMALIZE_UP_TO = 200_000
#: Longest run for which banded Toeplitz strategies are optimised.
BANDED_UP_TO = 10_000_000
#: More buffers than this gain nothing (Section 4.3.2).
_BUFFERS = 5
#: Bytes of one coordinate of the noise (float32).
_BYTES = 4
#: Names of the classes that a plan can be restricted to.
STRATEGIES = ("auto", "identity", "output", "banded_toeplitz", "blt")
#: Those for which no amplification by sampling is proved: batches then come in a fixed order.
UNAMPLIFIED = ("output", "blt")


@dataclass(frozen=True)
class PlanRow:
    """One candidate of a plan.

    Attributes:
        name: the strategy in words.
        sampling: how batches are formed, in words.
        noise_std: std of one entry of Z over the clip norm.
        noise_multiplier: noise_std over the reference sensitivity.
        rms_error: root mean square over steps of the prefix-sum error for unit noise, ||B||_F / sqrt(n).
        predicted: noise_std * rms_error / batch size: predicted error of the prefix sums of mean gradients,
            in clip norms, per coordinate.
        memory: bytes of noise state for float32, None where the dimension is unknown.
        history: rows of noise state.
        batch_size: B.
        chosen: whether this is the plan's choice.
        mechanism: the calibrated mechanism.
    """

    name: str
    sampling: str
    noise_std: float
    noise_multiplier: float
    rms_error: float
    predicted: float
    memory: int | None
    history: int
    batch_size: float
    mechanism: Mechanism
    chosen: bool = False


@dataclass(frozen=True)
class Plan:
    """A ranked table of candidates (best first) and the choice.

    Attributes:
        rows: the candidates, by predicted error.
        mechanism: the chosen one.
        reason: why it was chosen.
    """

    rows: tuple[PlanRow, ...]
    mechanism: Mechanism
    reason: str

    def __str__(self) -> str:
        return plan_text(self)


def plan(
    *,
    examples: int,
    batch_size: int | Sequence[int],
    epochs: int | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    dimension: int | None = None,
    memory_budget: int | None = None,
    random_sampling: bool = True,
    participation: Participation | None = None,
    workload: Workload | Callable[[int], Workload] = prefix_sum,
    strategy: str = "auto",
    clip_norm: float = 1.0,
    adjacency: Adjacency = "zero_out",
    unit: str = "example",
    drop_last: bool = False,
) -> Plan:
    """Compare mechanisms for a training setting and choose one.

    Args:
        examples: N, >= 1.
        batch_size: B, or several to compare (by predicted error of mean gradients).
        epochs: passes over the data; give this or `steps`.
        steps: n.
        epsilon, delta: the guarantee wanted.
        noise_multiplier: instead of `epsilon`, a fixed sigma in units of the reference sensitivity.
        dimension: number of trainable parameters, for the memory of the noise state.
        memory_budget: bytes that the noise state (float32) may take; needs `dimension`.
        random_sampling: whether batches may be sampled at random and in secret.
        participation: what is promised where somebody else forms batches (federated, time order);
            `random_sampling` is then without meaning.
        workload: what the error is measured on, and strategies are designed for: a Toeplitz workload of as
            many steps as the run has, or a function of that number, such as
            ``lambda n: workloads.momentum(n, 0.9)``.
        strategy: "auto", or one class: "identity", "output", "banded_toeplitz", "blt".
        clip_norm, adjacency, unit: see `Mechanism`.
        drop_last: whether a pass drops its incomplete last batch.

    Raises:
        ValueError: for an argument out of range, or a budget in which only independent noise fits
            although another strategy was asked for.
    """
    one_of("strategy", strategy, STRATEGIES)
    sizes = list(batch_size) if isinstance(batch_size, Iterable) else [batch_size]
    if not sizes:
        raise ValueError("batch_size is empty: give at least one.")
    history = _history_limit(dimension, memory_budget)
    rows: list[PlanRow] = []
    for size in sizes:
        setting = _Setting(
            positive_int("examples", examples),
            size,
            epochs,
            steps,
            random_sampling,
            participation,
            drop_last,
            workload,
        )
        for candidate, sampling in setting.candidates(strategy, history):
            mechanism = calibrate(
                candidate,
                sampling=sampling,
                epsilon=epsilon,
                noise_multiplier=noise_multiplier,
                delta=delta,
                clip_norm=clip_norm,
                adjacency=adjacency,
                unit=unit,
            )
            rows.append(_row(mechanism, setting.workload, size, dimension))
    if not rows:
        raise ValueError(
            f"no {strategy!r} strategy fits memory_budget={memory_budget} at dimension={dimension}:"
            " raise the budget, or take 'identity'."
        )
    return _choose(rows, federated=_is_federated(participation))


@dataclass(frozen=True)
class _Setting:
    """One batch size of the question."""

    examples: int
    batch_size: int
    epochs: int | None
    steps: int | None
    random_sampling: bool
    participation: Participation | None
    drop_last: bool
    design: Workload | Callable[[int], Workload]

    @cached_property
    def workload(self) -> Workload:
        """What the error is measured on, for the steps of this run."""
        n = self.fixed.steps
        found = self.design(n) if callable(self.design) else self.design
        if not isinstance(found, Workload) or not found.is_toeplitz:
            raise ValueError(
                f"workload={found!r} must be a Toeplitz workload, such as prefix_sum(n) or momentum(n, 0.9):"
                " leave learning rates out of the design."
            )
        if found.n != n:
            raise ValueError(
                f"workload has n={found.n} steps but the run has {n}: give a function of the number of steps."
            )
        return found

    @property
    def fixed(self) -> FixedOrder:
        return FixedOrder(
            self.examples,
            self.batch_size,
            epochs=self.epochs,
            steps=self.steps or 0,
            drop_last=self.drop_last,
        )

    def candidates(self, name: str, history: int | None) -> list[tuple[Strategy, Sampling]]:
        """Strategies with the sampling each is meant for; `history` bounds the rows of noise state."""
        if self.participation is None and self.random_sampling:
            return list(self._sampled(name, history))
        if self.participation is None:
            sampling: Sampling = self.fixed
        else:
            sampling = External(self.participation, self.batch_size, self.fixed.steps, self.examples)
        return list(self._unsampled(name, history, sampling))

    def _sampled(self, name: str, history: int | None) -> Iterable[tuple[Strategy, Sampling]]:
        n = self.fixed.steps
        if name in ("auto", "identity"):
            yield Identity(n), Poisson(self.examples, self.batch_size, n)
        if name in ("auto", "banded_toeplitz") and n <= BANDED_UP_TO:
            most = min(n, max(1, self.examples // self.batch_size))
            for bands in _powers_of_two(most, history):
                sampling = CyclicPoisson(self.examples, self.batch_size, bands, n)
                # at rate 1 every batch is a whole group, and nothing is secret
                yield _banded(self.workload, bands), sampling if sampling.rate < 1.0 else self.fixed
        if name in UNAMPLIFIED:
            yield from self._unsampled(name, history, self.fixed)

    def _unsampled(
        self, name: str, history: int | None, sampling: Sampling
    ) -> Iterable[tuple[Strategy, Sampling]]:
        n = self.fixed.steps
        workload = self.workload
        schema = sampling.participation
        if name in ("auto", "identity"):
            yield Identity(n), sampling
        if name == "output":
            yield Output(workload), sampling
        separation = _separation(schema, n)
        if name in ("auto", "banded_toeplitz") and n <= BANDED_UP_TO and separation > 1:
            for bands in _powers_of_two(min(n, separation), history):
                yield _banded(workload, bands), sampling
        if name in ("auto", "blt") and n > 1 and (separation > 1 or name == "blt"):
            for buffers in range(1, min(_BUFFERS, n - 1, n if history is None else history) + 1):
                best = blt(workload, buffers=buffers, participation=_for_blt(schema), loss="rms").strategy
                if best.recurrence().rows < buffers:  # more buffers than the optimum has use for
                    break
                yield best, sampling


def _banded(workload: Workload, bands: int) -> Strategy:
    best = banded_toeplitz(workload, bands=bands, loss="rms").strategy
    return ColumnNormalized(best) if workload.n <= NORMALIZE_UP_TO else best


def _for_blt(schema: Participation) -> Participation:
    """The schema that `optimize.blt` is given: the others are bounded as if separated by one step."""
    return schema if isinstance(schema, (Single, Cyclic, MinSep)) else MinSep(1)


def _separation(schema: Participation, n: int) -> int:
    """Steps between two participations of one unit; n where it takes part once."""
    if schema.max_participations_in(n) == 1:
        return n
    if isinstance(schema, Cyclic):
        return schema.period
    if isinstance(schema, MinSep):
        return schema.separation
    return 1


def _is_federated(participation: Participation | None) -> bool:
    return isinstance(participation, (MinSep, OncePerEpoch, FullBatch))


def _history_limit(dimension: int | None, memory_budget: int | None) -> int | None:
    if dimension is not None:
        positive_int("dimension", dimension)
    if memory_budget is None:
        return None
    budget = positive_float("memory_budget", memory_budget)
    if dimension is None:
        raise ValueError(
            f"memory_budget={memory_budget} needs dimension, the number of trainable parameters."
        )
    return int(budget // (_BYTES * dimension))


def _powers_of_two(most: int, history: int | None) -> list[int]:
    """2, 4, … and the most that is allowed: by the separation, and by the rows of noise state."""
    most = most if history is None else min(most, history)
    powers = [2**i for i in range(1, max(most, 1).bit_length()) if 2**i <= most]
    return [*powers, most] if most > 1 and most not in powers else powers


def _row(mechanism: Mechanism, workload: Workload, batch_size: float, dimension: int | None) -> PlanRow:
    rms = error(workload, mechanism.strategy).rms
    history = mechanism.strategy.recurrence().rows
    return PlanRow(
        name=mechanism.strategy.describe(),
        sampling=type(mechanism.sampling).__name__,
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.noise_multiplier,
        rms_error=rms,
        predicted=mechanism.noise_std * rms / batch_size,
        memory=None if dimension is None else _BYTES * dimension * history,
        history=history,
        batch_size=batch_size,
        mechanism=mechanism,
    )


def _choose(rows: list[PlanRow], *, federated: bool) -> Plan:
    ranked = sorted(rows, key=lambda row: (row.predicted, row.history))
    least = ranked[0].predicted
    equal = [row for row in ranked if row.predicted <= least * (1 + TOLERANCE)]
    best = min(equal, key=lambda row: (row.history, row.predicted))
    why = f"it has the least predicted error within {TOLERANCE:.1%}, and of those the least memory"
    if federated:
        buffered = [row for row in ranked if row.name.startswith("BLT(")]
        if buffered and buffered[0].predicted <= least * (1 + FEDERATED_TOLERANCE):
            enough = [row for row in buffered if row.predicted <= buffered[0].predicted * (1 + TOLERANCE)]
            best = min(enough, key=lambda row: (row.history, row.predicted))
            why = (
                f"a federated run prefers a BLT within {FEDERATED_TOLERANCE:.0%} of the best, for its memory"
            )
    plain = [row for row in ranked if isinstance(row.mechanism.strategy, Identity)]
    against = ""
    if plain and plain[0] is not best:
        ratio = best.predicted / plain[0].predicted
        against = f" Its predicted error is {ratio:.3g} times that of independent noise."
    elif plain and plain[0] is best:
        against = " Correlating noise does not help here: sampling already gives what there is to gain."
        against = against if best.mechanism.amplified else ""
    reason = f"Chosen: {short(best.name)} with {best.mechanism.sampling.describe()}; {why}.{against}"
    final = tuple(replace(row, chosen=row is best) for row in ranked)
    return Plan(final, best.mechanism, reason)
