"""A small private run for the tests of this room."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.torch import BatchMemoryManager, PrivacyEngine
from tests.marks import mostly_slow

NOISE_KEY = bytes(range(32))
SAMPLING_KEY = bytes(range(32, 64))
MODES = ("rows", "ghost")
#: For what a loop or a ledger does whatever the source of gradients is.
ONE_MODE = mostly_slow(MODES, quick=("rows",))
FEATURES = 6


class Augmented(Dataset):
    """Adds noise drawn from all three global generators to every example."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        import random

        jitter = torch.rand(FEATURES) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return self.x[index] + 0.1 * jitter, self.y[index]


def data(examples=40, *, seed=0, augmented=False):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, FEATURES, generator=source)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).long()
    return Augmented(x, y) if augmented else TensorDataset(x, y)


def network(*, seed=0, dropout=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(FEATURES, 5), nn.Tanh()]
        return nn.Sequential(*layers, *([nn.Dropout(dropout)] if dropout else []), nn.Linear(5, 2))


def sampling(kind, examples, batch_size, steps, groups=2):
    if kind == "fixed":
        return FixedOrder(examples, batch_size, steps=steps)
    if kind == "poisson":
        return Poisson(examples, batch_size, steps)
    return CyclicPoisson(examples, batch_size, groups, steps)


def mechanism(kind="fixed", *, examples=40, batch_size=8, steps=15, noise_std=0.5, bands=2, clip_norm=1.0):
    strategy = Identity(steps) if kind == "poisson" else BandedToeplitz(steps, 0.5 ** np.arange(bands))
    return Mechanism(strategy, sampling(kind, examples, batch_size, steps), noise_std, clip_norm)


def start(
    mode="rows",
    *,
    mech=None,
    model=None,
    dataset=None,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    shuffle=True,
    loader=None,
    keys=True,
    reduction="mean",
    engine=None,
    **options,
):
    """A run of its own; `loader` and `engine` hold options of those two, `options` those of make_private."""
    mech = mechanism() if mech is None else mech
    dataset = data(mech.sampling.examples) if dataset is None else dataset
    model = network() if model is None else model
    plain = DataLoader(dataset, batch_size=int(mech.expected_batch_size), shuffle=shuffle, **(loader or {}))
    given = {"noise_key": NOISE_KEY, "sampling_key": SAMPLING_KEY} if keys else {}
    engine = PrivacyEngine(**given, **(engine or {}))
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    made = engine.make_private(
        module=model, optimizer=optimizer(model.parameters()), criterion=criterion, data_loader=plain,
        mechanism=mech, grad_sample_mode=mode, loss_reduction=reduction, **options,
    )  # fmt: skip
    if len(made) == 4:
        criterion = made[2]
    return SimpleNamespace(
        engine=engine, model=model, module=made[0], optimizer=made[1], criterion=criterion, loader=made[-1],
        plain=plain, mechanism=mech, forward=made[0] if isinstance(made[0], nn.Module) else model,
    )  # fmt: skip


def private(engine=None, *, model=None, loader=None, optimizer=None, to_epsilon=False, **options):
    """What make_private returns for 40 examples in batches of 8, unless others are given."""
    model = network() if model is None else model
    loader = DataLoader(data(40), batch_size=8, shuffle=True) if loader is None else loader
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    engine = engine or PrivacyEngine()
    make = engine.make_private_with_epsilon if to_epsilon else engine.make_private
    return make(module=model, optimizer=optimizer, data_loader=loader, **options)


def managed(run, size):
    """The loader of a run in micro-batches, as a context."""
    return BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=size, optimizer=run.optimizer)


def backward(run, batch):
    x, y = batch
    run.criterion(run.forward(x), y).backward()


def step(run, batch):
    run.optimizer.zero_grad()
    backward(run, batch)
    return run.optimizer.step()


def train(run, steps=None):
    """Step until `steps` releases are made (all by default)."""
    steps = run.mechanism.steps if steps is None else steps
    while run.engine.releases < steps:
        for batch in run.loader:
            step(run, batch)
            if run.engine.releases == steps:
                break
    return weights(run.model)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()
