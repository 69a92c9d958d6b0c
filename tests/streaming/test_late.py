"""Records that come late: figures of their own steps, as known at each release, and their errors."""

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import UnsupportedError
from anechoic.participation import MinSep, Single
from anechoic.sampling import External
from tests.streaming.test_stream import NoNoise

STEPS = 7


def records(rng, longest, count=200):
    """(step of their own, step in which they come): lags of -1 and one too long among them."""
    own = rng.integers(-1, STEPS, count)
    comes = own + rng.integers(-1, longest + 2, count)
    inside = (comes >= 0) & (comes < STEPS)
    return own[inside], comes[inside]


@pytest.mark.parametrize("longest", [1, 3])
def test_figures_are_of_the_records_own_steps_as_known_by_then(longest):
    own, comes = records(np.random.default_rng(longest), longest)
    counts = (comes - own >= 0) & (comes - own <= longest)
    stream = NoNoise({"late": streaming.Late(longest)}, epsilon=1.0, horizon=STEPS)
    for step in range(STEPS):
        stream.update((comes - own)[comes == step].tolist())
        made = stream.release()
        assert made["late"].value == pytest.approx(np.count_nonzero(counts & (comes <= step)))
    for known in range(STEPS):
        for step in range(known + 1):
            for begin in range(step + 1):
                here = counts & (own <= step) & ((own >= begin) | (begin == 0)) & (comes <= known)
                found = streaming.revised(stream, step, begin=begin, as_of=known)
                assert float(found.value) == pytest.approx(np.count_nonzero(here), abs=1e-6)
    assert stream.diagnostics()["late: of no such lag"] == np.count_nonzero(~counts)


def test_figures_by_groups_are_those_of_each_group_alone():
    """Without noise they are those of a stream of one group; with it, errors are those of one group."""
    rng, groups = np.random.default_rng(5), ["west", "east", "none"]
    late, by = streaming.Late(2, "lag"), ("region", groups)
    clear = NoNoise({"late": late}, by=by, epsilon=1.0, horizon=STEPS)
    noisy = streaming.Stream({"late": late}, by=by, epsilon=1.0, horizon=STEPS)
    alone = {group: NoNoise({"late": late}, epsilon=1.0, horizon=STEPS) for group in groups}
    one = streaming.Stream({"late": late}, epsilon=1.0, horizon=STEPS)
    for _ in range(STEPS):
        lags, regions = rng.integers(0, 4, 60), rng.choice(groups[:2], 60)
        for stream in (clear, noisy):
            stream.update({"lag": lags.tolist(), "region": regions.tolist()})
        for group, stream in alone.items():
            stream.update({"lag": lags[regions == group].tolist()})
        for stream in (clear, noisy, one, *alone.values()):
            stream.release()
    for step, begin, known in ((2, 2, 2), (2, 2, 6), (5, 0, 6), (4, 3, 5)):
        asked = {"begin": begin, "as_of": known}
        found = streaming.revised(clear, step, **asked)
        wanted = [float(streaming.revised(alone[group], step, **asked).value) for group in groups]
        assert found.value == pytest.approx(wanted, abs=1e-6) and found.value.shape == (3,)
        error = float(streaming.revised(one, step, **asked).standard_error)
        spread = streaming.revised(noisy, step, **asked)
        assert spread.standard_error == pytest.approx(np.full(3, error), rel=1e-9)
        assert (abs(spread.value - found.value) < 6 * error).all()


@pytest.mark.parametrize("longest", [1, 2])
def test_no_linear_unbiased_combination_of_all_releases_has_less_error(longest):
    """Against least squares over all numbers that were released, step by step, written out."""
    steps = 5
    stream = streaming.Stream(streaming.Late(longest), epsilon=1.0, horizon=steps)
    for step in range(steps):
        stream.update([step % (longest + 1)] * 50)
        stream.release()
    lags = longest + 1
    design = np.vstack([np.ones(lags), np.eye(lags)])  # the number of all, and those of each lag
    for known in (2, 4):
        n = known + 1
        # increments of step t have noise with the covariance of running sums, differenced
        over_time = stream.covariance("late", range(n))
        difference = np.eye(n) - np.eye(n, k=-1)
        noise = np.kron(np.eye(lags + 1), difference @ over_time @ difference.T)
        whole = np.kron(design, np.eye(n))
        precision = np.linalg.inv(noise)
        covariance = np.linalg.inv(whole.T @ precision @ whole)
        rows = np.array([stream.between(t, t)["late"].raw for t in range(n)]).T.ravel()
        best = (covariance @ whole.T @ precision @ rows).reshape(lags, n)
        for step in range(n):
            for begin in range(step + 1):
                wanted = np.array(
                    [
                        [
                            begin * (begin > 0) <= t - lag <= step or (begin == 0 and t - lag < 0)
                            for t in range(n)
                        ]
                        for lag in range(lags)
                    ],
                    float,
                )
                found = streaming.revised(stream, step, begin=begin, as_of=known)
                assert float(found.value) == pytest.approx(np.sum(wanted * best), rel=1e-6, abs=1e-5)
                variance = wanted.ravel() @ covariance @ wanted.ravel()
                assert float(found.standard_error) ** 2 == pytest.approx(variance, rel=1e-6)


def test_a_late_record_changes_what_is_released_from_its_coming_on():
    """An attack: the same noise with and without one record, whatever its lag."""
    for lag in range(4):
        worlds = []
        for there in (True, False):
            stream = streaming.Stream(streaming.Late(3), epsilon=1.0, horizon=6, key=bytes(32))
            for step in range(6):
                stream.update([0, 1] + [lag] * (there and step == 3))
                stream.release()
            worlds.append(np.array([stream._row(step) for step in range(6)]))
        moved = worlds[0] - worlds[1]
        assert not moved[[0, 1, 2, 4, 5]].any()
        assert sum(int(entry) ** 2 for entry in moved[3]) <= 4**stream.mechanism.grid_bits
        assert np.count_nonzero(moved[3]) == 2


@pytest.mark.slow
def test_errors_and_coverage_over_runs():
    inside, off = [], []
    rng = np.random.default_rng(1)
    mechanism = streaming.Stream(streaming.Late(2), epsilon=1.0, horizon=5).mechanism
    for _ in range(60):
        stream = streaming.Stream(streaming.Late(2), mechanism=mechanism, key=rng.bytes(32))
        for step in range(5):
            stream.update([lag for lag in range(3) if lag <= step] * 20)
            stream.release()
        for step, begin, known, true in [(4, 0, 4, 240), (2, 0, 4, 180), (2, 2, 4, 60), (3, 3, 4, 40)]:
            found = streaming.revised(stream, step, begin=begin, as_of=known)
            off.append((float(found.value) - true) / float(found.standard_error))
            inside.append(found.low <= true <= found.high)
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(1, abs=0.22)
    assert 0.89 < np.mean(inside) < 0.995


def test_units_are_held_to_their_participation_by_when_records_come():
    stream = NoNoise({"late": streaming.Late(2)}, epsilon=1.0, horizon=4, participation=MinSep(2, 2))
    for lag in [0, 0, 1, 0]:
        stream.update([lag], unit_ids=["ann"])
        stream.release()
    assert [float(streaming.revised(stream, step).value) for step in range(4)] == [1, 2, 2, 2]


def test_what_cannot_be_revised_is_refused():
    with pytest.raises(ValueError, match="steps"):
        streaming.Late(0)
    stream = streaming.Stream({"n": streaming.Count(), "l": streaming.Late(1)}, epsilon=1.0, horizon=3)
    stream.update([0])
    stream.release()
    for options in ({"step": 1}, {"step": 0, "begin": 1}, {"step": 0, "as_of": 1}, {"step": -1}):
        with pytest.raises(ValueError, match="0 <= begin <= step <= as_of"):
            streaming.revised(stream, **options)
    with pytest.raises(ValueError, match="must name a statistic Late"):
        streaming.revised(stream, 0, name="n")
    window = streaming.Stream(streaming.Late(1), epsilon=1.0, horizon=3, over=streaming.SlidingWindow(2))
    window.release()
    with pytest.raises(ValueError, match="needs running totals"):
        streaming.revised(window, 0)


@pytest.mark.slow
def test_where_no_covariance_is_known_nothing_is_said():
    import anechoic as an

    mechanism = an.calibrate(
        an.strategies.Tree(4096), sampling=External(Single(), 1, steps=4096), epsilon=1.0, delta=1e-6
    )
    stream = streaming.Stream(streaming.Late(1), mechanism=mechanism)
    stream.release()
    with pytest.raises(UnsupportedError, match="is not computed"):
        streaming.revised(stream, 0)
