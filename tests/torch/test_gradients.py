"""Clipping: the bound holds whatever the size of the layers."""

import torch

from anechoic.torch.sources.clipping import clipped_sums


def test_norms_of_large_layers_do_not_fall_short():
    """One example, 4e7 equal entries: a float32 sum over all of them loses two per cent of the norm."""
    sample = torch.full((1, 40_000_000), 0.37)
    (total,) = clipped_sums([sample], 1.0)
    assert 1 - 2e-5 <= total.double().norm().item() <= 1


def test_the_norm_is_over_all_parameters_together():
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(5, 3, 2, generator=generator), torch.randn(5, 4, generator=generator)]
    flat = torch.cat([s.reshape(5, -1) for s in samples], dim=1)
    factors = (0.5 / (flat.norm(dim=1) + 1e-6)).clamp(max=1)
    expected = (factors[:, None] * flat).sum(dim=0)
    found = torch.cat([part.reshape(-1) for part in clipped_sums(samples, 0.5)])
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6)


def test_examples_that_are_not_finite_count_as_zero():
    sample = torch.tensor([[3.0, 4.0], [float("nan"), 1.0], [float("inf"), 0.0], [0.3, 0.4]])
    (total,) = clipped_sums([sample], 1.0)
    torch.testing.assert_close(total, torch.tensor([0.9, 1.2]), atol=2e-5, rtol=0)
