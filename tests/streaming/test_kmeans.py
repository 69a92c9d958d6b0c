"""Online k-means: centres found, encoding by released centres alone, epochs that survive a restart."""

import itertools

import numpy as np
import pytest

from anechoic import streaming
from anechoic.streaming.kmeans import OnlineKMeans, excess_cost
from tests.marks import slow
from tests.streaming.test_stream import NoNoise

KEY = bytes(range(32))
TRUE = np.array([[3.0, 0.0], [-1.5, 2.0], [-1.5, -2.0]])
SETTING = {"k": 3, "bound": 5.0, "dimension": 2, "initial": [[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]}


def points(seed, count):
    rng = np.random.default_rng(seed)
    return TRUE[rng.integers(3, size=count)] + rng.normal(0, 0.2, (count, 2))


def lloyd(batches, centres):
    """What the estimator does without noise, written out."""
    pool, found = [], []
    for step, batch in enumerate(batches):
        pool.append(batch)
        x = np.concatenate(pool)
        nearest = np.linalg.norm(x[:, None] - centres[None], axis=2).argmin(axis=1)
        means = np.array(
            [x[nearest == j].mean(axis=0) if (nearest == j).sum() > 0 else c for j, c in enumerate(centres)]
        )
        found.append(means)
        if step in (0, 2, 6, 14):
            centres, pool = means, []
    return found


@pytest.mark.slow
def test_without_noise_it_is_lloyds_step_in_epochs_that_double():
    batches = [points(t, 4000) for t in range(9)]
    stream = NoNoise({"c": streaming.OnlineKMeans(**SETTING)}, epsilon=5.0, horizon=9)
    found = [release.estimate for release in stream.steps(batches)]
    for one, other in zip(found, lloyd(batches, np.array(SETTING["initial"])), strict=True):
        assert np.allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_centres_are_found_under_noise():
    stream = streaming.Stream(streaming.OnlineKMeans(**SETTING), epsilon=1.0, horizon=40)
    last = stream.steps([points(t, 1000) for t in range(40)])[-1].only
    assert np.abs(last.value - TRUE).max() < 0.1
    assert np.abs((last.value - TRUE) / last.standard_error).max() < 6


def test_empty_cells_keep_their_centres():
    stream = streaming.Stream(
        streaming.OnlineKMeans(**SETTING), epsilon=1.0, horizon=9, key=bytes(32)
    )  # other noise may not
    for _ in range(4):
        assert np.allclose(stream.release().estimate, SETTING["initial"])


def test_one_record_has_at_most_its_bound_whatever_the_centres():
    rng = np.random.default_rng(1)
    for _ in range(50):
        statistic = streaming.OnlineKMeans(4, 2.0, 3, initial=rng.normal(0, 3, (4, 3)))
        record = statistic.read(rng.normal(0, 5, (1, 3)))
        found = statistic.total(record, None, 2**20)
        assert sum(int(v) ** 2 for v in found) <= 2 * 4**20
        assert np.count_nonzero(found.reshape(4, 4).any(axis=1)) == 1


@pytest.mark.slow
def test_centres_are_learned_again_from_the_state_file(tmp_path, monkeypatch):
    monkeypatch.setattr("anechoic.runs.digests.new_salt", bytes)
    batches = [points(t, 400) for t in range(9)]
    promise = {"epsilon": 3.0, "horizon": 9, "key": KEY}
    expected = [
        release.to_bytes()
        for release in streaming.Stream(streaming.OnlineKMeans(**SETTING), **promise).steps(batches)
    ]
    found = []
    for batch in batches:
        with streaming.Stream(streaming.OnlineKMeans(**SETTING), **promise, state=tmp_path / "s") as stream:
            found += [release.to_bytes() for release in stream.steps([batch])]
    assert found == expected
    with streaming.Stream(streaming.OnlineKMeans(**SETTING), **promise, state=tmp_path / "s") as stream:
        again = stream.band(simultaneous=False)
    assert [release.to_bytes() for release in again] == expected


@pytest.mark.parametrize("horizon", [6, *slow(None)])
@pytest.mark.slow
def test_standard_errors_are_those_measured_also_where_an_epoch_has_begun(horizon):
    """One centre of 400 coordinates, each of which is a run of its own."""
    setting = {"bound": 1.0, "dimension": 400, "initial": np.zeros((1, 400))}
    found = []
    for key in (KEY, KEY[::-1], bytes(32)):
        stream = streaming.Stream(streaming.OnlineKMeans(1, **setting), epsilon=1.0, horizon=horizon, key=key)
        found.append([release.only for release in stream.steps([np.zeros((5000, 400))] * 5)])
    for step in range(5):
        measured = np.std([run[step].value for run in found])
        stated = np.mean([run[step].standard_error for run in found])
        assert abs(measured / stated - 1) < 0.08


@pytest.mark.slow
def test_one_statistic_in_two_streams_learns_in_each_by_itself():
    statistic = streaming.OnlineKMeans(**SETTING)
    one, other = (NoNoise({"c": statistic}, epsilon=5.0, horizon=9) for _ in range(2))
    one.steps([points(0, 2000)] * 3)
    assert np.allclose(other.release().estimate, SETTING["initial"])


def cost(records, centres):
    return np.square(records[:, None] - centres[None]).sum(axis=2).min(axis=1).sum()


@pytest.mark.parametrize(("k", "d", "deviation"), [(1, 1, 4.0), (3, 2, 1.0), (3, 2, 4.0), (5, 3, 0.3)])
def test_the_cost_rises_by_at_most_its_bound(k, d, deviation):
    """Over many draws of the noise, with cells that move and cells that do not."""
    rng = np.random.default_rng(k)
    records = rng.uniform(-0.3, 0.9, (61, d)) / np.sqrt(d)
    before = records[:k].copy()
    for _ in range(50):  # to where Lloyd's algorithm ends: then nothing but the noise moves a centre
        before = lloyd([records], before)[0]
    statistic = OnlineKMeans(k, 1.0, d, initial=before)
    sums = statistic.total(statistic.read(records), None, 2**20) / 2.0**20
    held, excesses, bounds = 0, [], []
    for _ in range(400):
        found = statistic.decode(sums + rng.normal(0, deviation, sums.shape), deviation, 2.0)
        bounds.append(excess_cost(found.raw.reshape(k, d + 1)[:, 0], deviation, d, failure=0.2))
        excesses.append(cost(records, found.value) - cost(records, before))
        held += excesses[-1] <= bounds[-1] + 1e-4
    assert held >= 0.8 * 400
    assert np.median(bounds) < 60 * np.quantile(excesses, 0.9)  # and is of the size of the noise


def test_a_bad_start_is_kept_and_costs_more_than_the_best():
    a, b = 0.9, 0.3
    records = np.array([[x, y] for x in (-a, a) for y in (-b, b)])
    initial = [[0.0, -b], [0.0, b]]
    stream = NoNoise({"c": OnlineKMeans(2, 1.0, 2, initial=initial)}, epsilon=5.0, horizon=7)
    last = stream.steps([np.repeat(records, 500, axis=0)] * 7)[-1].only.value
    assert np.allclose(last, initial, atol=1e-6)
    best = min(
        sum(cost(part, part.mean(axis=0)[None]) for part in (records[half], records[~half]) if len(part))
        for half in map(np.array, itertools.product([False, True], repeat=4))
    )
    assert np.isclose(cost(records, last) / best, (a / b) ** 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: streaming.OnlineKMeans(0, 1.0, 2), "k=0"),
        (lambda: excess_cost([5.0], 0.0, 1), "deviation=0"),
        (lambda: excess_cost([5.0], 1.0, 1, failure=1.0), "failure=1.0"),
        (lambda: streaming.OnlineKMeans(2, 1.0, 2, initial=[[0.0, 0.0]]), "initial has 1 entries"),
        (lambda: streaming.OnlineKMeans(1, 1.0, 2, initial=[[0.0]]), "is needed"),
        (
            lambda: streaming.Stream(
                streaming.OnlineKMeans(**SETTING), epsilon=1.0, over=streaming.SlidingWindow(4)
            ),
            "needs sums over all steps",
        ),
    ],
)
def test_bad_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
