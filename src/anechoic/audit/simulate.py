"""Audit of a mechanism by its own noise stream, without a training loop."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array, positive_int
from anechoic.audit.law import law_of
from anechoic.audit.mechanism import audit
from anechoic.audit.observation import Observation
from anechoic.audit.patterns import strongest_pattern
from anechoic.audit.report import AuditReport
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream


def audit_mechanism(
    mechanism: Mechanism,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    delta: float | None = None,
    factor: float = 1.2,
    power_repeats: int = 40,
    key: bytes | None = None,
    seed: int | None = None,
) -> AuditReport:
    """Audit the noise that `mechanism` emits: canaries on coordinates of their own, added to the stream.

    Every canary takes part as the scheme draws it, or by the strongest allowed pattern found where nothing is
    sampled. Batches, clipping and the optimizer are not part of this: `audit_training` goes through them.

    Args:
        mechanism: what is claimed.
        canaries: m, half of them put in; noise and memory are n * m numbers.
        confidence, delta, factor, power_repeats: see `audit`.
        key: of the noise, 32 bytes; None for a fresh one.
        seed: of participation and of who is put in; None for fresh entropy.

    Raises:
        ValueError, UnsupportedError: see `audit`.
    """
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is a {type(mechanism).__name__}: give a Mechanism (calibrate(…), plan.mechanism)."
        )
    rng = np.random.default_rng(seed)
    m = positive_int("canaries", canaries, minimum=16, remedy="Half of them are left out.")
    if mechanism.amplified:
        participation, possible = law_of(mechanism.sampling).draw_units(m, rng)
    else:
        pattern = strongest_pattern(mechanism.strategy, mechanism.participation)
        participation = np.repeat(pattern[:, None], m, axis=1)
        possible = np.ones(participation.shape, bool)
    contribution = draw_contribution(mechanism, m, rng)
    stream = mechanism.strategy.stream(m, std=mechanism.noise_std, key=key, dtype=np.float64)
    rows = _emit(stream) + participation * contribution
    observation = Observation(rows, participation, contribution, possible)
    return audit(
        mechanism,
        observation,
        confidence=confidence,
        delta=delta,
        factor=factor,
        power_repeats=power_repeats,
        subject=f"the noise stream of {mechanism!r}",
    )


def draw_contribution(mechanism: Mechanism, canaries: int, rng: np.random.Generator) -> Array:
    """1 for a random half of the canaries; what the adjacency makes of a canary left out for the others."""
    left_out = -1.0 if mechanism.adjacency == "replace_one" else 0.0
    return np.where(rng.permutation(canaries) < canaries // 2, 1.0, left_out)


def _emit(stream: NoiseStream) -> Array:
    rows = np.empty((stream.n, stream.dimension))
    state = stream.init()
    for t in range(stream.n):
        row, state = stream.next(state)
        rows[t] = row
    return rows
