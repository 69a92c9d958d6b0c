"""The mechanism of a federated run, from how many rounds and clients there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from anechoic import optimize
from anechoic._validate import fraction, one_of, positive_float, positive_int
from anechoic.federated.discipline import Discipline
from anechoic.federated.fitting import check_rounds
from anechoic.losses import loss as loss_of
from anechoic.mechanism import Mechanism, calibrate
from anechoic.mechanism.rows import on_finest_grid
from anechoic.participation import Participation
from anechoic.planning.designs import BUFFERS, NORMALIZE_UP_TO
from anechoic.sampling import External
from anechoic.strategies import ColumnNormalized, FullTree, Identity, Strategy
from anechoic.workloads import prefix_sum

#: What `plan_rounds(mechanism=…)` takes.
Choice = Literal["auto", "blt", "banded", "tree", "identity"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
LossOfRounds = Literal["rms", "max"]
LOSSES: tuple[LossOfRounds, ...] = get_args(LossOfRounds)
#: Delta is so many clients to the power of minus this, where none is given.
DELTA_POWER = 1.1


def plan_rounds(
    *,
    rounds: int,
    clients: int,
    clients_per_round: int,
    discipline: Discipline,
    epsilon: float,
    dimension: int,
    delta: float | None = None,
    clip_norm: float = 1.0,
    unit: str = "client",
    adjacency: str = "zero_out",
    mechanism: Choice = "auto",
    loss: LossOfRounds = "rms",
    memory: int = 64,
) -> Mechanism:
    """The mechanism of least error in the model that gives (epsilon, delta) for one client.

    Errors are those of running sums of updates at equal guarantee (monograph, Sections 3.1 and 4.4).
    Noise is calibrated for what the discipline enforces, so that no sampling is claimed.

    Args:
        rounds: releases n, >= 1.
        clients: N that there are, or are expected; for delta and the arithmetic of the supply.
        clients_per_round: m, most clients of one round, and the divisor of every sum.
        discipline: `Cohorts(b)` or `CoolDown(b, k)`.
        epsilon, delta: of all rounds together; delta = clients ** -1.1 where none is given.
        dimension: parameters that are trained, as `Layout.dimension`.
        clip_norm: largest 2-norm of one client's update, > 0.
        unit: what one client is, for statements: "client" or "user".
        adjacency: "zero_out" or "replace_one".
        mechanism: "blt" (at most four buffers), "banded" (Toeplitz, its columns normalised, of as many bands
            as the separation and the memory allow), "tree" (full Honaker), "identity" (independent noise),
            or "auto" for the one of least loss among them.
        loss: "rms" or "max" over the rounds.
        memory: rows of noise, `dimension` numbers each, that "banded" and "auto" may keep, >= 1.

    Returns:
        With sums and noise on a grid where rows can be rounded exactly (docs/proofs/float-safe.md).

    Raises:
        ValueError: for an argument out of range; or if the clients cannot fill the rounds under the
            discipline, with the arithmetic.
        UnsupportedError: for another adjacency.

    Example:
        >>> from anechoic.federated import CoolDown, plan_rounds
        >>> rule = CoolDown(separation=10, max_participations=4)
        >>> plan_rounds(
        ...     rounds=40, clients=5000, clients_per_round=50, discipline=rule, epsilon=8.0, dimension=1000
        ... ).participation
        MinSep(separation=10, max_participations=4)
    """
    n = positive_int("rounds", rounds)
    if not isinstance(discipline, Discipline):
        raise ValueError(f"discipline={discipline!r} must be Cohorts(count) or CoolDown(separation, …).")
    one_of("mechanism", mechanism, CHOICES)
    one_of("loss", loss, LOSSES)
    rows = positive_int("memory", memory)
    entries = positive_int("dimension", dimension)
    discipline.check_supply(
        rounds=n,
        clients=positive_int("clients", clients, minimum=2),
        per_round=positive_int("clients_per_round", clients_per_round),
    )
    participation = discipline.participation
    sampling = External(participation, clients_per_round, steps=n, examples=clients)
    candidates = list(_candidates(mechanism, n, participation, rows, loss))
    workload = prefix_sum(n)
    best = min(candidates, key=lambda strategy: loss_of(workload, strategy, participation, loss))
    epsilon = positive_float("epsilon", epsilon, remedy="Only infinite noise gives 0.")
    delta = clients**-DELTA_POWER if delta is None else fraction("delta", delta)

    def made(bits: int | None) -> Mechanism:
        return calibrate(
            best,
            sampling=sampling,
            epsilon=epsilon,
            delta=delta,
            clip_norm=clip_norm,
            adjacency=one_of("adjacency", adjacency, ("zero_out", "replace_one", "add_or_remove")),  # type: ignore[arg-type]
            unit=unit,
            grid_bits=bits,
        )

    planned = on_finest_grid(made, entries)
    check_rounds(planned)
    return planned


def _candidates(
    choice: str, n: int, participation: Participation, memory: int, loss: LossOfRounds
) -> Iterable[Strategy]:
    """Strategies of one choice, or of all."""
    workload = prefix_sum(n)
    if choice in ("auto", "identity") or n == 1:
        yield Identity(n)
    if n == 1:
        return
    # where a unit may take part in steps that are neighbours, more bands lose more than they gain
    bands = min(participation.contained_period(n), memory, n)
    if choice == "banded" or (choice == "auto" and bands > 1):
        found: Strategy = optimize.banded_toeplitz(workload, bands=bands, loss=loss).strategy
        yield ColumnNormalized(found) if n <= NORMALIZE_UP_TO and bands > 1 else found
    if choice in ("auto", "blt"):
        yield optimize.blt(
            workload, buffers=min(BUFFERS, n - 1), participation=participation, loss=loss
        ).strategy
    if choice in ("auto", "tree"):
        yield FullTree(n)
