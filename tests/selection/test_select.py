"""Selection: what is run, what is shown, what is refused, what is stated."""

import math
from dataclasses import replace

import numpy as np
import pytest

import anechoic as an
from anechoic.keys import derive
from anechoic.selection.selection import Selection

KEY = b"k" * 32


def mechanism(epsilon=50.0):
    sampling = an.sampling.External(an.participation.Single(), batch_size=1, steps=4)
    return an.calibrate(an.strategies.Identity(4), sampling=sampling, epsilon=epsilon, delta=1e-6)


def drawn():
    sampling = an.sampling.Poisson(examples=100, batch_size=5, steps=1)
    return an.calibrate(an.strategies.Identity(1), sampling=sampling, epsilon=1, delta=1e-6)


def test_the_noise_is_the_least_that_gives_the_epsilon_asked_for():
    selection = an.select(mechanism(), mean=10, score_on="public", epsilon=60.0)
    assert 59.9 < selection.epsilon() <= 60.0
    assert selection.mechanism.noise_std > mechanism(60.0).noise_std


@pytest.mark.slow
def test_secret_batches_amplify_the_choice_too():
    one = drawn()
    chosen = an.select(one, mean=10, score_on="public")
    without = an.select(mechanism(one.epsilon()), mean=10, score_on="public")
    assert one.epsilon() < chosen.epsilon() < 2 * without.epsilon()
    given = an.select(one, mean=10, score_on="private", score_mechanism=mechanism(0.5), epsilon=2.0)
    assert 1.99 < given.epsilon() <= 2.0 and given.one_run.amplified
    assert "batches" in given.report()


def test_one_model_for_all_runs_is_refused():
    selection, model = an.select(mechanism(), mean=50, score_on="public"), [0.0]

    def train(candidate, given, key):
        model[0] += 1.0
        return model, -model[0]

    with pytest.raises(an.errors.GuaranteeError, match="build a new model in train"):
        selection.run(train, [1], key=KEY)
    assert selection.run(lambda *_: (None, 0.0), [1], key=KEY).result is None


def test_less_than_one_run_costs_less_than_one():
    halves = [an.select(mechanism(), mean=m, repetitions="poisson", score_on="public") for m in (0.1, 0.9)]
    assert halves[0].epsilon() < halves[1].epsilon() < 2 * mechanism().epsilon()


@pytest.mark.slow
@pytest.mark.parametrize("law", ["geometric", "logarithmic", "poisson"])
@pytest.mark.parametrize(("mean", "epsilon"), [(1.5, 1e-2), (10, 1.0), (1e6, 5.0)])
def test_every_law_and_number_of_runs_is_calibrated(law, mean, epsilon):
    chosen = an.select(mechanism(), mean=mean, repetitions=law, score_on="public", epsilon=epsilon)
    assert 0.97 * epsilon < chosen.epsilon() <= epsilon


def test_no_figure_is_no_selection():
    with pytest.raises(an.errors.GuaranteeError, match="no epsilon up to 400 .* ask for an epsilon"):
        an.select(mechanism(395.0), mean=1000, score_on="public")
    with pytest.raises(ValueError, match="cannot be shown at delta=1e-14.* larger delta"):
        an.select(mechanism(), mean=1000, score_on="public", epsilon=1.0, delta=1e-14)


def test_candidates_are_a_list_and_runs_cannot_change_them():
    selection = an.select(mechanism(), mean=50, score_on="public")
    for wrong in ((rate for rate in (1, 2)), {1, 2}, {1: 2}, "ab", 3):
        with pytest.raises(ValueError, match="give a list of settings"):
            selection.run(print, wrong)
    with pytest.raises(ValueError, match="empty"):
        selection.run(print, [])
    settings, seen = [{"rate": 1.0}], []

    def train(candidate, *_):
        seen.append(candidate.pop("rate"))
        settings.clear()
        return None, 0.0

    assert selection.run(train, settings, key=KEY).candidate == {"rate": 1.0} and len(seen) > 1


@pytest.mark.parametrize("given", [None, [1, 2], (1, 2, 3), (1, "no"), (1, None), (1, 1j), (1, 10**400)])
def test_what_train_returns_is_result_and_score(given):
    selection = an.select(mechanism(), mean=2, score_on="public")
    with pytest.raises(ValueError, match="result, score") as caught:
        selection.run(lambda *_: given, [1])
    assert "no'" not in str(caught.value)  # a score may be private


@pytest.mark.slow
def test_hundreds_of_runs_by_poisson_take_the_bound_of_papernot_and_steinke():
    selection = an.select(mechanism(), mean=1000, repetitions="poisson", score_on="public")
    assert 50.0 < selection.epsilon() < 1500.0  # inf by the profile


@pytest.mark.slow
def test_few_runs_by_poisson_and_almost_no_loss_have_an_epsilon():
    few = an.select(mechanism(), mean=0.6, repetitions="poisson", score_on="public")
    many = an.select(mechanism(), mean=2.0, repetitions="poisson", score_on="public")
    assert 0.0 < few.epsilon() < many.epsilon()
    sampling = an.sampling.External(an.participation.Single(), batch_size=1, steps=1)
    quiet = an.Mechanism(an.strategies.Identity(1), sampling, 1e9, delta=1e-6)
    for repetitions in ("poisson", "geometric"):
        assert an.select(quiet, mean=20, repetitions=repetitions, score_on="public").epsilon() < 0.02
    noisy = an.select(quiet, mean=20, score_on="public", epsilon=1.0)  # its own epsilon is 0
    assert 0.99 < noisy.epsilon() <= 1.0


@pytest.mark.slow
def test_a_private_score_costs():
    free = an.select(mechanism(), mean=5, score_on="public").epsilon()
    paid = an.select(mechanism(), mean=5, score_on="private", score_mechanism=mechanism(0.5)).epsilon()
    assert mechanism().epsilon() < free < paid


def test_the_best_run_is_kept_and_every_run_has_a_key_of_its_own():
    selection, seen = an.select(mechanism(), mean=20, score_on="public"), []

    def train(candidate, given, key):
        assert given == selection.mechanism
        seen.append((key, candidate))
        return f"run {len(seen)}", math.nan if candidate == 3 else candidate

    key = derive(b"k" * 32, "a selection of many runs", 0, size=32)
    chosen = selection.run(train, [1, 2, 3], key=key)
    drawn = [candidate for _, candidate in seen]
    best = max(candidate if candidate < 3 else -math.inf for candidate in drawn)
    assert chosen.score == best and len({key for key, _ in seen}) == len(seen)
    first = next(place for place, each in enumerate(drawn, 1) if (each if each < 3 else -math.inf) == best)
    assert chosen.result == f"run {first}"
    again = selection.run(
        lambda candidate, *_: (None, candidate if candidate < 3 else math.nan), [1, 2, 3], key=key
    )
    assert again[1:] == chosen[1:]


def test_what_is_not_proved_is_refused():
    with pytest.raises(ValueError, match="private score needs"):
        an.select(mechanism(), mean=10, score_on="private")
    with pytest.raises(ValueError, match="score alone"):
        an.select(mechanism(), mean=10, score_on="private", score_mechanism=mechanism(), epsilon=1.0)
    sampling = an.sampling.BallsInBins(examples=100, bins=4, steps=4)
    verified = an.Mechanism(
        an.strategies.Identity(4), sampling, noise_std=50.0, delta=1e-6,
        accounting=an.accounting.Verified(10_000, failure=1e-7, seed=0),
    )  # fmt: skip
    with pytest.raises(an.errors.UnsupportedError, match="deterministic guarantee"):
        an.select(verified, mean=10, score_on="public")
    with pytest.raises(an.errors.UnsupportedError, match="deterministic guarantee"):
        replace(an.select(mechanism(), mean=10, score_on="public"), score_mechanism=verified)
    with pytest.raises(an.errors.GuaranteeError, match="no run was made"):
        an.select(mechanism(), mean=1e-9, repetitions="poisson", score_on="public").run(print, [1])


def test_the_statement_covers_the_choice_and_asks_for_secrecy():
    selection = an.select(mechanism(), mean=10, score_on="public")
    text = selection.report(data="Cells")
    assert isinstance(selection, Selection)
    assert "best run, setting and score" in text and "all runs but the best stay secret" in text
    assert "Runs:          a secret number" in str(selection) and len(str(selection).splitlines()) <= 13
    assert "Data set:      Cells\nModel:         ______" in text
    assert "choosing settings" not in text and "budget.md#selection" in text


@pytest.mark.slow
def test_whole_selections_on_two_data_sets_keep_to_the_epsilon_and_come_near_it():
    """Scores that favour rare outcomes, ties among them: the best run is in the tail, many times over."""
    selection, delta = an.select(mechanism(8.0), mean=4, score_on="public"), 0.05
    mu, count, seen = selection.one_run.gdp(), 10_000, []
    for present in (0.0, mu):

        def train(candidate, given, key, present=present):
            outcome = present + float(np.random.default_rng(list(key)).standard_normal())
            return None, math.floor(4 * outcome) / 4

        keys = (derive(KEY, f"data {present}", place, size=32) for place in range(count))
        seen.append(np.sort([selection.run(train, [1, 2], key=key).score for key in keys]))
    shares = np.array([1 - np.searchsorted(scores, np.arange(-4, 20) / 4) / count for scores in seen])

    def told(epsilon):
        """The largest delta(epsilon) over thresholds, and its standard error."""
        gains = shares[1] - math.exp(epsilon) * shares[0]
        best = gains.argmax()
        return gains[best], math.sqrt((shares[1] + math.exp(2 * epsilon) * shares[0])[best] / count)

    epsilon = selection.epsilon(delta)
    found, error = told(epsilon)
    assert found - 5 * error <= delta
    found, error = told(0.5 * epsilon)
    assert found - 3 * error > delta
