"""Integer sums of clipped contributions: exact, bounded for each row, the same in every order."""

import numpy as np
import pytest
import torch

from anechoic.torch.sources import grid_sums as grid
from anechoic.torch.sources.clipping import GridClipping
from tests.marks import each_once


def grid_sums(samples, clip_norm, bits, limits=None):
    totals = [torch.zeros(s.shape[1:], dtype=torch.int64) for s in samples]
    grid.add_on_grid(totals, samples, clip_norm, bits, limits)
    return totals


def square(sums):
    return sum(int(q) ** 2 for total in sums for q in total.flatten().tolist())


def rows(count, seed=0, shapes=((30,), (4, 5), (1,), ()), scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(count, *shape, generator=generator, dtype=dtype) for shape in shapes]


def without(samples, row):
    return [torch.cat([s[:row], s[row + 1 :]]) for s in samples]


def moved(samples, norm, bits, row, limits=None):
    """By what removing a row moves the sums."""
    rest = None if limits is None else np.delete(limits, row)
    pairs = zip(
        grid_sums(samples, norm, bits, limits),
        grid_sums(without(samples, row), norm, bits, rest),
        strict=True,
    )
    return [a - b for a, b in pairs]


@pytest.mark.parametrize(
    ("scale", "bits"), each_once([1e-36, 1e-20, 1e-3, 1.0, 1e6, 1e36], [4, 15, 22, 25, 30])
)
def test_the_sum_is_that_of_the_rows_alone(bits, scale):
    samples = rows(70, scale=scale)
    norm = 3.0 * scale
    alone = [
        sum(parts)
        for parts in zip(
            *(grid_sums([s[i : i + 1] for s in samples], norm, bits) for i in range(70)), strict=True
        )
    ]
    found = grid_sums(samples, norm, bits)
    assert all(torch.equal(a, b) and a.dtype == torch.int64 for a, b in zip(found, alone, strict=True))
    assert all(a.shape == s.shape[1:] for a, s in zip(found, samples, strict=True))


def test_order_threads_and_micro_batches_leave_no_trace():
    samples, before = rows(200, shapes=((9000,), (3, 7))), torch.get_num_threads()
    expected = grid_sums(samples, 1.0, 24)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    found = [grid_sums([s[order] for s in samples], 1.0, 24)]
    chunks = [grid_sums([s[i : i + 37] for s in samples], 1.0, 24) for i in range(0, 200, 37)]
    found.append([sum(parts) for parts in zip(*chunks, strict=True)])
    try:
        torch.set_num_threads(3)
        found.append(grid_sums(samples, 1.0, 24))
    finally:
        torch.set_num_threads(before)
    for sums in found:
        assert all(torch.equal(a, b) for a, b in zip(sums, expected, strict=True))


def test_limits_and_rows_that_do_not_count():
    samples = rows(6, scale=100.0)
    samples[0][1, 3] = float("nan")
    samples[1][2] = float("inf")
    samples[0][3] = samples[1][3] = samples[2][3] = samples[3][3] = 0.0
    limits = np.array([1.0, 1.0, 1.0, 1.0, 0.25, 0.0])
    for row, part in enumerate([1.0, 0.0, 0.0, 0.0, 0.25, 0.0]):
        found = square(moved(samples, 1.0, 20, row, limits)) ** 0.5 / 2**20
        assert part * 0.999 <= found <= part


def test_an_empty_batch_is_zero():
    assert all(not t.any() and t.dtype == torch.int64 for t in grid_sums(rows(0), 1.0, 20))
    assert grid_sums([], 1.0, 20) == []
    parameters = [torch.nn.Parameter(torch.ones(2, 3))]
    assert GridClipping(1.0, 20).nothing(parameters)[0].shape == (2, 3)


def test_float64_models():
    found = grid_sums(rows(5, scale=9.0, dtype=torch.float64), 1.0, 28)
    assert 0.99 < square(grid_sums(rows(1, scale=9.0, dtype=torch.float64), 1.0, 28)) / 4**28 < 1
    assert found[0].dtype == torch.int64


@pytest.mark.parametrize("shapes", [[(1,)], [(511,)], [(5000,), (3,)], [(512,), (513,)]])
@pytest.mark.parametrize("scale", [1e-12, 3e4])
def test_rows_at_the_bound_are_never_longer(shapes, scale):
    """Equal entries round alike, so that errors add up; in the worst case by far less than the margin."""
    norm = scale / 7
    for value in (1.0, 1 + 2.0**-23, 1 - 2.0**-24, 1.5, np.float32(1 / 3)):
        samples = [torch.full((3, *shape), scale * value) for shape in shapes]
        for bits in (8, 25, 30):
            alone = square(moved(samples, norm, bits, 1)) ** 0.5 / 2.0**bits
            assert 1 - 2 * grid.MARGIN - sum(s[0].numel() for s in samples) ** 0.5 / 2.0**bits <= alone < 1


def test_a_margin_below_zero_is_seen(monkeypatch):
    monkeypatch.setattr(grid, "MARGIN", -0.01)
    assert square(moved(rows(40), 0.1, 24, 0)) > 4**24
