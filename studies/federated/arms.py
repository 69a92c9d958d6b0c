"""The noise of each arm, and what it is calibrated to: the same participation and guarantee for all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from anechoic.federated import MinSeparation, plan_rounds
from anechoic.federated.planning import BYTES, DELTA_POWER, Choice
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import External
from anechoic.strategies import Identity
from studies.comparison.study import Arm, Kind, Scheme
from studies.federated.tasks import Rounds

UNIT = "client"
SCHEME: Scheme = "cool-down"
#: Noise of the arm that is not private, in clip norms: too little to matter, and no guarantee.
SILENT = 1e-6
#: What `plan_rounds` calls the noise of each private arm.
NOISE: dict[Kind, Choice] = {"independent": "identity", "tree": "tree", "blt": "blt", "banded": "banded"}


def policy_of(rounds: Rounds) -> MinSeparation:
    """What the server enforces."""
    return MinSeparation(rounds.separation, rounds.max_participations)


@lru_cache(maxsize=32)
def mechanism(kind: Kind, rounds: Rounds, *, clients: int, dimension: int, epsilon: float) -> Mechanism:
    """The mechanism of a private arm, with delta = 1 / N**1.1, however few clients a trial has.

    Raises:
        ValueError: if the population cannot fill the rounds, with the arithmetic.
    """
    return plan_rounds(
        rounds=rounds.rounds,
        clients=clients,
        clients_per_round=rounds.clients_per_round,
        policy=policy_of(rounds),
        epsilon=epsilon,
        delta=clients**-DELTA_POWER,
        dimension=dimension,
        clip_norm=rounds.clip_norm,
        unit=UNIT,
        mechanism=NOISE[kind],
        memory_budget=BYTES * dimension * rounds.separation,
    )


def silent(rounds: Rounds) -> Mechanism:
    """For the arm without privacy: the same server with next to no noise."""
    sampling = External(policy_of(rounds).participation, rounds.clients_per_round, rounds.rounds)
    return Mechanism(Identity(rounds.rounds), sampling, SILENT, rounds.clip_norm, unit=UNIT)


def arms(rounds: Rounds, *, epsilons: tuple[float, ...], **population: Any) -> tuple[Arm, ...]:
    """Not private, and every kind of noise at every epsilon.

    Args:
        rounds: how the federation trains.
        epsilons: of the guarantees.
        population: `clients` and `dimension`, see `mechanism`.
    """
    found = [Arm("clipped", SCHEME, rounds.clip_norm, unit=UNIT)]
    for epsilon in epsilons:
        for kind in NOISE:
            text = mechanism(kind, rounds, epsilon=epsilon, **population).to_json()
            found.append(Arm(kind, SCHEME, rounds.clip_norm, epsilon, text, UNIT))
    return tuple(found)
