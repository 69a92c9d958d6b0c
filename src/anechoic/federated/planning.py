"""Plan the mechanism of a federated run from its rounds and clients."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.federated.compatibility import asked_per_round, check_rounds
from anechoic.federated.optimizers import SGD, ServerOptimizer
from anechoic.federated.participation_policy import ParticipationPolicy, checked_policy
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.external_batches import ExternalSetting, calibrated_in_integers
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.objective import Kept, PlanObjective
from anechoic.planning.records import Goal
from anechoic.planning.update import UpdateRule, update_of
from anechoic.planning.user_choices import Restriction
from anechoic.sampling import External
from anechoic.strategies.base import Strategy

_log = logging.getLogger(__name__)

#: What `plan_rounds(mechanism=…)` takes.
Choice = Literal["auto", "blt", "banded", "tree", "identity"]
ROUND_CHOICES: tuple[Choice, ...] = get_args(Choice)
#: What each compares.
ROUND_FAMILIES: dict[Choice, frozenset[str]] = {
    "auto": frozenset({"identity", "banded_toeplitz", "blt", "tree"}),
    "blt": frozenset({"blt"}),
    "banded": frozenset({"banded_toeplitz"}),
    "tree": frozenset({"tree"}),
    "identity": frozenset({"identity"}),
}
#: Delta is so many clients to the power of minus this, where none is given, and where that is small enough.
DELTA_POWER = 1.1
MOST_DELTA = 1e-3
#: Without a budget the noise may keep so many bytes, but so many rows at least and at most.
FLOOR, FEWEST_ROWS, MOST_ROWS = 2**30, 4, 64
#: A coordinate of a row of noise, float64.
BYTES = 8
#: "auto" takes more bytes than these only where they lower the loss by more than this part.
FREE, WORTH = 2**26, 0.1


def plan_rounds(
    *,
    rounds: int,
    clients: int,
    clients_per_round: int,
    policy: ParticipationPolicy,
    epsilon: float,
    dimension: int,
    delta: float | None = None,
    clip_norm: float = 1.0,
    unit: str = "client",
    adjacency: str = "zero_out",
    mechanism: Choice | str | Strategy | Sequence[str | Strategy] = "auto",
    optimizer: ServerOptimizer | None = None,
    keep: Kept | float = "last",
    memory_budget: float | None = None,
    over_selection: float = 0.0,
) -> Mechanism:
    """Return the mechanism of least error in the model that gives (epsilon, delta) for one client.

    Errors are those of the models that the server's optimizer makes of the updates (monograph, Sections 3.1
    and 4.4), at equal guarantee. Noise is calibrated for what the policy enforces, so that no sampling is
    claimed.

    Args:
        rounds: releases n, >= 1.
        clients: N that there are, or are expected; for delta and the arithmetic of the supply.
        clients_per_round: m, replies that a round takes, and the divisor of every sum.
        policy: `Cohorts(b)` or `MinSeparation(b, k)`.
        epsilon, delta: of all rounds together; delta = clients ** -1.1 where none is given, which is refused
            for fewer than 534 clients: a mechanism of delta = .08 may publish one of ten clients whole.
        dimension: parameters that are trained, as `Layout.dimension`.
        clip_norm: largest 2-norm of one client's update, > 0.
        unit: what one client is, for statements: "client" or "user".
        adjacency: "zero_out" or "replace_one".
        mechanism: "blt" (at most four buffers), "banded" (with columns of equal norms or not, of at most as
            many bands as the separation and the memory allow), "tree" (full Honaker), "identity" (independent
            noise), or "auto" for the one of least error among them; where noise takes more than 64 MiB, for
            the one of least memory whose error is within a tenth of the least. A class that
            `extend.register_strategies` knows competes under "auto", and alone by its name; a Strategy of so
            many steps competes as it is; or several of these.
        optimizer: the server's, whose momentum and schedule are planned for; None for SGD(1.0). Of those that
            divide by the size of updates, sums are planned for.
        keep: which models count, as in `anechoic.plan`: "last" for a mean over all rounds in which the last
            one has the weight .2, "all", "average", "any" for the largest error of a round, or the weight of
            the last one.
        memory_budget: bytes that the rows of noise may take in memory, and once more on disk: 8 for each of
            `dimension` entries of a row. None for 1 GiB, with 4 to 64 rows. Bounds "banded" and "auto".
        over_selection: of the server, for the arithmetic of the supply.

    Returns:
        With sums and noise on a grid where rows can be rounded exactly.

    Raises:
        ValueError: for an argument out of range; or if the clients cannot fill the rounds under the
            policy, with the arithmetic.
        UnsupportedError: for another adjacency.

    Example:
        >>> from anechoic.federated import MinSeparation, plan_rounds
        >>> rule = MinSeparation(separation=10, max_participations=4)
        >>> plan_rounds(
        ...     rounds=40, clients=5000, clients_per_round=50, policy=rule, epsilon=8.0, dimension=1000
        ... ).participation
        MinSep(separation=10, max_participations=4)
    """
    n = positive_int("rounds", rounds)
    checked_policy(policy)
    wanted = Restriction.of(mechanism, choices=ROUND_FAMILIES, argument="mechanism")
    objective = PlanObjective.of(_update_of(optimizer).workload(n, n), keep)
    entries = positive_int("dimension", dimension)
    rows = _rows_within(memory_budget, entries)
    supply = {
        "rounds": n,
        "clients": positive_int("clients", clients, minimum=2),
        "per_round": asked_per_round(positive_int("clients_per_round", clients_per_round), over_selection),
    }
    if (tight := policy.check_supply(**supply)) is not None:
        _log.warning("%s", tight)
    delta = default_delta(clients) if delta is None else fraction("delta", delta)
    goal = Goal(
        positive_float("epsilon", epsilon, remedy="Only infinite noise gives 0."),
        delta,
        None,
        clip_norm,
        one_of("adjacency", adjacency, ("zero_out", "replace_one", "add_or_remove")),  # type: ignore[arg-type]
        unit,
    )
    best = ExternalSetting(
        objective,
        policy.participation,
        wanted,
        MemoryBudget(rows, entries),
        bounded=wanted.families not in (ROUND_FAMILIES["blt"], ROUND_FAMILIES["tree"]),
        alike=WORTH,
        free_rows=FREE // (BYTES * entries),
    ).best()
    if best is None:
        raise ValueError(
            f"no {mechanism!r} mechanism fits {rows} rows of noise (memory_budget={memory_budget},"
            f" dimension={dimension}): raise the budget, or permit 'identity'."
        )
    sampling = External(policy.participation, clients_per_round, steps=n, examples=clients)
    planned = calibrated_in_integers(goal, best, sampling, entries)
    check_rounds(planned)
    return planned


def _rows_within(memory_budget: float | None, dimension: int) -> int:
    row = BYTES * dimension
    if memory_budget is None:
        return min(MOST_ROWS, max(FEWEST_ROWS, FLOOR // row))
    budget = positive_float("memory_budget", memory_budget, remedy="Give bytes, such as 2e9.")
    if budget < row:
        raise ValueError(
            f"memory_budget={memory_budget} has no room for one row of noise: {row} bytes ({dimension}"
            " parameters of 8). Give more, or mechanism='identity'."
        )
    return int(budget // row)


def default_delta(clients: int) -> float:
    """The delta of so many clients, where it is one that can be meant."""
    delta: float = clients**-DELTA_POWER
    if delta > MOST_DELTA:
        raise ValueError(
            f"delta is not given, and for clients={clients} it would be clients**-{DELTA_POWER}"
            f" = {delta:.3g}: a mechanism that publishes all of one client with that probability has it. Give"
            " delta= yourself, such as delta=1e-5."
        )
    return delta


def _update_of(optimizer: ServerOptimizer | None) -> UpdateRule:
    if optimizer is None:
        return UpdateRule()
    if not isinstance(optimizer, ServerOptimizer):
        raise ValueError(
            f"optimizer={optimizer!r} must be a ServerOptimizer, such as SGD(1.0, momentum=0.9)."
        )
    return update_of(optimizer)


@update_of.register
def _(optimizer: ServerOptimizer) -> UpdateRule:
    return UpdateRule("adam")


@update_of.register
def _(optimizer: SGD) -> UpdateRule:
    rates = None
    if callable(optimizer.lr):

        def rates(count: int) -> Array:
            return np.array([optimizer.rate(step) for step in range(count)])

    return UpdateRule("sgd", optimizer.momentum, rates=rates)
