"""Exact deltas of a uniform mixture of Gaussians with few components, by integration on a lattice."""

import math

import numpy as np


def verify(pair, epsilon, std, *, samples, failure, seed=0):
    """(mean, upper bound) of delta(epsilon) of a pair by sampling."""
    return pair._profile(epsilon, std, samples, seed).at(epsilon, failure)


def exact_deltas(gram, std, epsilons, points=None):
    """[(remove, add)] at each epsilon, for a Gram matrix of rank at most 3."""
    values, vectors = np.linalg.eigh(np.asarray(gram, dtype=float))
    kept = values > 1e-12 * values[-1]
    factor = vectors[:, kept] * np.sqrt(values[kept]) / std  # G / s^2 = F F^T
    dims = factor.shape[1]
    points = points or {1: 4001, 2: 1001, 3: 161}[dims]
    # wide enough for Q and for the shifted components, whose means are the rows of F
    axes = [np.linspace(-8.5 + min(0.0, c.min()), 8.5 + max(0.0, c.max()), points) for c in factor.T]
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    own = (factor**2).sum(axis=1) / 2
    totals = np.zeros((len(epsilons), 2))
    for first in axes[0]:  # one slice at a time
        rest = np.meshgrid(*axes[1:], indexing="ij") if dims > 1 else []
        z = np.stack([np.full(rest[0].shape, first) if rest else np.array(first), *rest], axis=-1)
        density = np.exp(-(z**2).sum(axis=-1) / 2) / (2 * math.pi) ** (dims / 2)
        ratio = np.exp(z @ factor.T - own).mean(axis=-1)
        for row, epsilon in enumerate(epsilons):
            totals[row, 0] += (density * np.maximum(ratio - math.exp(epsilon), 0)).sum()
            totals[row, 1] += (density * np.maximum(1 - math.exp(epsilon) * ratio, 0)).sum()
    return [tuple(row) for row in (totals * cell).tolist()]


def random_gram(bins, rank, seed):
    """Of means with entries >= 0."""
    means = np.abs(np.random.default_rng(seed).standard_normal((rank, bins)))
    return means.T @ means
