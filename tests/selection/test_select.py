"""Selection: what is run, what is shown, what is refused, what is stated."""

import math

import pytest

import anechoic as an
from anechoic.keys import derive
from anechoic.selection.selection import Selection


def mechanism(epsilon=1.0):
    sampling = an.sampling.External(an.participation.Single(), batch_size=1, steps=4)
    return an.calibrate(an.strategies.Identity(4), sampling=sampling, epsilon=epsilon, delta=1e-6)


def test_the_noise_is_the_least_that_gives_the_epsilon_asked_for():
    selection = an.select(mechanism(), mean=10, score_on="public", epsilon=1.0)
    assert 0.99 < selection.epsilon() <= 1.0
    assert selection.mechanism.noise_std > mechanism().noise_std


def test_hundreds_of_runs_by_poisson_take_the_bound_of_papernot_and_steinke():
    selection = an.select(mechanism(8.0), mean=1000, repetitions="poisson", score_on="public")
    assert 8.0 < selection.epsilon() < 500.0  # inf by the profile


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
        an.select(mechanism(), mean=10, score_on="private", score_mechanism=mechanism(4), epsilon=1.0)
    drawn = an.calibrate(
        an.strategies.Identity(4), sampling=an.sampling.Poisson(examples=100, batch_size=5, steps=4),
        epsilon=1, delta=1e-6,
    )  # fmt: skip
    with pytest.raises(an.errors.UnsupportedError, match="not an unamplified"):
        an.select(drawn, mean=10, score_on="public")
    with pytest.raises(an.errors.GuaranteeError, match="no run was made"):
        an.select(mechanism(), mean=1e-9, repetitions="poisson", score_on="public").run(print, [1])


def test_the_statement_covers_the_choice_and_asks_for_secrecy():
    selection = an.select(mechanism(), mean=10, score_on="public")
    text = selection.report()
    assert isinstance(selection, Selection)
    assert "best run, setting and score" in text and "number of runs, the time they took" in text
    assert "choosing hyper-parameters" not in text and "selection.md" in text
