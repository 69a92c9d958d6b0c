"""From a training setting to a ranked table of mechanisms and a chosen one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anechoic._validate import fraction, one_of, positive_float, positive_int
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Adjacency
from anechoic.participation import Participation
from anechoic.planning.amplified import Amplified
from anechoic.planning.choice import BYTES, calibrated, choose, row_of
from anechoic.planning.estimated import Drawn
from anechoic.planning.records import AccountingChoice, Candidate, Goal, PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.setting import Setting, is_federated
from anechoic.workloads import Workload, prefix_sum

#: Names of the classes that a plan can be restricted to.
STRATEGIES = ("auto", "identity", "output", "banded_toeplitz", "blt")
#: Those for which no amplification by sampling is proved: batches then come in a fixed order.
UNAMPLIFIED = ("output", "blt")


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
    accounting: AccountingChoice = "deterministic",
) -> Plan:
    """Compare mechanisms for a training setting and choose one.

    Where batches may be sampled, the candidates are independent noise under Poisson sampling and random
    allocation, and banded strategies under cyclic Poisson sampling, their number of bands tuned; in runs of
    up to four passes also under balls in bins. A random search over nothing: the same question has the
    same answer.

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
        strategy: "auto", or one class: "identity", "output", "banded_toeplitz" (with "banded", its columns
            free, where that is quick), "blt".
        clip_norm, adjacency, unit: see `Mechanism`.
        drop_last: whether a pass drops its incomplete last batch.
        accounting: "deterministic", or "verified" to compare balls in bins and min-sep sampling too, by Monte
            Carlo estimates of their noise. The best of them is calibrated with accounting="verified", which
            takes minutes, and chosen only if it is still the best one then; the noise of the others stays an
            estimate (`PlanRow.estimated`).

    Raises:
        ValueError: for an argument out of range, or a budget in which only independent noise fits
            although another strategy was asked for.
    """
    one_of("strategy", strategy, STRATEGIES)
    one_of("accounting", accounting, ("deterministic", "verified"))
    one_of("adjacency", adjacency, ("zero_out", "replace_one", "add_or_remove"))
    sizes = list(batch_size) if isinstance(batch_size, Iterable) else [batch_size]
    if not sizes:
        raise ValueError("batch_size is empty: give at least one.")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon}, noise_multiplier={noise_multiplier}: give exactly one of the two."
        )
    if epsilon is not None:
        positive_float("epsilon", epsilon, remedy="Only infinitely much noise gives epsilon = 0.")
    goal = Goal(epsilon, fraction("delta", delta), noise_multiplier, clip_norm, adjacency, unit, accounting)
    history = _history_limit(dimension, memory_budget)
    rows: list[PlanRow] = []
    drawn: list[Drawn] = []
    for size in sizes:
        setting = Setting(
            positive_int("examples", examples),
            size,
            epochs,
            steps,
            random_sampling,
            participation,
            drop_last,
            workload,
            history,
        )
        for candidate in _candidates(setting, goal, strategy):
            mechanism = calibrated(candidate, goal)
            rows.append(row_of(mechanism, setting.workload, dimension, estimated=False))
        if accounting == "verified" and setting.sampled and strategy in ("auto", "banded_toeplitz"):
            drawn.append(Drawn(setting, goal))
    rows += _verified(drawn, goal, rows, dimension)
    if not rows:
        raise ValueError(
            f"no {strategy!r} strategy fits memory_budget={memory_budget} at dimension={dimension}:"
            " raise the budget, or take 'identity'."
        )
    return choose(rows, federated=is_federated(participation))


def _candidates(setting: Setting, goal: Goal, strategy: str) -> Iterable[Candidate]:
    if setting.sampled and strategy not in UNAMPLIFIED:
        return Amplified(setting, goal).candidates(strategy)
    return setting.unsampled_candidates(strategy)


def _verified(drawn: list[Drawn], goal: Goal, rows: list[PlanRow], dimension: int | None) -> list[PlanRow]:
    """Rows of the schemes that Monte Carlo accounts for; the best is verified if it can win."""
    found = [
        (candidate, row_of(calibrated(candidate, goal), one.setting.workload, dimension, estimated=True))
        for one in drawn
        for candidate in one.candidates()
    ]
    if not found:
        return []
    best, estimate = min(found, key=lambda pair: pair[1].predicted)
    result = [row for candidate, row in found if candidate is not best]
    if rows and estimate.predicted >= min(row.predicted for row in rows):
        return [*result, estimate]
    made = calibrate(
        best.strategy,
        sampling=best.sampling,
        epsilon=goal.epsilon,
        delta=goal.delta,
        clip_norm=goal.clip_norm,
        adjacency=goal.adjacency,
        unit=goal.unit,
        accounting="verified",
    )
    workload = next(one.setting.workload for one in drawn if one.n == best.strategy.n)
    return [*result, row_of(made, workload, dimension, estimated=False)]


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
    return int(budget // (BYTES * dimension))
