"""Runs over units for the tests of this room."""

import numpy as np
import torch
from torch import nn

from anechoic.accounting import Verified
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.strategies import BandedToeplitz, Identity
from tests.torch.setting import data, network, start

EXAMPLES = 40
IDS = np.arange(EXAMPLES) % 11  # eleven users of three or four examples
CLIP, LR, TINY = 0.8, 0.3, 1e-12  # some units are clipped, some are not


def scheme(name, count, steps):
    """`count` is a multiple of 3 where the scheme has bins or periods."""
    size = max(1, count // 3)
    return {
        "fixed": FixedOrder(count, size, steps=steps),
        "poisson": Poisson(count, size, steps),
        "cyclic": CyclicPoisson(count, size, 2, steps),
        "bins": BallsInBins(count, count // size, steps),
        "allocation": RandomAllocation(count, count // size, steps),
        "fixed_size": FixedSize(count, max(1, count // 2), steps),
        "min_sep": MinSepSampling(count, size, 2, steps),
    }[name]


SCHEMES = ("fixed", "poisson", "cyclic", "bins", "allocation", "fixed_size", "min_sep")


def unit_mechanism(sampling, *, noise_std=TINY, unit="user", clip_norm=CLIP):
    independent = isinstance(sampling, (Poisson, FixedSize, RandomAllocation, BallsInBins))
    n = sampling.steps
    strategy = Identity(n) if independent or n == 1 else BandedToeplitz(n, [1.0, 0.5])
    how = Verified(samples=100_000) if isinstance(sampling, MinSepSampling) else "deterministic"
    return Mechanism(strategy, sampling, noise_std, clip_norm, unit=unit, accounting=how)


def unit_run(mode="rows", *, ids, sampling, unit="user", noise_std=TINY, model=None, dataset=None, **options):
    return start(
        mode, mech=unit_mechanism(sampling, unit=unit, noise_std=noise_std), model=model,
        dataset=data(EXAMPLES) if dataset is None else dataset, unit_ids=ids,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR), **options,
    )  # fmt: skip


def gradient(model, x, y):
    """Gradient of one example's loss, as one vector."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double()


def clipped(vector, limit):
    return vector * min(1.0, limit / float(vector.norm()))


def network_of(module):
    """The weights of a private module in a plain network, without its hooks."""
    plain = network()
    plain.load_state_dict(module._module.state_dict())
    return plain
