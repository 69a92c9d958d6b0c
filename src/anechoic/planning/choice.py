"""From calibrated candidates to rows of the table, and from rows to the choice and its reason."""

from __future__ import annotations

from dataclasses import replace

from anechoic.accounting import random_allocation_noise_multiplier
from anechoic.accounting.balls_in_bins.accountant import BallsInBinsAccountant
from anechoic.accounting.poisson.search import fast_poisson_noise_multiplier
from anechoic.losses import error
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.amplified import TOLERANCE
from anechoic.planning.records import Candidate, Goal, PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.table import short
from anechoic.sampling import BallsInBins, CyclicPoisson, MinSepSampling, Poisson, RandomAllocation
from anechoic.strategies import Identity
from anechoic.workloads import Workload

#: In federated runs a BLT is taken unless something else is better by more than this (Section 4.4.4).
FEDERATED_TOLERANCE = 0.05
#: How far below the goal the epsilon of a costly calibration may stay.
_SLACK = 0.005
#: Bytes of one coordinate of the noise (float32).
BYTES = 4


def calibrated(candidate: Candidate, goal: Goal) -> Mechanism:
    """The candidate with the noise that the goal asks for, or with a noise std that was estimated."""
    strategy, sampling = candidate.strategy, candidate.sampling
    if candidate.noise_std is not None:
        return Mechanism(
            strategy,
            sampling,
            candidate.noise_std,
            goal.clip_norm,
            goal.adjacency,
            goal.unit,
            goal.delta,
            goal.verified,
        )
    if candidate.enough is not None and goal.epsilon is not None:
        return _in_bins(candidate, goal, candidate.enough, goal.epsilon)
    epsilon, sigma = goal.epsilon, goal.noise_multiplier
    if epsilon is not None and isinstance(sampling, (Poisson, CyclicPoisson)):
        sigma = fast_poisson_noise_multiplier(
            epsilon, goal.delta, sampling.rate, -(-strategy.n // sampling.groups), adjacency=goal.adjacency
        )
    if epsilon is not None and isinstance(sampling, RandomAllocation):
        sigma = random_allocation_noise_multiplier(epsilon, goal.delta, sampling.period, sampling.steps, 1e-4)
    made = calibrate(
        strategy,
        sampling=sampling,
        epsilon=epsilon if sigma is None else None,
        noise_multiplier=sigma,
        delta=goal.delta,
        clip_norm=goal.clip_norm,
        adjacency=goal.adjacency,
        unit=goal.unit,
    )
    excess = 1e-15
    while epsilon is not None and made.epsilon() > epsilon:  # sigma times the column norm was rounded
        made, excess = replace(made, noise_std=made.noise_std * (1 + excess)), 2 * excess
    return made


def _in_bins(candidate: Candidate, goal: Goal, std: float, epsilon: float) -> Mechanism:
    """Balls in bins with little more than the least noise: the search begins at `std`, which is enough."""

    def made(std: float) -> Mechanism:
        return Mechanism(
            candidate.strategy,
            candidate.sampling,
            std,
            goal.clip_norm,
            goal.adjacency,
            goal.unit,
            goal.delta,
        )

    accountant = made(std).accountant
    if not isinstance(accountant, BallsInBinsAccountant):
        raise TypeError(f"sampling={candidate.sampling!r} is not balls in bins.")
    return made(accountant.deterministic.noise_std(epsilon, goal.delta, start=std, tolerance=_SLACK))


def row_of(mechanism: Mechanism, workload: Workload, dimension: int | None, *, estimated: bool) -> PlanRow:
    """A line of the table."""
    rms = error(workload, mechanism.strategy).rms
    history = mechanism.strategy.recurrence().rows
    batch_size = mechanism.expected_batch_size
    return PlanRow(
        name=mechanism.strategy.describe(),
        sampling=type(mechanism.sampling).__name__,
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.noise_multiplier,
        rms_error=rms,
        predicted=mechanism.noise_std * rms / batch_size,
        memory=None if dimension is None else BYTES * dimension * history,
        history=history,
        batch_size=batch_size,
        mechanism=mechanism,
        estimated=estimated,
    )


def choose(rows: list[PlanRow], *, federated: bool) -> Plan:
    """The row of least predicted error; of equal ones that of least memory."""
    ranked = sorted(rows, key=lambda row: (row.predicted, row.history))
    known = [row for row in ranked if not row.estimated]
    least = known[0].predicted
    equal = [row for row in known if row.predicted <= least * (1 + TOLERANCE)]
    best = min(equal, key=lambda row: (row.history, row.predicted))
    why = f"it has the least predicted error within {TOLERANCE:.1%}, and of those the least memory"
    if federated:
        buffered = [row for row in known if row.name.startswith("BLT(")]
        if buffered and buffered[0].predicted <= least * (1 + FEDERATED_TOLERANCE):
            enough = [row for row in buffered if row.predicted <= buffered[0].predicted * (1 + TOLERANCE)]
            best = min(enough, key=lambda row: (row.history, row.predicted))
            why = (
                f"a federated run prefers a BLT within {FEDERATED_TOLERANCE:.0%} of the best, for its memory"
            )
    notes = [_against_independent(best, known), _sampling_note(best, ranked)]
    described = best.mechanism.sampling.describe(best.mechanism.unit)
    reason = " ".join(
        [f"Chosen: {short(best.name)} with {described}; {why}.", *(note for note in notes if note)]
    )
    final = tuple(replace(row, chosen=row is best) for row in ranked)
    return Plan(final, best.mechanism, reason)


def _against_independent(best: PlanRow, rows: list[PlanRow]) -> str:
    plain = [row for row in rows if isinstance(row.mechanism.strategy, Identity)]
    if not plain:
        return ""
    if plain[0] is not best:
        ratio = best.predicted / plain[0].predicted
        return f"Its predicted error is {ratio:.3g} times that of independent noise ({plain[0].sampling})."
    if best.mechanism.amplified:
        return "Correlating noise does not help here: sampling already gives what there is to gain."
    return ""


def _sampling_note(best: PlanRow, rows: list[PlanRow]) -> str:
    sampling = best.mechanism.sampling
    if isinstance(sampling, (BallsInBins, RandomAllocation, MinSepSampling)):
        poisson = [row for row in rows if isinstance(row.mechanism.sampling, (Poisson, CyclicPoisson))]
        if poisson:
            ratio = best.predicted / poisson[0].predicted
            return f"That is {ratio:.3g} times the least error of (cyclic) Poisson sampling."
    return ""
