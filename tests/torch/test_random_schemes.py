"""The engine under balls in bins, random allocation and min-sep sampling."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.accounting import Verified
from anechoic.batches.base import batches_of
from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import BallsInBins, MinSepSampling, RandomAllocation
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.torch import PrivacyEngine

NOISE_KEY, SAMPLING_KEY = bytes(range(32)), bytes(range(32, 64))
BANDED = BandedToeplitz(14, [1.0, 0.5])
MECHANISMS = [
    Mechanism(BANDED, BallsInBins(40, 5, 14), 0.5),
    Mechanism(Identity(14), RandomAllocation(40, 5, 14), 0.5),
    Mechanism(BANDED, MinSepSampling(40, 8, 3, 14), 0.5, accounting=Verified(samples=1000, seed=0)),
]


def private(mechanism, *, batch_size=8, **options):
    index = torch.arange(40)
    data = TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), index % 2, index)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(noise_key=NOISE_KEY, sampling_key=SAMPLING_KEY)
    return engine, *engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=batch_size, shuffle=True),
        mechanism=mechanism,
        **options,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m.sampling).__name__)
@pytest.mark.slow
def test_the_engine_samples_as_the_mechanism_says(mechanism):
    engine, model, optimizer, loader = private(mechanism)
    expected, seen = batches_of(mechanism.sampling, SAMPLING_KEY), []
    while len(seen) < 14:
        for x, y, index in loader:
            optimizer.zero_grad()
            if len(x):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            seen.append(index.numpy())
    for t, batch in enumerate(seen):
        np.testing.assert_array_equal(batch, expected.batch(t))
    assert engine.get_epsilon(1e-6) == pytest.approx(mechanism.epsilon(1e-6), rel=1e-9)
    assert optimizer.expected_batch_size == mechanism.expected_batch_size


@pytest.mark.parametrize("mechanism", MECHANISMS[:2], ids=lambda m: type(m.sampling).__name__)
def test_other_loaders_are_refused(mechanism):
    with pytest.raises(MismatchError, match="10 batches a pass, the mechanism 5"):
        private(mechanism, batch_size=4)
    with pytest.raises(MismatchError, match="poisson_sampling=False"):
        private(mechanism, poisson_sampling=False)
