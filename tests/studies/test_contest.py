"""Models trained together against one by one; outcomes that are kept; the figure and its claims."""

import csv

import numpy as np
import pytest

from anechoic.errors import CheckpointError
from studies.published import contest as contests
from studies.published.contest import Contest, Images, compete
from studies.published.together import accuracies, train_together
from studies.published.training import drawn


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    features = (rng.random((60, 5)) + 2 * np.eye(3, 5)[labels]).astype(np.float32)
    return Images(features[:45], labels[:45], features[45:], labels[45:], classes=3)


def one_by_one(images, batches, noise, scale, steps, rate, batch_size, clip_norm):
    """One model, one example at a time, in double precision."""
    weights = np.zeros((5, 3))  # class 0 is kept at 0
    for t in range(steps):
        total = np.zeros((5, 3))
        for i in batches[t]:
            x = images.features[i].astype(float)
            p = np.exp(x @ weights)
            gradient = np.outer(x, p / p.sum() - np.eye(3)[images.labels[i]])[:, 1:]
            norm = np.linalg.norm(gradient)
            total[:, 1:] += gradient * (1.0 if clip_norm is None else min(1.0, clip_norm / norm))
        total[:, 1:] += scale * noise[t].reshape(5, 2)
        weights -= rate / batch_size * total
    return weights[:, 1:]


@pytest.mark.parametrize("clip_norm", [None, 0.7])
def test_models_are_trained_as_one_by_one(images, clip_norm):
    rng = np.random.default_rng(1)
    batches = [rng.permutation(45)[:size] for size in (7, 0, 3, 11, 5)]
    noise = rng.standard_normal((5, 10)).astype(np.float32)
    given = {"steps": 5, "rate": 0.8, "batch_size": 6.5, "clip_norm": clip_norm}
    found = train_together(
        images.features,
        images.labels,
        batches.__getitem__,
        classes=3,
        noise=noise,
        scales=[0.0, 2.0],
        **given,
    )
    for weights, scale in zip(found, (0.0, 2.0), strict=True):
        assert weights == pytest.approx(one_by_one(images, batches, noise, scale, **given), abs=1e-5)
    guesses = np.argmax(np.column_stack([np.zeros(15), images.test_features @ found[1]]), axis=1)
    assert accuracies(found, images.test_features, images.test_labels)[1] == np.mean(
        guesses == images.test_labels
    )


SMALL = Contest(steps=7, batch_sizes=(5, 13), periods=(2, 7), epsilons=(1.0, 1000.0), delta=1e-3, trials=2)


@pytest.mark.slow
def test_every_arm_has_its_guarantee_and_little_noise_is_none(images, tmp_path):
    scores = compete(images, SMALL, tmp_path)
    for size in SMALL.batch_sizes:
        for arm in contests.arms(SMALL, size)[2:]:
            for epsilon, mechanism in contests.mechanisms(SMALL, 45, size, arm).items():
                assert mechanism.epsilon() <= epsilon and mechanism.delta == 1e-3
                assert mechanism.steps == 7 and mechanism.clip_norm == 1.0
                assert arm == contests.SAMPLED or mechanism.amplified == (arm == contests.SGD)
            assert len(scores.values[size, arm, 1.0]) == 2
        silent = scores.mean(size, contests.CLIPPED, np.inf)
        assert scores.mean(size, contests.MF, 1000.0) == pytest.approx(silent, abs=0.15)
    spread = abs(np.subtract(*scores.values[5, contests.MF, 1.0])) / 2
    assert scores.error(5, contests.MF, 1.0) == pytest.approx(spread)


def test_a_run_goes_on_where_it_was(images, tmp_path, monkeypatch):
    monkeypatch.setattr(contests, "arms", lambda contest, size: (contests.MF, contests.SGD, contests.CLIPPED))
    small = Contest(steps=3, batch_sizes=(9,), periods=(3,), epsilons=(2.0,), delta=1e-3, trials=1)
    said = []
    first = compete(images, small, tmp_path, said=said.append)
    assert len(said) == 3 and said[0].startswith("9 DP-MF, trial 0: ")
    assert {key[1:] for key in first.values} == {("DP-MF", 2.0), (contests.SGD, 2.0), ("no noise", np.inf)}
    lost = tmp_path / "9-DP-MF-0.json"
    lost.unlink()
    asked = []
    whole = contests.mechanisms
    monkeypatch.setattr(contests, "mechanisms", lambda *given: asked.append(given[3]) or whole(*given))
    assert compete(images, small, tmp_path).values == first.values
    assert asked == ["DP-MF"]
    # other settings are another outcome
    compete(images, Contest(**(vars(small) | {"rate": 0.1})), tmp_path)
    assert len(asked) == 4
    lost.write_text("{")
    with pytest.raises(CheckpointError, match=r"9-DP-MF-0.json is damaged.*Delete it"):
        compete(images, small, tmp_path)


def made_up(contest, levels):
    """Scores of three trials around a level for each arm."""
    return {
        (size, arm, epsilon): tuple(levels.get(arm, 0.5) + 0.01 * np.arange(3))
        for size in contest.batch_sizes
        for arm in contests.arms(contest, size)
        for epsilon in (*contest.epsilons, np.inf)
    }


def test_the_text_has_the_table_and_the_file_the_errors(tmp_path):
    values = made_up(SMALL, {contests.plus(7): 0.625})
    made = drawn(contests.Scores(SMALL, values), 45)
    (data,) = made.write(tmp_path, draw=False)
    with data.open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["panel", "curve", "x", "y", "standard error"]
    error = 0.01 / np.sqrt(3)
    assert ["batches of 5: methods", contests.plus(7), "1", "0.635", f"{error:.3g}"] in rows
    assert f"| 5 | {contests.plus(7)} | 0.6350 ± {error:.4f} |" in made.text()


def test_claims_are_told_as_they_came_out():
    """One arm that is better at every epsilon by more than its spread, and one that is worse."""
    small = Contest(batch_sizes=(5,), periods=(2, 4), epsilons=(1.0, 3.0), trials=3)
    values = made_up(small, {contests.plus(4): 0.6, contests.MF: 0.4})
    values[5, contests.plus(2), 3.0] = (0.7, 0.7, 0.7)
    said = drawn(contests.Scores(small, values), 45).remarks[1]
    assert "rise with τ at every step for ε = 1;" in said and "1: 4, 3: 2" in said
    assert "DP-MF⁺, τ = 4 against DP-MF: better at ε = 1, 3, worse at none" in said
    assert "DP-MF against DP-SGD, Poisson: better at ε = none, worse at 1, 3" in said
