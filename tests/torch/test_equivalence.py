"""What a step computes: Opacus's clipped sum, plus the mechanism's noise row, over the constant divisor."""

import numpy as np
import pytest
import torch
from opacus.grad_sample import prepare_module
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.sampling import CyclicPoisson, FixedOrder
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Identity
from anechoic.torch import PrivacyEngine
from tests.marks import each_once
from tests.torch.setting import (
    MODES,
    NOISE_KEY,
    managed,
    mechanism,
    network,
    private,
    start,
    step,
    train,
    weights,
)


def opacus_run(mode, model, batches, *, clip_norm, divisor, reduction, optimizer):
    """The same batches through Opacus's own optimizer, without noise."""
    options = {"loss_reduction": reduction} | ({"max_grad_norm": clip_norm} if mode == "ghost" else {})
    module = prepare_module(model, mode, **options)
    private = (DPOptimizerFastGradientClipping if mode == "ghost" else DPOptimizer)(
        optimizer(model.parameters()), noise_multiplier=0.0, max_grad_norm=clip_norm,
        expected_batch_size=divisor, loss_reduction=reduction,
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    if mode == "ghost":
        criterion = DPLossFastGradientClipping(module, private, criterion, reduction)
    for x, y in batches:
        private.zero_grad()
        criterion(module(x), y).backward()
        private.step()
    return weights(model)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


@pytest.mark.parametrize(
    ("mode", "reduction", "optimizer"), each_once(MODES, ["mean", "sum"], [adam, momentum])
)
@pytest.mark.few(1)
def test_without_noise_a_step_is_that_of_opacus(mode, reduction, optimizer):
    mech = mechanism("cyclic", noise_std=1e-12, clip_norm=0.3, steps=6)
    batches = []
    run = start(mode, mech=mech, reduction=reduction, optimizer=optimizer)
    for _ in range(2):
        for batch in run.loader:
            batches.append(batch)
            step(run, batch)
    assert len({len(x) for x, _ in batches}) > 1  # random sizes, one divisor
    expected = opacus_run(
        "hooks" if mode == "rows" else mode, network(), batches, clip_norm=0.3, divisor=8,
        reduction=reduction, optimizer=optimizer,
    )  # fmt: skip
    assert torch.allclose(weights(run.model), expected, atol=2e-6)
    assert not torch.allclose(weights(run.model), weights(network()), atol=1e-3)


@pytest.mark.parametrize(("mode", "kind", "size"), each_once(MODES, ["fixed", "cyclic"], [3, 5, 8, 100]))
@pytest.mark.slow
def test_micro_batches_give_the_same_run(mode, kind, size):
    mech = mechanism(kind, steps=7)
    run, whole = start(mode, mech=mech, optimizer=momentum), start(mode, mech=mech, optimizer=momentum)
    sizes, updates = [], 0
    while run.engine.releases < mech.steps:
        with managed(run, size) as batches:
            for batch in batches:
                sizes.append(len(batch[0]))
                before = weights(run.model)
                assert step(run, batch) is None
                updates += not torch.equal(before, weights(run.model))
    assert max(sizes) <= size
    assert updates == mech.steps
    assert torch.allclose(weights(run.model), train(whole), atol=1e-6)


# The noise as it reaches the parameters.

STRATEGIES = {
    "identity": Identity(60),
    "banded": BandedToeplitz(60, [1.0, 0.6, 0.3, 0.15]),
    "normalised": ColumnNormalized(BandedToeplitz(60, [1.0, 0.6, 0.3, 0.15])),
    "blt": BLT(60, scale=[0.2, 0.15], decay=[0.9, 0.5]),
}


class Silent(nn.Module):
    """A loss whose gradient is zero: what moves the parameters is noise alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(30, 20)
        self.scale = nn.Linear(20, 1)

    def forward(self, x):
        return 0.0 * self.scale(self.layer(x)).squeeze(-1)


def noise_of(strategy, mode, kind, *, learning_rate=0.5, std=0.7, clip_norm=2.0):
    """Rows of noise in sum units, recovered from the parameters' path, shape (n, m)."""
    n = strategy.n
    scheme = CyclicPoisson(40, 2, 4, n) if kind == "cyclic" else FixedOrder(40, 8, steps=n)
    mech = Mechanism(strategy, scheme, std, clip_norm)
    model = Silent()
    dataset = torch.utils.data.TensorDataset(torch.randn(40, 30))
    made = private(
        engine := PrivacyEngine(noise_key=NOISE_KEY, sampling_key=bytes(32)), model=model, mechanism=mech,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate), criterion=nn.MSELoss(),
        loader=torch.utils.data.DataLoader(dataset, batch_size=mech.expected_batch_size),
        grad_sample_mode=mode,
    )  # fmt: skip
    module, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else nn.MSELoss()
    path = [weights(model).double()]
    while engine.releases < n:
        for (x,) in loader:
            optimizer.zero_grad()
            if len(x):
                criterion(module(x), torch.zeros(len(x))).backward()
            optimizer.step()
            path.append(weights(model).double())
    steps = -np.diff(torch.stack(path).numpy(), axis=0) / learning_rate
    return steps * mech.expected_batch_size / (std * clip_norm)


@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [
        ("identity", "rows", "fixed"),
        ("banded", "ghost", "cyclic"),
        ("normalised", "rows", "cyclic"),
        ("blt", "ghost", "fixed"),
    ],
)
@pytest.mark.slow
def test_the_noise_of_a_run_is_the_row_of_its_stream(name, mode, kind):
    strategy = STRATEGIES[name]
    rows = noise_of(strategy, mode, kind)
    stream = NoiseStream(strategy, 641, key=NOISE_KEY, backend="torch")
    state = stream.init()
    for row in rows:
        expected, state = stream.next(state)
        assert np.allclose(row, expected.numpy(), atol=2e-5)
