"""Server optimisers against Algorithm 2 of Reddi et al. (2021), entry by entry."""

import math

import numpy as np
import pytest

from anechoic.federated import SGD, FedAdam

START = np.array([1.0, -1.0, 0.0])
UPDATES = np.random.default_rng(0).normal(size=(7, 3))


def run(optimizer):
    model, memory, found = START, optimizer.start(3), []
    for step, update in enumerate(UPDATES):
        before = [one.copy() for one in (model, *memory)]
        new, kept = optimizer.advance(model, update, memory, step)
        assert all((a == b).all() for a, b in zip((model, *memory), before, strict=True)), "changed in place"
        model, memory = new, kept
        found.append(model)
    return np.array(found)


@pytest.mark.parametrize("beta_1", [0.0, 0.9])
def test_adam_is_that_of_the_paper(beta_1):
    lr, beta_2, tau, found = 0.3, 0.95, 0.01, np.empty_like(UPDATES)
    for i, x in enumerate(START):
        m, v = 0.0, tau**2
        for t, d in enumerate(UPDATES[:, i]):
            m = beta_1 * m + (1 - beta_1) * d
            v = beta_2 * v + (1 - beta_2) * d**2
            x = x + lr * m / (math.sqrt(v) + tau)
            found[t, i] = x
    optimizer = FedAdam(lr=lr, beta_1=beta_1, tau=tau, beta_2=beta_2)
    np.testing.assert_allclose(run(optimizer), found, rtol=1e-12)


def test_momentum_is_a_running_sum_that_fades():
    found = run(SGD(0.5, momentum=0.8))
    model, velocity = START, np.zeros(3)
    for t, update in enumerate(UPDATES):
        velocity = 0.8 * velocity + update
        model = model + 0.5 * velocity
        np.testing.assert_allclose(found[t], model, rtol=1e-12)


def test_plain_averaging_adds_the_update_at_the_rate_of_its_step():
    np.testing.assert_allclose(run(SGD()), START + np.cumsum(UPDATES, axis=0), rtol=1e-12)
    rates = 1 / (1 + np.arange(7))[:, None]
    found = run(SGD(lambda step: 1 / (1 + step)))
    np.testing.assert_allclose(found, START + np.cumsum(rates * UPDATES, axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(0), "lr=0"),
        (lambda: SGD(math.nan), "lr=nan"),
        (lambda: SGD(momentum=1.0), "momentum=1.0"),
        (lambda: FedAdam(beta_1=1.0), "beta_1"),
        (lambda: FedAdam(beta_2=-0.1), "beta_2"),
        (lambda: FedAdam(tau=0.0), "tau"),
        (lambda: SGD(lambda step: -1.0).rate(0), r"lr gives -1\.0"),
        (lambda: SGD(lambda step: math.inf).rate(0), "lr gives inf"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_descriptions_are_plain():
    assert SGD(0.5).describe() == {"kind": "SGD", "lr": "0.5", "momentum": 0.0}
    assert FedAdam(lambda step: 1.0).describe()["lr"] == "a function of the step"
