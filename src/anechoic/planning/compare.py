"""Comparison of mechanisms for a training setting: the ranked table of `plan`, and its choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from anechoic._patience import patience
from anechoic._validate import flag, fraction, known_keywords, one_of, positive_float, positive_int
from anechoic.accounting import Verified
from anechoic.accounting.accountant import Accounting
from anechoic.algebra.threads import on_one_thread
from anechoic.mechanism.mechanism import Adjacency
from anechoic.mechanism.weak_delta import weak_delta
from anechoic.participation.base import Participation
from anechoic.planning.advice import advice_for, suited_to_rate
from anechoic.planning.amplified_candidates import AmplifiedCandidates
from anechoic.planning.balls_in_bins_candidates import BallsInBinsCandidates
from anechoic.planning.bands import powers_of_two
from anechoic.planning.calibration import calibrate_to_goal, row_of, with_verified_noise
from anechoic.planning.choice import (
    Instead,
    Score,
    choose,
    independent,
    least_error,
    more_memory,
    rows_of,
    score_candidates,
    unnoticed_noise,
)
from anechoic.planning.families import PLAN_CHOICES, StrategyName
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import MemoryBudget, memory_limit
from anechoic.planning.objective import Kept, PlanObjective
from anechoic.planning.records import Candidate, Goal, PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.run_shape import RunShape
from anechoic.planning.update import Interval, update_of, with_schedule
from anechoic.planning.user_choices import Restriction, SchemeName, amplified, under_sampling
from anechoic.sampling import BallsInBins, FixedSize, Poisson
from anechoic.sampling.base import Sampling
from anechoic.strategies import Identity
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

#: Names of the classes that a plan can be restricted to.
STRATEGIES = tuple(PLAN_CHOICES)
#: Those for which no amplification by sampling is proved: batches then come in a fixed order.
UNAMPLIFIED = ("output", "dense")
#: Name of the row that a plan in a fixed order is compared with.
IF_DRAWN = "DP-SGD, if these batches might be drawn in secret"


@known_keywords
@patience("comparing mechanisms")
@on_one_thread
def plan(
    examples: int,
    batch_size: int | Sequence[int],
    *,
    epochs: int | Sequence[int] | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    dimension: int | None = None,
    memory_budget: float | str | None = None,
    random_sampling: bool = True,
    participation: Participation | None = None,
    optimizer: Any = "sgd",
    scheduler: Any = None,
    scheduler_interval: Interval = "step",
    keep: Kept | float = "last",
    workload: Workload | Callable[[int], Workload] | None = None,
    strategy: StrategyName | Strategy | Sequence[StrategyName | Strategy] = "auto",
    sampling: SchemeName | Sampling | Sequence[SchemeName | Sampling] | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency = "zero_out",
    unit: str = "example",
    accounting: Accounting | Literal["verified"] = "deterministic",
    drop_last: bool = False,
) -> Plan:
    """Compare mechanisms for a training setting and choose the one of least predicted error.

    In a fixed order, or under a promised participation: independent noise, banded Toeplitz strategies (with
    "banded", its columns free, where that is quick), BLTs plain and normalised, and in short runs (up to
    1024 steps) the best matrix of all. Where batches may be sampled, besides all these: independent noise
    under Poisson sampling and random allocation, banded strategies under cyclic Poisson sampling, and, where
    a pass has up to 1024 steps, in balls in bins bands in up to 4 passes and BLTs in up to 64.

    Of rows within 2 % of the least error that one is taken which has the least noise in a step, of these
    (again within 2 %) one whose batches are drawn, where that is permitted, then that of the least noise
    state. The same question has the same answer, and whoever permits more (sampling, memory, any class) never
    gets an error that is more than these 2 % larger, but where `optimizer` says that another row is taken.
    In a fixed order `Plan.drawn` is DP-SGD on the same rows, if batches might be drawn in secret.

    Args:
        examples: N, >= 1.
        batch_size: B, or several to compare.
        epochs: passes over the data, or several to compare; give this or `steps`. Runs of different length
            are ranked by predicted error over steps.
        steps: n.
        epsilon, delta: the guarantee wanted.
        noise_multiplier: instead of `epsilon`, the sigma of independent noise, in units of its reference
            sensitivity: under Poisson sampling where batches may be sampled, which is Opacus's number. The
            epsilon that this has at `delta` is what every row is calibrated to.
        dimension: number of trainable parameters, for the memory of the noise state.
        memory_budget: bytes that the noise state (float32) may take, or a text such as "2GB"; needs
            `dimension`. None for 4 times the model or 64 MiB, whichever is more, and no bound where the
            dimension is unknown.
        random_sampling: whether batches may be sampled at random and in secret.
        participation: what is promised where somebody else forms batches (federated, time order);
            `random_sampling` is then without meaning.
        optimizer: "sgd", "adam", or a torch optimizer, which is read. The error of what linear updates add up
            to decides. Adam and its kin divide them by what is mostly the noise of a step, so that the best
            noise, which is planned for sums, asks for larger rates: see `advice`. At a smaller rate of a
            torch optimizer "auto" plans for its buffer, or takes independent noise. With
            momentum, "auto" takes independent noise where that of the whole run adds less to the model than
            half a clipped gradient, which needs `dimension`.
        scheduler: learning rates of the run: a torch scheduler, which is read and not moved; "cooldown"
            (constant, then linearly to 0 in the last fifth), "cosine", "linear" or "constant"; the rates
            themselves, one for every step; or a function of their number that returns them. Their size has
            no meaning; those below a thousandth of the largest count as that. None for a constant rate.
        scheduler_interval: whether the scheduler is stepped once a "step" or once an "epoch", a pass.
        keep: which iterates the error is taken of. "last" for a mean over all of them in which the last one
            has the weight .2; "all" without that (online learning); "average" gives that weight to the last
            half of the run; "any" for the largest error of an iterate; a number in [0, 1] is the weight of
            the last one. Much of it helps convex models and harms networks.
        workload: instead of what the optimizer adds up to: a Toeplitz workload of as many steps as the run
            has, with learning rates or not, or a function of that number, such as
            ``lambda n: workloads.momentum(n, 0.9)``.
        strategy: "auto", or one class: "identity", "output", "banded_toeplitz" or "banded" (which are
            compared together), "blt", "dense", or one that `extend.register_strategies` knows; a Strategy,
            which competes as it is; or several of these.
        sampling: None for all schemes that are permitted, or names of some of them: "fixed_order",
            "poisson", "cyclic_poisson", "random_allocation", "balls_in_bins", and "fixed_size", which has
            to be named, as Poisson sampling takes less noise; a Sampling, under which independent noise,
            banded Toeplitz strategies and those given are calibrated (where its accounting is slow, that
            takes minutes); or several of these.
        clip_norm, adjacency, unit: see `Mechanism`.
        accounting: of the choice, see `calibrate`. Rows are compared by bounds without sampling error; the
            choice then has the noise that Monte Carlo verifies, where that is less, after a minute or so.
        drop_last: whether a pass drops its incomplete last batch.

    Returns:
        The choice, calibrated, with every candidate and the reason.

    Raises:
        ValueError: for an argument out of range, or a budget in which only independent noise fits
            although another strategy was asked for.
        UnsupportedError: where no theorem covers what is asked for.
    """
    wanted = Restriction.of(strategy, sampling)
    update = with_schedule(update_of(optimizer), scheduler, scheduler_interval)
    one_of("adjacency", adjacency, ("zero_out", "replace_one", "add_or_remove"))
    flag("random_sampling", random_sampling)
    flag("drop_last", drop_last)
    if not isinstance(accounting, Verified):
        one_of("accounting", accounting, ("deterministic", "verified"), remedy="Or give a Verified.")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon}, noise_multiplier={noise_multiplier}: give exactly one of the two."
        )
    if epsilon is not None:
        positive_float("epsilon", epsilon, remedy="Only infinitely much noise gives epsilon = 0.")
    asked = Goal(epsilon, fraction("delta", delta), noise_multiplier, clip_norm, adjacency, unit)
    space = memory_limit(dimension, memory_budget)
    count = positive_int("examples", examples)
    lengths: Sequence[int | None] = [None] if epochs is None else _several("epochs", epochs)
    shapes = [
        RunShape(
            count, size, passes, steps, random_sampling, participation, drop_last, workload, update, keep
        )
        for size, passes in product(_several("batch_size", batch_size), lengths)
    ]
    rows, found, notes = _compared(shapes, asked, space, wanted)
    if not rows:
        least = min((one.history for one in found), default=0)
        takes = f" (the least of them takes {space.memory(least)} bytes)" if least else ""
        raise ValueError(
            f"no {strategy!r} strategy fits memory_budget={memory_budget} at dimension={dimension}:"
            f" raise the budget{takes}, or take 'identity'."
            if sampling is None
            else f"no {strategy!r} strategy is covered under sampling={sampling!r} and"
            f" adjacency={asked.adjacency!r}: permit more of them, or take another adjacency."
            + "".join(f" {note}" for note in notes)
        )
    instead: Instead | None = None
    larger: float | None = None
    sums = dict[int, PlanObjective]()
    if strategy == "auto" and workload is None:
        instead = unnoticed_noise(rows, update, dimension)
        if update.kind == "adam":
            first = least_error(rows)
            plain = independent([row for row in rows if row.mechanism.steps == first.mechanism.steps])
            suits, said = suited_to_rate(first, plain, update)
            if suits == "buffer":
                sums = {row.mechanism.steps: row.objective for row in rows}
                shapes = [replace(shape, design=update.buffer) for shape in shapes]
                rows, found, notes = _compared(shapes, asked, space, wanted)
                alike = [row for row in rows if row.mechanism.steps == first.mechanism.steps]
                suits, said = suited_to_rate(first, plain, update, least_error(alike))
                plain = independent(rows)
            if suits == "independent" and plain is not None:
                instead = plain, "its noise of a step is what the learning rate is for", said
            notes += [said] * (instead is None)
            if suits != "sums" and (asked_for := advice_for(first, update)) is not None:
                larger = asked_for.rate
    if epsilon is not None:
        notes.insert(0, f"Every row keeps epsilon = {epsilon:g} at delta = {delta:g}.")
    if weak := weak_delta(delta, examples, unit):
        notes.insert(0, f"{weak}.")
    chosen = choose(rows, [*notes, space.reason], drawn=_if_drawn(shapes, asked, space), instead=instead)
    chosen = with_verified_noise(chosen, epsilon, accounting)
    best = chosen.chosen
    advice = None if workload is not None else advice_for(best, update, sums.get(best.mechanism.steps))
    advice = advice and replace(advice, larger=larger)
    # more memory gains error of sums, by which such a choice was not made
    room_for = "" if instead else more_memory(found, space, best)
    reason = (chosen.reason, room_for, "" if advice is None else str(advice))
    return replace(chosen, reason=" ".join(filter(None, reason)), advice=advice)


def _compared(
    shapes: Iterable[RunShape], asked: Goal, space: MemoryBudget, wanted: Restriction
) -> tuple[list[PlanRow], list[Score], list[str]]:
    """Rows of all shapes, all that was scored, and notes."""
    rows, found, notes = list[PlanRow](), list[Score](), list[str]()
    for setting in shapes:
        goal, note = _equal_privacy(setting, asked)
        candidates, unsupported = _candidates(setting, goal, space, wanted)
        here = score_candidates(setting, candidates, space)
        notes += [*filter(None, [note]), *unsupported]
        found += here
        rows += rows_of(here, goal, space)
    return rows, found, notes


def _if_drawn(shapes: list[RunShape], asked: Goal, space: MemoryBudget) -> PlanRow | None:
    """DP-SGD on batches that are in a fixed order, if they might be drawn in secret; None where they may."""
    setting = shapes[0]
    goal, _ = _equal_privacy(setting, asked)
    if (
        len(shapes) > 1
        or setting.participation is not None
        or setting.random_sampling
        or goal.epsilon is None
    ):
        return None
    sampling = Poisson(setting.examples, setting.batch_size, setting.fixed.steps)
    made = calibrate_to_goal(goal, Identity(sampling.steps), sampling)
    return replace(row_of(made, setting.designs, space), name=IF_DRAWN)


def _several(name: str, given: int | Sequence[int]) -> list[int]:
    values = list(given) if isinstance(given, Iterable) else [given]
    if not values:
        raise ValueError(f"{name} is empty: give at least one.")
    return values


def _candidates(
    setting: RunShape, goal: Goal, space: MemoryBudget, wanted: Restriction
) -> tuple[list[Candidate], list[str]]:
    """All that is permitted and asked for, and notes: what needs no secret is permitted always."""
    found: list[Candidate] = []
    families, unsampled = wanted.families, setting.unsampled
    given = wanted.made(setting.workload, unsampled.participation, setting.designs.loss)
    covered = True
    if setting.sampled:
        drawn = AmplifiedCandidates(setting, goal, space)
        found += drawn.candidates(families, wanted.takes)
        if binned := wanted.takes(BallsInBins):
            found += BallsInBinsCandidates(drawn).candidates(families)
        found += amplified(given, drawn, binned=binned)
        as_given = goal.noise_multiplier is not None and families == {"identity"}
        covered = not as_given and goal.adjacency != "add_or_remove"  # of which a fixed order is not
    if covered and wanted.takes(type(unsampled)):
        fixed = FixedOrderCandidates(setting.designs, unsampled.participation, space).of(families)
        for strategy in (*fixed, *given):  # calibration is exact, and costs nothing
            made = calibrate_to_goal(goal, strategy, unsampled)
            found.append(Candidate(strategy, unsampled, made.noise_std, made=made))
    found, notes = [one for one in found if wanted.takes(type(one.sampling))], list[str]()
    samplings: tuple[Sampling, ...] = wanted.samplings
    if setting.sampled and wanted.schemes and wanted.takes(FixedSize):
        samplings += (FixedSize(setting.examples, setting.batch_size, setting.fixed.steps),)
    for sampling in samplings:
        own: Iterable[Strategy]
        if sampling.amplified:
            bands = [b for b in powers_of_two(setting.period) if b > 1 and "banded_toeplitz" in families]
            own = [Identity(setting.fixed.steps)] if "identity" in families else []
            own += [setting.designs.toeplitz(b) for b in bands]
        else:
            own = FixedOrderCandidates(setting.designs, sampling.participation, space).of(families)
        more, said = under_sampling(sampling, own, given, goal)
        found += more
        notes += said
    return found, notes


def _equal_privacy(setting: RunShape, asked: Goal) -> tuple[Goal, str]:
    """The goal with an epsilon: that of independent noise, where its noise multiplier was given."""
    if asked.noise_multiplier is None:
        return asked, ""
    sampling: Sampling = setting.unsampled
    if setting.sampled:
        sampling = Poisson(setting.examples, setting.batch_size, setting.fixed.steps)
    independent = calibrate_to_goal(asked, Identity(sampling.steps), sampling)
    epsilon = float(independent.epsilon())
    if epsilon == 0.0:
        return asked, f"noise_multiplier={asked.noise_multiplier} gives epsilon 0: nothing is left to gain."
    note = (
        f"noise_multiplier={asked.noise_multiplier:g} is that of independent noise"
        f" ({type(sampling).__name__}), which gives epsilon = {epsilon:.4g}: every row keeps it."
    )
    return replace(asked, epsilon=epsilon), note
