"""The noise that ranks put together: correlated in time as planned, independent between their entries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.runs.ledger import ReleaseLedger
from anechoic.strategies import BLT, BandedToeplitz
from anechoic.torch.ranks.group import Ranks
from anechoic.torch.shared_release import SharedReleaser
from tests.torch.ranks.processes import results
from tests.torch.ranks.setting import STEPS, exact
from tests.torch.setting import NOISE_KEY

pytestmark = pytest.mark.slow
ENTRIES, FAR = 120_000, 6.0  # of a rank; standard deviations that 400 numbers do not reach
STRATEGIES = {
    "banded": BandedToeplitz(STEPS, [1.0, 0.6, 0.3]),
    "blt": BLT(STEPS, [0.4, 0.2], [0.9, 0.5]),
}


def noise_of_two_ranks(strategy, *, equal_seeds=False):
    """All noise rows, as two ranks release them on sums of zero; shape (n, 2 * ENTRIES)."""
    mech = replace(exact(), strategy=strategy)

    def work(rank):
        zeros = [torch.zeros(2 * ENTRIES, dtype=torch.int64)]
        release = SharedReleaser(mech, ReleaseLedger(STEPS), [nn.Parameter(zeros[0].float())], 1.0, Ranks())
        if equal_seeds:  # every rank draws the first entries of the row, as in the field
            place, release.offset = release.offset, 0
        stream = release.start_noise(NOISE_KEY)
        if equal_seeds:
            release.offset = place
        release.take_noise(stream, stream.init())
        rows = [release._made([zeros[0].clone()], step)[0].numpy() for step in range(STEPS)]
        return np.stack(rows) if rank == 0 else None

    return results(2, work)[0]


def farthest(rows, strategy):
    """By how many standard deviations sample covariances are off: within an entry from std^2 C^-1 C^-T, and
    between entries of the two ranks from 0."""
    inverse = np.linalg.inv(strategy.to_dense())
    planned = exact().noise_std ** 2 * inverse @ inverse.T
    spread = np.sqrt(np.outer(np.diag(planned), np.diag(planned)) + planned**2)
    within = (rows @ rows.T / rows.shape[1] - planned) / spread * np.sqrt(rows.shape[1])
    first, second = rows[:, :ENTRIES], rows[:, ENTRIES:]
    deviations = np.sqrt(np.outer(np.diag(planned), np.diag(planned)) / ENTRIES)
    between = [first @ np.roll(second, shift, 1).T / ENTRIES / deviations for shift in (0, 1, 17, 4096)]
    return np.abs(within).max(), np.abs(between).max()


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_covariance_is_the_planned_one_within_and_across_ranks(name):
    rows = noise_of_two_ranks(STRATEGIES[name]).astype(np.float64)
    assert max(farthest(rows, STRATEGIES[name])) < FAR
    halves = [
        farthest(np.roll(rows, ENTRIES, 1), STRATEGIES[name]),
        farthest(rows[:, ::-1], STRATEGIES[name]),
    ]
    assert max(map(max, halves)) < FAR


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_seeds_on_ranks_would_be_seen(name):
    rows = noise_of_two_ranks(STRATEGIES[name], equal_seeds=True).astype(np.float64)
    assert farthest(rows, STRATEGIES[name])[1] > 100
