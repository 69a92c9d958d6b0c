"""Batches of one size: rows that fill them up add nothing, whatever is in them."""

import pytest
import torch
from torch.utils.data import TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.torch import BatchMemoryManager
from anechoic.torch.loading.loader import padded
from tests.floats import same_bits
from tests.marks import slow
from tests.torch.setting import NOISE_KEY, data, start, step

STEPS, EXAMPLES, SIZE = 6, 40, 21


def mechanism(*, cut=True, size=SIZE, batch=8, kind="poisson", bits=None):
    scheme = Poisson(EXAMPLES, batch, STEPS)
    strategy = Identity(STEPS)
    if kind == "cyclic":
        scheme, strategy = CyclicPoisson(EXAMPLES, batch, 2, STEPS), BandedToeplitz(STEPS, [1.0, 0.5])
    return Mechanism(strategy, scheme.at_most(size) if cut else scheme, 0.5, grid_bits=bits)


def releases(mode, mech, dataset=None, *, most=None):
    """What every step released, and the delivered sizes."""
    run = start(mode, mech=mech, dataset=dataset, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    found, sizes = [], []

    def loop(loader):
        for x, y in loader:
            before = run.optimizer.ledger.releases
            sizes.append(len(x))
            step(run, (x, y))
            if run.optimizer.ledger.releases > before:
                found.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]).clone())

    while run.optimizer.ledger.releases < STEPS:
        if most is None:
            loop(run.loader)
            continue
        with BatchMemoryManager(
            data_loader=run.loader, max_physical_batch_size=most, optimizer=run.optimizer
        ) as parts:
            loop(parts)
    return found, sizes


@pytest.mark.parametrize("mode", ["rows", *slow("ghost", "vmap_loss")])
@pytest.mark.parametrize("kind", ["poisson", *slow("cyclic")])
@pytest.mark.slow
def test_every_batch_has_the_size_and_releases_are_those_without_padding(mode, kind):
    found, sizes = releases(mode, mechanism(kind=kind))
    assert sizes == [SIZE] * STEPS
    plain, others = releases(mode, mechanism(kind=kind, cut=False))
    assert max(others) < SIZE and len(set(others)) > 1
    for a, b in zip(found, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("worse", [float("nan"), *slow(1e30, -7.0)])
@pytest.mark.parametrize("mode", ["rows", *slow("ghost", "vmap_loss")])
def test_what_the_padding_holds_changes_nothing(mode, worse):
    """Example 0 fills batches up: where it is not drawn itself, no bit depends on it."""
    bits = 20 if mode != "ghost" else None
    whole = data(EXAMPLES)
    x, y = (t.clone() for t in whole.tensors)
    x[0] = worse
    mech = mechanism(bits=bits)
    run = start(mode, mech=mech)
    drawn = [run.loader.feed.batches.batch(t) for t in range(STEPS)]
    found, _ = releases(mode, mech, whole)
    others, _ = releases(mode, mech, TensorDataset(x, y))
    absent = [t for t in range(STEPS) if 0 not in drawn[t]]
    assert absent
    assert all(same_bits(found[t].numpy(), others[t].numpy()) for t in absent)


@pytest.mark.parametrize("mode", ["rows", *slow("ghost", "vmap_loss")])
def test_a_batch_of_padding_alone_is_noise_alone(mode):
    mech = mechanism(batch=1, size=5)
    run = start(mode, mech=mech)
    empty = [t for t in range(STEPS) if not len(run.loader.feed.batches.batch(t))]
    assert empty
    found, sizes = releases(mode, mech)
    assert sizes == [5] * STEPS
    stream = run.optimizer.release.start_noise(NOISE_KEY)
    row, state = None, stream.init()
    for t, release in enumerate(found):
        row, state = stream.next(state, out=row)
        assert torch.allclose(release, row, rtol=1e-6) == (t in empty)


def test_micro_batches_are_padded_at_the_end():
    assert padded([5, 6, 7], 7, None) == ([[5, 6, 7, 0, 0, 0, 0]], [4])
    assert padded([5, 6, 7, 8], 7, 3) == ([[5, 6, 7], [8, 0], [0, 0]], [0, 1, 2])
    assert padded([], 4, 2) == ([[0, 0], [0, 0]], [2, 2])
    assert padded([5, 6, 7], None, 2) == ([[5, 6], [7]], [0, 0])
    whole, sizes = releases("rows", mechanism(bits=20))
    parts, smaller = releases("rows", mechanism(bits=20), most=7)
    assert set(smaller) == {7} and len(smaller) == 3 * STEPS and set(sizes) == {SIZE}
    for a, b in zip(whole, parts, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
