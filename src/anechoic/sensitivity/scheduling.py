"""Algorithm 3.2: the best schedule of separated steps, exact where participations do not interact."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.sensitivity import theorems
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy


def scheduled(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    """sens^2 = max sum_{t in pi} ||C[:, t]||^2, where C^T C vanishes at every lag >= separation.

    The columns of one pattern are then orthogonal, so signs and dimension play no part (monograph,
    Lemma 3.16 b and Algorithm 3.2). The caller checks the condition.
    """
    best = best_schedule(strategy.column_norms_squared(), separation, count)
    return Sensitivity.of_squared(
        float(best), True, "Algorithm 3.2 (participations do not interact)", theorems.SCHEDULE
    )


def best_schedule(rewards: Array, separation: int, count: int) -> Array:
    """max sum_{t in pi} rewards[..., t] over at most `count` steps that are at least `separation` apart.

    A dynamic programme over suffixes, vectorised: the inner maximum of Algorithm 3.2 is a running one.

    Args:
        rewards: >= 0, shape (..., n).
        separation: >= 1.
        count: >= 0.

    Returns:
        Shape (...).
    """
    n = rewards.shape[-1]
    most = -(-n // separation)
    if count < 1:
        return np.zeros(rewards.shape[:-1])
    if count == 1 or most == 1:
        return np.asarray(rewards.max(axis=-1))
    if rewards.ndim == 1 and bool((np.diff(rewards) <= 0).all()):
        return np.asarray(rewards[::separation][:count].sum())  # early and often
    if separation == 1:
        kept = rewards if count >= n else -np.partition(-rewards, count - 1, axis=-1)[..., :count]
        return np.asarray(kept.sum(axis=-1))
    if count >= most:
        return _any_number(rewards, separation)
    return _at_most(rewards, separation, count)


def _at_most(rewards: Array, separation: int, count: int) -> Array:
    # best[t]: most reward from steps >= t with as many participations as there were rounds
    best = _running_maximum(rewards)
    for _ in range(count - 1):
        candidates = rewards.copy()
        candidates[..., :-separation] += best[..., separation:]
        better = _running_maximum(candidates)
        if np.array_equal(better, best):
            break
        best = better
    return np.asarray(best[..., 0])


def _any_number(rewards: Array, separation: int) -> Array:
    # the steps of one block of `separation` depend on later blocks only
    n = rewards.shape[-1]
    by_step = np.ascontiguousarray(np.moveaxis(rewards, -1, 0))
    best = np.zeros((n + separation, *rewards.shape[:-1]))
    for start in range((n - 1) // separation * separation, -1, -separation):
        stop = min(start + separation, n)
        candidates = by_step[start:stop] + best[start + separation : stop + separation]
        running = np.maximum.accumulate(candidates[::-1], axis=0)[::-1]
        np.maximum(running, best[stop], out=best[start:stop])
    return np.asarray(best[0])


def _running_maximum(x: Array) -> Array:
    """Maximum over this and all later entries of the last axis."""
    return np.asarray(np.maximum.accumulate(x[..., ::-1], axis=-1)[..., ::-1])
