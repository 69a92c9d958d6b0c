"""Rows that are too large for a piece, in blocks: they are those of single rows, in bounded memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anechoic.torch.sources.ghost import blocks, factored_gradients
from tests.torch.sources.ghost_setting import normal, outer_by_row


@pytest.fixture
def small(monkeypatch):
    """Every row is too large, and every block is smaller than it."""
    monkeypatch.setattr(factored_gradients, "PIECE", 8)
    monkeypatch.setattr(blocks, "BLOCK", 8 * 30)
    monkeypatch.setattr(blocks, "SIDE", 3)


#: Rows, positions, inputs, outputs: by products where positions are few, else by entries.
SHAPES = [
    (3, 2, 7, 5),
    (3, 7, 9, 11),
    (2, 40, 3, 5),
    (4, 13, 64, 1),
    (1, 13, 1, 64),
    (0, 5, 3, 4),
    (2, 7, 1, 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_sums_in_blocks_are_those_of_the_gradients(shape, dtype, small):
    many, positions, inputs, outputs = shape
    x, a = normal(many, positions, inputs, dtype=dtype), normal(many, positions, outputs, seed=2, dtype=dtype)
    part = outer_by_row(x, a)
    assert part._in_blocks
    gradients = a.double().transpose(1, 2) @ x.double()
    true = gradients.flatten(1).norm(dim=1)
    found = part.squared_norms().sqrt()
    assert bool((found >= true * (1 - 1e-14)).all()), "a norm fell short"
    assert torch.allclose(found, true, rtol=1e-3)
    factors = torch.arange(1.0, many + 1, dtype=torch.float64)
    expected = (factors.reshape(-1, 1, 1) * gradients).sum(0)
    assert torch.allclose(part.weighted_sum(factors), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", [3, 300])
def test_what_cancels_in_a_row_never_makes_its_norm_fall_short(outputs, small):
    """Huge positions that cancel but for a small rest, which is far below the rounding of their products."""
    x, a = torch.zeros(1, 4, 3), torch.zeros(1, 4, outputs)
    x[0, :, 0] = torch.tensor([1e9, -1e9, 1.0, 0.0])
    x[0, 1, 1] = 600.0
    a[0, :, 0] = 1.0
    part = outer_by_row(x, a)
    true = (a.double().transpose(1, 2) @ x.double()).flatten(1).norm(dim=1)
    assert bool((part.squared_norms().sqrt() >= true).all())


class Peak(TorchDispatchMode):
    """The largest tensor that an operation made, in bytes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().nbytes() > Peak.largest:
            given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
            if made.untyped_storage().data_ptr() not in given:
                Peak.largest = made.untyped_storage().nbytes()
        return made


@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(900, 40, 5), (30, 40, 900), (100, 200, 300)])
def test_no_block_takes_more_than_was_stated(positions, inputs, outputs, monkeypatch):
    monkeypatch.setattr(factored_gradients, "PIECE", 2**13)
    monkeypatch.setattr(blocks, "BLOCK", 2**13)
    monkeypatch.setattr(blocks, "SIDE", 8)
    x, a = normal(2, positions, inputs), normal(2, positions, outputs, seed=2)
    part = outer_by_row(x, a)
    assert part._in_blocks
    Peak.largest = 0
    with Peak():
        part.squared_norms()
    assert 0 < Peak.largest <= 2**13
