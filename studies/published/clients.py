"""Federations for the papers' figures: a softmax model, clients in a fixed order or sampled, no server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anechoic.batches.base import batches_of
from anechoic.sampling.base import Sampling
from studies.federated.local import updates
from studies.federated.population import Population
from studies.published.together import Floats, Indices, cooling


@dataclass(frozen=True)
class Rounds:
    """How the federation trains: that of docs/measured.md for text, with a cool-down of the server.

    Attributes:
        rounds: T.
        clients_per_round: asked, or expected where they are sampled, and the divisor.
        local_steps, local_rate: of a client, on all it holds.
        clip_norm: of the update of a client.
        momentum: of the server.
        cooled: share of the rounds at the end in which its rate falls.
    """

    rounds: int
    clients_per_round: int
    local_steps: int = 4
    local_rate: float = 1.0
    clip_norm: float = 0.4
    momentum: float = 0.9
    cooled: float = 0.25


def schedule(sampling: Sampling, trial: int) -> Callable[[int], Indices]:
    """Who is in which round, the same for every arm of a trial."""
    return batches_of(sampling, hashlib.sha256(f"anechoic clients: {trial}".encode()).digest()).batch


def federate(
    data: Population,
    clients: Callable[[int], Indices],
    how: Rounds,
    *,
    rate: float,
    noise: Floats | None = None,
    scale: float = 0.0,
) -> float:
    """Accuracy on the held-out texts after all rounds of federated averaging with clipped updates.

    Args:
        data: the population.
        clients: of round t; there may be none.
        how: settings.
        rate: of the server.
        noise: rows that are added to the sum of updates, shape (rounds, features * classes); None for none.
        scale: what they are multiplied by.
    """
    model = np.zeros(data.shape, dtype=np.float32)
    velocity, late = np.zeros_like(model), round(how.cooled * how.rounds)
    for t in range(how.rounds):
        total = np.zeros_like(model)
        asked = clients(t)
        if len(asked):
            found = updates(model, *data.batch(asked.tolist()), steps=how.local_steps, rate=how.local_rate)
            lengths = np.sqrt(np.einsum("cfk,cfk->c", found, found))
            total += np.einsum(
                "cfk,c->fk", found, np.minimum(1.0, how.clip_norm / np.maximum(lengths, 1e-12))
            )
        if noise is not None:
            total += np.float32(scale) * noise[t].reshape(total.shape)
        velocity = np.float32(how.momentum) * velocity + total / np.float32(how.clients_per_round)
        model += np.float32(rate * cooling(t, how.rounds, late)) * velocity
    return data.accuracy(model)
