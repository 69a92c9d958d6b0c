"""A release is (sum + noise) / divisor, number by number, in whatever pieces it is made."""

import pytest
import torch
from torch import nn

from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.ledger import ReleaseLedger
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import noise_adder
from anechoic.torch.noise_adder import NoiseAdder
from tests.floats import same_bits

KEY = bytes(32)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: dtypes of the parameters and of their sums.
KINDS = {
    "wider sums": ([torch.float32, torch.float32], [torch.float64, torch.float64]),
    "sums as wide": ([torch.float32, torch.float32], [torch.float32, torch.float32]),
    "wider noise": ([torch.float32, torch.float64], [torch.float32, torch.float64]),
    "narrow parameters": ([torch.bfloat16, torch.float32], [torch.float64, torch.float64]),
    "a grid": ([torch.float32, torch.float32], [torch.int64, torch.int64]),
}
SHAPES = [(5, 9), (7,)]


def parts(kind):
    """A releaser whose noise is about to be drawn, and sums."""
    kinds, wide = KINDS[kind]
    grid = {"grid_bits": 16} if kind == "a grid" else {}
    mechanism = Mechanism(Identity(2), FixedOrder(4, 2, 1), 1.0, clip_norm=1.0, **grid)
    parameters = [nn.Parameter(torch.zeros(s, dtype=d)) for s, d in zip(SHAPES, kinds, strict=True)]
    release = NoiseAdder(mechanism, ReleaseLedger(2), parameters, divisor=3.0)
    stream = release.start_noise(KEY)
    release.take_noise(stream, stream.init())
    size = 100 if grid else 1
    sums = [(size * drawn(*shape)).to(dtype) for shape, dtype in zip(SHAPES, wide, strict=True)]
    return release, sums


def made(release, sums):
    """Release 0, by what it is."""
    release.ledger.check_releasing = lambda: None
    return release.noisy_gradients(0, [total.clone(memory_format=torch.preserve_format) for total in sums])


def by_hand(release, sums, kinds):
    """The same on whole tensors: added in the sum's type, scaled, and narrowed."""
    stream = release.start_noise(KEY)
    row, _ = stream.next(stream.init())
    found = []
    for total, noise, dtype in zip(sums, row.split([total.numel() for total in sums]), kinds, strict=True):
        noisy = (total + noise.view(total.shape)).to(total.dtype)
        scaled = noisy / 3.0 if release._unit is None else noisy.double() * release._unit
        found.append(scaled.to(dtype))
    return found


@pytest.mark.parametrize("piece", [1, 7, 2**16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_the_noisy_sum_over_the_divisor_in_any_pieces(kind, piece, monkeypatch):
    monkeypatch.setattr(noise_adder, "PIECE", piece)
    release, sums = parts(kind)
    expected = by_hand(release, sums, KINDS[kind][0])
    found = made(release, sums)
    assert [part.dtype for part in found] == KINDS[kind][0]
    assert all(same_bits(a.double(), b.double()) for a, b in zip(found, expected, strict=True))
    assert any(bool((part != 0).any()) for part in found)


def test_sums_in_another_order_in_memory_keep_it():
    release, sums = parts("wider sums")
    expected = made(release, sums)
    release, sums = parts("wider sums")
    sums[0] = sums[0].t().contiguous().t()
    found = made(release, sums)
    assert not found[0].is_contiguous() and all(
        same_bits(*pair) for pair in zip(found, expected, strict=True)
    )
