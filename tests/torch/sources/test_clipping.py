"""Clipping: the bound holds whatever the size of the layers, the clip norm and the numbers."""

import pytest
import torch

from anechoic.noise.grid import float_excess
from anechoic.torch.sources.clipping import Clipping, rounded_down
from tests.floats import same_bits
from tests.marks import in_turn

CLIPS = (1e-300, 1e-30, 1e-12, 1e-8, 1.0, 1e6, 1e12, 1e20)
SCALES = (1e-25, 1e-13, 1e-6, 1.0, 1e7, 1e19, 1e30)


def norm(parts):
    return float(torch.cat([part.double().reshape(-1) for part in parts]).norm())


@pytest.mark.slow
def test_norms_of_large_layers_do_not_fall_short():
    """One example, 4e7 equal entries: a float32 sum over all of them loses two per cent of the norm."""
    sample = torch.full((1, 40_000_000), 0.37)
    (total,) = Clipping(1.0).sums([sample])
    assert 1 - 2e-5 <= total.double().norm().item() <= 1


@in_turn("dtype", [torch.float32, torch.float64])
@in_turn("clip", CLIPS)
def test_one_contribution_never_exceeds_the_clip_norm(clip, dtype):
    generator = torch.Generator().manual_seed(0)
    for scale in SCALES:
        samples = [
            (torch.randn(1, *shape, generator=generator) * scale).to(dtype) for shape in ((3, 300), (7,))
        ]
        found, given = norm(Clipping(clip).sums(samples)), norm(samples)
        assert found <= clip * (1 + 1e-15)
        if clip / given > 1e-35:  # else the factor is no float32
            assert found >= min(clip, given) * (1 - 5e-5)


@pytest.mark.parametrize("clip", [1e-12, 1e-8, 1e-6, 1.0, 1e12])
def test_a_signal_below_the_clip_norm_stays_as_it_is(clip):
    """min(1, C / norm), without a constant that would erase gradients below it."""
    sample = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)) * clip / 100
    (total,) = Clipping(clip).sums([sample])
    torch.testing.assert_close(total, sample.sum(0), rtol=1e-5, atol=1e-6 * clip)
    (total,) = Clipping(clip).sums([1e4 * sample])
    expected = (clip * sample / sample.norm(dim=1, keepdim=True)).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6 * clip)


def test_squares_that_overflow_do_not_count_as_zero():
    sample = torch.tensor([[3e25, 4e25], [0.3, 0.4]])
    (total,) = Clipping(1.0).sums([sample])
    torch.testing.assert_close(total, torch.tensor([0.9, 1.2]), atol=2e-5, rtol=0)


def test_factors_are_rounded_towards_zero():
    factors = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (rounded_down(factors, torch.float32).double() <= factors).all()
    assert (factors.float().double() > factors).any()


def test_the_bound_on_rounding_holds():
    samples = [torch.randn(300, 50, generator=torch.Generator().manual_seed(0))]
    clipping = Clipping(0.1)
    found = clipping.sums(samples)[0].double()
    wide = clipping.sums([samples[0].double()])[0]
    assert 0 < (found - wide).norm() <= 0.1 * float_excess(300)


def test_products_keep_full_precision_where_training_does_not():
    samples = [torch.randn(64, 300, generator=torch.Generator().manual_seed(0))]
    expected = Clipping(1.0).sums(samples)[0]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(Clipping(1.0).sums(samples)[0], expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("value", [3e38, float("inf"), float("nan"), 1e-42])
def test_one_row_changes_no_bit_of_the_norms_of_others(value):
    flat = torch.randn(9, 700, generator=torch.Generator().manual_seed(0))
    expected = Clipping(1.0).norms([flat])
    flat[4] = value
    found = Clipping(1.0).norms([flat])
    others = torch.arange(9) != 4
    assert same_bits(found[others], expected[others])
