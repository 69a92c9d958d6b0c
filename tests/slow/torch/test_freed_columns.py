"""A private run whose plan frees columns: a cosine over ten passes in a fixed order."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.utils.data import DataLoader

from anechoic.noise import NoiseStream
from anechoic.participation import Cyclic
from anechoic.strategies import Banded
from anechoic.torch import PrivacyEngine
from tests.torch.setting import NOISE_KEY, SAMPLING_KEY, data, network

EXAMPLES, BATCH, PASSES, EPSILON, CLIP = 64, 8, 10, 2.0, 0.7


def begun(**keys):
    """A run, the engine, its loader, and a function that steps and gives the release and its exact sums."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EXAMPLES // BATCH * PASSES)
    engine = PrivacyEngine(**keys)
    module, private, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        scheduler=schedule,
        data_loader=DataLoader(data(EXAMPLES), batch_size=BATCH),
        target_epsilon=EPSILON,
        target_delta=1e-3,
        epochs=PASSES,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode="rows",
    )

    def step(x, y):
        private.zero_grad()
        sums = clipped_sum(model, x, y)
        nn.functional.cross_entropy(module(x), y).backward()
        private.step()
        schedule.step()
        return flat(p.grad for p in model.parameters()) * BATCH, sums

    return SimpleNamespace(engine=engine, loader=loader, step=step, schedule=schedule, model=model)


def trained(run, stop=80):
    found, batches = [], []
    while run.engine.releases < stop:
        for x, y in run.loader:
            found.append(run.step(x, y))
            batches.append(x)
            if run.engine.releases == stop:
                break
    return found, batches


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).double().numpy()


def clipped_sum(model, x, y):
    """By a loop over examples."""
    total = 0.0
    for one, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(one[None]), label[None])
        gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
        total = total + gradient * min(1.0, CLIP / np.linalg.norm(gradient))
    return total


@pytest.mark.slow
def test_releases_are_exact_sums_and_the_noise_of_the_plan():
    run = begun(noise_key=NOISE_KEY, sampling_key=SAMPLING_KEY)
    found, batches = trained(run)
    mechanism = run.engine.mechanism
    assert isinstance(mechanism.strategy, Banded) and mechanism.participation == Cyclic(8)
    assert len(found) == mechanism.steps == 80
    assert all(torch.equal(batches[t], batches[t + 8]) for t in range(72))  # one order for the whole run
    released, sums = map(np.array, zip(*found, strict=True))
    std = CLIP * mechanism.noise_std
    stream = NoiseStream(mechanism.strategy, released.shape[1], std=std, key=NOISE_KEY)
    state, rows = stream.init(), []
    for _ in range(80):
        row, state = stream.next(state)
        rows.append(row)
    # sums are clipped and rounded to the grid of the noise
    np.testing.assert_allclose(released - sums, np.array(rows), rtol=1e-4, atol=1e-3 * CLIP)
    # what it states, from the matrix alone: what one example adds to all its steps, over the noise
    c = mechanism.strategy.to_dense()
    reach = max(np.linalg.norm(c[:, j::8].sum(axis=1)) for j in range(8))
    mu = reach / mechanism.noise_std
    assert delta_of(mu, EPSILON) == pytest.approx(1e-3, rel=1e-3)
    assert 0.999 * EPSILON < run.engine.get_epsilon(1e-3) <= EPSILON
    text = mechanism.report("markdown")
    assert "Banded(" in text, text


def delta_of(mu, epsilon):
    """Of one Gaussian whose means are mu apart."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
