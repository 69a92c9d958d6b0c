"""Federations without a server, and the figure and table that are trained with them."""

import math

import numpy as np
import pytest

from anechoic.accounting import gaussian_mu
from anechoic.participation import Cyclic
from anechoic.sampling import FixedOrder
from studies.federated.population import Population
from studies.federated.split import DailyWindows
from studies.published import anytime
from studies.published.clients import Rounds, federate
from studies.published.contest import Images
from studies.published.together import cooling, train_together


def hot(inputs):
    found = np.zeros((*inputs.shape[:-1], 4), np.float32)
    np.put_along_axis(found, inputs.astype(np.int64), 1.0, axis=-1)
    found[..., -1] = 1.0
    return found


@pytest.fixture
def population():
    """24 clients of three examples, whose class is what they hold."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 3, (24, 3, 1)).astype(np.uint8)
    weights = np.full((24, 3), 1 / 3, np.float32)
    test = np.arange(3, dtype=np.uint8)
    windows = DailyWindows.drawn(24, rng)
    return Population(inputs, inputs[:, :, 0], weights, hot, windows, 3, test[:, None], test)


def test_a_round_is_the_sum_of_clipped_updates_and_noise(population):
    """One round and one local step, written out: rate (sum of clipped updates + noise) / clients a round."""
    how = Rounds(1, 2, local_steps=1, clip_norm=0.3, momentum=0.0, cooled=0.0)
    noise = np.arange(12, dtype=np.float32)[None]
    seen = {}

    def scored(weights):
        seen["model"] = weights.copy()
        return 0.5

    object.__setattr__(population, "accuracy", scored)
    chosen = np.array([3, 5])
    assert federate(population, lambda t: chosen, how, rate=0.7, noise=noise, scale=2.0) == 0.5
    total = 2.0 * noise[0].reshape(4, 3).astype(float)
    for client in chosen:
        x = hot(population.inputs[client])
        update = -x.T @ ((1 / 3 - np.eye(3)[population.labels[client]]) / 3)
        total += update * min(1.0, 0.3 / np.linalg.norm(update))
    assert seen["model"] == pytest.approx(0.7 * total / 2, abs=1e-5)


def test_rates_cool_down_evenly():
    found = [cooling(t, 8, 4) for t in range(8)]
    assert found[:4] == [1.0] * 4
    assert np.diff(found[3:]) == pytest.approx([-0.95 / 4] * 4)
    assert cooling(7, 8, 0) == 1.0


def test_momentum_and_rates_of_each_model():
    rng = np.random.default_rng(0)
    x, labels = rng.random((6, 3)).astype(np.float32), np.array([0, 1, 1, 0, 1, 0])
    given = {"steps": 3, "classes": 2, "batch_size": 6, "clip_norm": None}
    both = train_together(
        x, labels, lambda t: np.arange(6), rate=[0.5, 0.1], scales=[0, 0], momentum=0.5, **given
    )
    for rate, found in zip((0.5, 0.1), both, strict=True):
        w, v = np.zeros(3), np.zeros(3)
        for _ in range(3):
            v = 0.5 * v + x.T @ (1 / (1 + np.exp(-x @ w)) - labels) / 6
            w = w - rate * v
        assert found[:, 0] == pytest.approx(w, abs=1e-5)


@pytest.mark.parametrize("arm", anytime.ARMS)
def test_arms_have_the_same_guarantee(arm):
    order = FixedOrder(60, 10, steps=12)
    assert order.participation == Cyclic(6)
    strategy = anytime.strategies(arm, 12, order)
    made = anytime.mechanism(strategy, arm, order, 2.0, 1e-5, 0.4)
    assert made.clip_norm == 0.4
    assert made.epsilon(1e-5) == pytest.approx(2.0, rel=1e-3)
    if arm != anytime.SGD:
        assert made.gdp() == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-3)


def test_a_figure_is_made_and_goes_on(population, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    features = np.repeat((rng.random((60, 4)) + 2 * np.eye(3, 4)[labels]).astype(np.float32), 4, axis=1)
    images = Images(features[:45], labels[:45], features[45:], labels[45:], classes=3)
    monkeypatch.setattr(anytime, "images_in", lambda directory: images)
    how = anytime.ImageSetting(
        epsilons=(1.0, 1e6), delta=1e-3, rates=(0.5, 1.0), trials=2, steps=6, batch_size=9, cooled=2
    )
    texts = anytime.TextSetting(epsilons=(1.0, 1e6), rates=(0.5, 2.0), trials=2, rounds=Rounds(6, 4))
    made = anytime.figure_4("nowhere", tmp_path, how, texts, population)
    assert [panel.curves[-1].label for panel in made.panels] == [anytime.SILENT] * 2
    assert all(len(panel.curves) == len(anytime.ARMS) + 1 for panel in made.panels)
    assert len(made.table) == 1 + 2 * (2 + len(anytime.ARMS))
    assert "ν-DP-FTRL is ahead of tree × S at ε = " in made.remarks[1]
    monkeypatch.setattr(anytime, "train_together", None)  # nothing is trained again
    monkeypatch.setattr(anytime, "federate", None)
    again = anytime.figure_4("nowhere", tmp_path, how, texts, population)
    assert again.table == made.table


def test_table_2_has_the_printed_numbers_beside_ours(population, tmp_path):
    how = anytime.TextSetting(
        epsilons=(0.341, 5.456), rates=(0.5, 1.0), trials=2, rounds=Rounds(6, 4), multipliers=True
    )
    made = anytime.table_2(tmp_path, how, population)
    assert [row[0] for row in made.table[1:]] == ["0.341", "5.456"]
    assert made.table[1][3:] == ("24.63 ± 0.06", "24.58 ± 0.12")
    assert math.isfinite(float(made.table[1][1].split(" ")[0]))
