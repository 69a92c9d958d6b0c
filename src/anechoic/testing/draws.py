"""The contract of secret draws: who is in which batch follows from the key, for every unit alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import rel_entr

from anechoic._validate import Array
from anechoic.batches.base import batches_of
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling
from anechoic.testing._compare import require

KEYS = 160  # fixed keys whose runs are compared
CHANCE = 1e-9  # that a scheme which keeps the rule is refused, at most about


def check_draws(sampling: Sampling) -> None:
    """Under an amplified scheme no unit has a pattern, or a step, much more often over keys than units have.

    Accountants rely on it: a unit's own pattern is drawn by the secret key, with the frequencies of all
    units. Counts of one unit over `KEYS` fixed keys are held against those of all by Chernoff's bound of a
    binomial tail, P(Bin(K, p) >= K q) <= exp(-K KL(q || p)), added up over units and patterns; so a unit that
    is always in is seen where others are under less than about 0.8 of the keys, and one that is never in
    where that is rare. Different keys give different batches, unless all units may well agree by chance.

    Args:
        sampling: with some dozens of units, and few steps; one that is not amplified, or has no batches here,
            keeps the rule.
    """
    if not sampling.amplified or sampling.examples is None:
        return
    try:
        taken = drawn_steps(sampling, KEYS)
    except UnsupportedError:
        return  # check_batches sees to how it is refused
    keys, units, steps = taken.shape
    patterns, labels = np.unique(taken.reshape(-1, steps), axis=0, return_inverse=True)
    labels = labels.reshape(keys, units)
    counts = np.stack([np.bincount(row, minlength=len(patterns)) for row in labels.T]).astype(np.float64)
    inside = taken.sum(axis=0)
    looked_at: list[tuple[Array, Callable[[int], str]]] = [
        (counts, lambda place: f"the steps {np.flatnonzero(patterns[place]).tolist()}"),
        (inside, lambda place: f"step {place}"),
        (keys - inside, lambda place: f"no step {place}"),
    ]
    for found, name in looked_at:
        log_chance = _log_tail(found, keys)
        unit, place = divmod(int(np.argmin(log_chance)), found.shape[1])
        rule = (
            f"unit {unit} has {name(place)} under {found[unit, place]:.0f} of {keys} keys, and units have it"
            f" under {found[:, place].mean():.3g} of them on average: who is in is no secret of the key"
        )
        require(sampling, log_chance[unit, place] >= math.log(CHANCE / found.size), rule)
    same = float(np.square(counts.sum(axis=0) / (keys * units)).sum())  # of one unit under two keys
    alike = keys - len(np.unique(labels, axis=0))
    # of all units, at most: units / 2 in the exponent leaves room for groups of fixed sizes
    log_same = math.log(keys) + units / 2 * math.log(same)
    rule = f"{alike} of {keys} keys give the batches of another key: they are no secret of the key"
    require(sampling, alike * log_same >= math.log(CHANCE), rule)


def drawn_steps(sampling: Sampling, keys: int) -> Array:
    """Who takes part in which step under each of so many fixed keys: 0 or 1, shape (keys, units, steps)."""
    taken = np.zeros((keys, int(sampling.examples or 0), sampling.steps))
    for number in range(keys):
        batches = batches_of(sampling, number.to_bytes(32, "big"))
        for t in range(sampling.steps):
            taken[number, batches.batch(t), t] = 1.0
    return taken


def _log_tail(counts: Array, keys: int) -> Array:
    """log of a bound on the chance of at least these counts, shape (units, places), at the mean of units."""
    units = len(counts)
    p = counts.mean(axis=0) / keys
    p = np.minimum(p + 3.0 * np.sqrt(p * (1.0 - p) / (keys * units)), 1.0)  # the mean is an estimate
    q = counts / keys
    return np.asarray(np.where(q > p, -keys * (rel_entr(q, p) + rel_entr(1.0 - q, 1.0 - p)), 0.0))
