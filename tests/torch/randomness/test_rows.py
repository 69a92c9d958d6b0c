"""Draws row by row: what a row draws among others is what it draws alone, by the law that was asked for."""

import pytest
import torch
import torch.nn.functional as F

from anechoic.errors import UnsupportedError
from anechoic.torch.randomness.rows import RowRandomness

SEEDS, WIDTH = [11, 12, 13], 40_000
DRAWS = {
    "rand": (lambda *rows: torch.rand(*rows, WIDTH), 1 / 2, 1 / 12),
    "rand_like": (lambda *rows: torch.rand_like(torch.ones(*rows, WIDTH)), 1 / 2, 1 / 12),
    "randn": (lambda *rows: torch.randn(*rows, WIDTH), 0, 1),
    "randn, double": (lambda *rows: torch.randn(*rows, WIDTH, dtype=torch.float64), 0, 1),
    "randint": (lambda *rows: torch.randint(3, 9, (*rows, WIDTH)), 5.5, 35 / 12),
    "randint_like": (lambda *rows: torch.randint_like(torch.ones(*rows, WIDTH), 6), 2.5, 35 / 12),
    "uniform_": (lambda *rows: torch.empty(*rows, WIDTH).uniform_(-1, 3), 1, 16 / 12),
    "normal_": (lambda *rows: torch.empty(*rows, WIDTH).normal_(2, 3), 2, 9),
    "random_": (lambda *rows: torch.empty(*rows, WIDTH, dtype=torch.uint8).random_(), 127.5, 65535 / 12),
    "random_ to": (lambda *rows: torch.empty(*rows, WIDTH, dtype=torch.int64).random_(6), 2.5, 35 / 12),
    "bernoulli": (lambda *rows: torch.bernoulli(torch.full((*rows, WIDTH), 0.2)), 0.2, 0.16),
    "bernoulli_": (lambda *rows: torch.empty(*rows, WIDTH).bernoulli_(0.2), 0.2, 0.16),
    "bernoulli_, bool": (
        lambda *rows: torch.empty(*rows, WIDTH, dtype=torch.bool).bernoulli_(0.2),
        0.2,
        0.16,
    ),
    "dropout": (lambda *rows: F.dropout(torch.ones(*rows, WIDTH), 0.2), 1, 0.25),
    "exponential_": (lambda *rows: torch.empty(*rows, WIDTH).exponential_(2.0), 1 / 2, 1 / 4),
    "geometric_": (lambda *rows: torch.empty(*rows, WIDTH).geometric_(0.5), 2, 2),
    "log_normal_": (lambda *rows: torch.empty(*rows, WIDTH).log_normal_(0.0, 0.5).log(), 0, 1 / 4),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_row_draws_alone_what_it_draws_among_others(name):
    draw, mean, variance = DRAWS[name]
    with RowRandomness(SEEDS, stacked=True):
        whole = draw(len(SEEDS))
    for row, seed in zip(whole, SEEDS, strict=True):
        with RowRandomness([seed], stacked=False):
            alone = draw()
        assert torch.equal(alone, row) and alone.dtype == draw().dtype
    assert not torch.equal(whole[0], whole[1])
    values = whole.double()
    assert abs(float(values.mean()) - mean) < 5 * (variance / values.numel()) ** 0.5
    assert float(values.var()) == pytest.approx(variance, rel=0.05)


def test_what_is_not_known_row_by_row_is_refused():
    with RowRandomness(SEEDS, stacked=True):
        with pytest.raises(UnsupportedError, match="not known row by row"):
            torch.randperm(4)
        with pytest.raises(UnsupportedError, match="do not belong to 3 rows"):
            torch.rand(4)
        assert torch.equal(F.dropout(torch.ones(4), 0.5, training=False), torch.ones(4))
