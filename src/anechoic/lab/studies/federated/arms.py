"""The noise of each arm, and what it is calibrated to: the same participation and guarantee for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from anechoic import optimize
from anechoic.federated import CoolDown
from anechoic.lab.studies.federated.tasks import Rounds
from anechoic.lab.studies.study import Arm, Kind
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Participation
from anechoic.sampling import External
from anechoic.strategies import FullTree, Identity, Strategy
from anechoic.workloads import prefix_sum

UNIT = "client"
SCHEME = "cool-down"
#: Noise of the arm that is not private, in clip norms: the least that a server accepts, and no guarantee.
SILENT = 1e-6

#: How each private arm makes its strategy, from the rounds, the separation and the participation.
STRATEGIES: dict[Kind, Callable[[int, int, Participation], Strategy]] = {
    "independent": lambda n, b, promise: Identity(n),
    "tree": lambda n, b, promise: FullTree(n),
    "blt": lambda n, b, promise: optimize.blt(prefix_sum(n), participation=promise).strategy,
    "banded": lambda n, b, promise: (
        optimize.banded(prefix_sum(n), bands=min(b, n), participation=promise).strategy
    ),
}


def delta_of(clients: int) -> float:
    """1 / N**1.1, the rule of federated practice: well below one in N.

    Raises:
        ValueError: for fewer than two clients, of which delta would be 1.
    """
    if clients < 2:
        raise ValueError(f"clients={clients}: privacy among fewer than 2 says nothing.")
    return float(clients) ** -1.1


def discipline_of(rounds: Rounds) -> CoolDown:
    """What the server enforces."""
    return CoolDown(rounds.separation, rounds.max_participations)


def sampling_of(rounds: Rounds) -> External:
    """Rounds formed by who is there, under that discipline."""
    return External(discipline_of(rounds).participation, rounds.clients_per_round, rounds.rounds)


def check_supply(rounds: Rounds, clients: int) -> None:
    """Refuse rounds that the population cannot fill.

    Raises:
        ValueError: with the arithmetic.
    """
    n, m = rounds.rounds, rounds.clients_per_round
    times = min(rounds.max_participations, -(-n // rounds.separation))
    if n * m > clients * times:
        raise ValueError(
            f"{n} rounds of {m} clients are {n * m:,} participations, but {clients:,} clients with at most"
            f" {times} each have {clients * times:,}: take fewer rounds, smaller ones, or more clients."
        )
    if min(rounds.separation, n) * m > clients:
        raise ValueError(
            f"{m} clients a round that rest for {rounds.separation} rounds are"
            f" {min(rounds.separation, n) * m:,} clients, but there are {clients:,}: take smaller rounds or a"
            " shorter rest."
        )


@lru_cache(maxsize=32)
def strategy(kind: Kind, rounds: Rounds) -> Strategy:
    """The strategy of an arm, optimised for prefix sums under the rounds' participation."""
    return STRATEGIES[kind](rounds.rounds, rounds.separation, discipline_of(rounds).participation)


def mechanism(kind: Kind, rounds: Rounds, *, epsilon: float, delta: float) -> Mechanism:
    """The mechanism of a private arm."""
    return calibrate(
        strategy(kind, rounds),
        sampling=sampling_of(rounds),
        epsilon=epsilon,
        delta=delta,
        clip_norm=rounds.clip_norm,
        unit=UNIT,
    )


def silent(rounds: Rounds) -> Mechanism:
    """For the arm without privacy: the same server with next to no noise."""
    return Mechanism(Identity(rounds.rounds), sampling_of(rounds), SILENT, rounds.clip_norm, unit=UNIT)


def arms(rounds: Rounds, *, clients: int, epsilons: tuple[float, ...]) -> tuple[Arm, ...]:
    """Not private, and every kind of noise at every epsilon, with delta = 1 / N**1.1.

    Raises:
        ValueError: see `check_supply`.
    """
    check_supply(rounds, clients)
    clip, steps, delta = rounds.clip_norm, rounds.local_steps, delta_of(clients)
    plain = Arm("clipped", SCHEME, clip, unit=UNIT, local_steps=steps)
    private = [
        Arm(
            kind, SCHEME, clip, epsilon, mechanism(kind, rounds, epsilon=epsilon, delta=delta).to_json(), UNIT, steps
        )
        for epsilon in epsilons
        for kind in STRATEGIES
    ]
    return plain, *private
