"""Three ways to the norms of rows: the same numbers, each at the cost that is stated, the least taken."""

from fractions import Fraction
from functools import partial
from itertools import product

import pytest
import torch

from anechoic.torch.sources.ghost.cached_gradients import CachedGradients
from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance, excess, norms
from anechoic.torch.sources.ghost.norm_strategy import NormStrategy, cheapest, cost
from tests.floats import same_bits
from tests.torch.sources.ghost_setting import normal, outer_by_row

#: Rows, positions, inputs, outputs.
SHAPES = [(3, 7, 9, 11), (9, 2, 7, 5), (2, 40, 3, 5), (17, 6, 64, 1), (1, 13, 1, 64), (5, 3, 4, 4)]


def by(way, x, a):
    """The rows' gradients by one way."""
    if way is not NormStrategy.KEPT:
        return outer_by_row(x, a, MemoryAllowance(0), way)
    apart = partial(outer_by_row, x, a, MemoryAllowance(0))
    return CachedGradients(
        lambda part: (x[part], a[part]), (*x.shape, a.shape[2]), lambda m: m[0], MemoryAllowance(0), apart
    )


def factors_of(shape, dtype=torch.float32, seed=1):
    many, positions, inputs, outputs = shape
    return (
        normal(many, positions, inputs, seed=seed, dtype=dtype),
        normal(many, positions, outputs, seed=seed + 50, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_ways_give_the_norms_and_sums_of_single_rows(shape, dtype):
    x, a = factors_of(shape, dtype)
    single = torch.stack([one.double().t() @ other.double() for one, other in zip(a, x, strict=True)])
    true = single.flatten(1).norm(dim=1)
    weights = torch.linspace(0, 1, shape[0], dtype=torch.float64)
    expected = (weights.reshape(-1, 1, 1) * single).sum(0)
    for way in NormStrategy:
        part = by(way, x, a)
        assert torch.allclose(part.squared_norms().sqrt(), true, rtol=1e-3), way
        assert torch.allclose(part.weighted_sum(weights), expected, rtol=1e-5, atol=1e-5), way


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e15])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_is_never_below_that_of_what_is_kept_and_summed(shape, scale):
    """Exactly: by fractions of the numbers that the sum adds up."""
    x, a = factors_of(shape)
    part = by(NormStrategy.KEPT, x * scale, a * scale)
    found = part.squared_norms().tolist()
    for row, upper in enumerate(found):
        one = torch.zeros(shape[0], dtype=torch.float64)
        one[row] = 1.0
        summed = part.weighted_sum(one).flatten().tolist()
        exact = sum((Fraction(v) ** 2 for v in summed), Fraction(0))
        assert exact <= upper <= float(exact) * (1 + 1e-9)


@pytest.mark.parametrize("clip", [1e-6, 1.0])
def test_removing_a_row_moves_the_sum_of_what_is_kept_by_the_clip_norm_at_most(clip):
    """Also where products cancel but for a rest that float32 rounds."""
    for seed in range(10):
        x, a = factors_of((60, 6, 30, 30), seed=seed)
        x[::3, 1], a[::3, 1] = -x[::3, 0] * 1e7, a[::3, 0]
        x[::3, 0] *= 1e7
        sums = []
        for first in (0, 1):
            part = by(NormStrategy.KEPT, x[first:], a[first:])
            sums.append(part.weighted_sum((clip / norms([part])).clamp(max=1.0)))
            assert part.terms == 0
        moved = float((sums[0] - sums[1]).norm())
        assert clip * (1 - 1e-3) <= moved <= clip * (1 + excess(60, 0))


@pytest.mark.parametrize("shape", [*SHAPES, (20, 30, 16, 24)])
def test_the_numbers_of_a_row_do_not_depend_on_how_many_others_there_are(shape):
    x, a = factors_of(shape)
    whole = by(NormStrategy.KEPT, x, a)._made()
    for row in range(shape[0]):
        assert same_bits(by(NormStrategy.KEPT, x[row:], a[row:])._made(), whole[row:])
        assert same_bits(by(NormStrategy.KEPT, x[: row + 1], a[: row + 1])._made(), whole[: row + 1])


def test_the_cheapest_way_is_taken():
    """By hand at the ends, and by all three costs in between."""
    assert cheapest(4, 768, 768) is NormStrategy.PRODUCTS, "few positions: a small Gram matrix"
    assert cheapest(128, 768, 8) is NormStrategy.KEPT, "a thin matrix is far smaller than its Gram matrices"
    assert cheapest(512, 768, 768) is NormStrategy.KEPT
    without = (NormStrategy.ENTRIES, NormStrategy.PRODUCTS)
    assert cheapest(128, 768, 768, without) is NormStrategy.PRODUCTS
    assert cheapest(2048, 768, 768, without) is NormStrategy.ENTRIES
    assert cheapest(64, 768, 8, without) is NormStrategy.ENTRIES
    for sizes in product((2, 16, 64, 256, 1024), (1, 8, 256, 2304), (1, 8, 256, 2304)):
        assert all(cost(cheapest(*sizes), *sizes) <= cost(way, *sizes) for way in NormStrategy)
