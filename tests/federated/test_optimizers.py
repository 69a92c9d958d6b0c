"""Server optimisers against Algorithm 2 of Reddi et al. (2021), entry by entry."""

import math

import numpy as np
import pytest

from anechoic.federated import SGD, Cosine, FedAdagrad, FedAdam, FedYogi, Linear, Warmup

UPDATES = np.random.default_rng(0).normal(size=(7, 3))


def run(optimizer):
    model, memory, found = np.array([1.0, -1.0, 0.0]), optimizer.start(3), []
    for step, update in enumerate(UPDATES):
        model, memory = optimizer.advance(model, update, memory, step)
        found.append(model)
    return np.array(found)


def by_hand(kind, lr, beta_1, beta_2, tau):
    found = np.empty_like(UPDATES)
    for i, x in enumerate([1.0, -1.0, 0.0]):
        m, v = 0.0, tau**2
        for t, d in enumerate(UPDATES[:, i]):
            m = beta_1 * m + (1 - beta_1) * d
            if kind is FedAdagrad:
                v = v + d**2
            elif kind is FedYogi:
                v = v - (1 - beta_2) * d**2 * math.copysign(1, v - d**2)
            else:
                v = beta_2 * v + (1 - beta_2) * d**2
            x = x + lr * m / (math.sqrt(v) + tau)
            found[t, i] = x
    return found


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
@pytest.mark.parametrize("beta_1", [0.0, 0.9])
def test_adaptive_ones_are_those_of_the_paper(kind, beta_1):
    options = {} if kind is FedAdagrad else {"beta_2": 0.95}
    found = run(kind(lr=0.3, beta_1=beta_1, tau=0.01, **options))
    np.testing.assert_allclose(found, by_hand(kind, 0.3, beta_1, 0.95, 0.01), rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_a_running_sum_that_fades(nesterov):
    found = run(SGD(0.5, momentum=0.8, nesterov=nesterov))
    model, velocity = np.array([1.0, -1.0, 0.0]), np.zeros(3)
    for t, update in enumerate(UPDATES):
        velocity = 0.8 * velocity + update
        model = model + 0.5 * (update + 0.8 * velocity if nesterov else velocity)
        np.testing.assert_allclose(found[t], model, rtol=1e-12)


def test_plain_averaging_adds_the_update():
    model = np.array([1.0, -1.0, 0.0])
    np.testing.assert_allclose(run(SGD()), model + np.cumsum(UPDATES, axis=0), rtol=1e-12)


def test_nothing_is_changed_in_place():
    for optimizer in (SGD(momentum=0.5), FedAdam(), FedYogi(), FedAdagrad()):
        model, memory = np.ones(3), optimizer.start(3)
        before = [one.copy() for one in memory]
        optimizer.advance(model, UPDATES[0], memory, 0)
        assert (model == 1).all() and all((a == b).all() for a, b in zip(memory, before, strict=True))


def test_rates_follow_their_schedule():
    assert [Warmup(2.0, 4)(t) for t in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert [Warmup(2.0, 2, after=Linear(2.0, 3))(t) for t in range(6)] == [1.0, 2.0, 2.0, 1.0, 0.0, 0.0]
    assert [Linear(1.0, 5, last=0.5)(t) for t in (0, 2, 4, 9)] == [1.0, 0.75, 0.5, 0.5]
    np.testing.assert_allclose([Cosine(1.0, 5)(t) for t in (0, 1, 2, 4, 9)], [1, 0.853553390593, 0.5, 0, 0])
    assert SGD(lambda step: 1 / (1 + step)).rate(3) == 0.25
    np.testing.assert_allclose(run(SGD(Linear(1.0, 3)))[2], run(SGD(Linear(1.0, 3)))[6])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(0), "lr=0"),
        (lambda: SGD(math.nan), "lr=nan"),
        (lambda: SGD(momentum=1.0), "momentum=1.0"),
        (lambda: SGD(nesterov=True), "momentum > 0"),
        (lambda: FedAdam(beta_1=1.0), "beta_1"),
        (lambda: FedAdam(beta_2=-0.1), "beta_2"),
        (lambda: FedYogi(tau=0.0), "tau"),
        (lambda: SGD(lambda step: -1.0).rate(0), "lr=-1.0"),
        (lambda: SGD(lambda step: math.inf).rate(0), "lr=inf"),
        (lambda: Warmup(1.0, 0), "steps"),
        (lambda: Linear(1.0, 1), "steps"),
        (lambda: Cosine(1.0, 9, last=-1.0), "last"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_descriptions_are_plain():
    assert SGD(0.5).describe() == {"kind": "SGD", "lr": "0.5", "momentum": 0.0, "nesterov": False}
    assert FedAdam(Cosine(1.0, 9)).describe()["lr"] == "Cosine(first=1.0, steps=9, last=0.0)"
    assert SGD(lambda step: 1.0).describe()["lr"] == "a function of the step"
