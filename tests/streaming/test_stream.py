"""Estimators: what is added up, released and refused."""

import copy
import math
import os
import threading

import numpy as np
import pytest

import anechoic as an
from anechoic import streaming
from anechoic.errors import GuaranteeError, HorizonError, MismatchError, UnsupportedError
from anechoic.participation import FullBatch, MinSep, Patterns, Single
from anechoic.sampling import External
from tests.marks import each_once
from tests.streaming.released import bytes_of

KEY = bytes(range(32))
TOP = np.finfo(float).max
BOUNDS = (1e-300, 5e-324, 1e300)  # that no grid holds


class NoNoise(streaming.Stream):
    """An estimator whose rows of noise are zero: releases are the integer sums."""

    def _start(self, *arguments, **how):
        super()._start(*arguments, **how)
        real = self._noise.several
        self._noise.several = lambda count: [row * 0 for row in real(count)]


def quiet(**statistics):
    return lambda **promise: NoNoise(statistics, **{"epsilon": 1.0, "horizon": 8, **promise})


def test_count_adds_up_and_get_is_the_last_release():
    count = quiet(count=streaming.Count())(horizon=4)
    assert count.get() is None
    for batch, expected in [(["a", "b"], 2), ([], 2), (5, 7)]:
        count.update(batch)
        assert count.release().estimate == expected
    assert count.get().step == 2 and [r.estimate for r in count.releases()] == [2, 2, 7]


@pytest.mark.parametrize(
    ("horizon", "over", "expected"),
    each_once(
        [5, None],
        [
            (streaming.Running(), [1, 3, 6, 10, 15]),
            (streaming.SlidingWindow(2), [1, 3, 5, 7, 9]),
            (streaming.SlidingWindow(1), [1, 2, 3, 4, 5]),
            (streaming.SlidingWindow(9), [1, 3, 6, 10, 15]),
        ],
    ),
)
@pytest.mark.few(3)
def test_over_which_steps(over, expected, horizon):
    count = quiet(count=streaming.Count())(over=over, horizon=horizon)
    found = [release.estimate for release in count.steps([1, 2, 3, 4, 5])]
    assert np.allclose(found, expected, rtol=1e-12)


def test_sums_are_clipped_and_not_finite_records_left_out():
    total = quiet(sum=streaming.Sum(5.0, 2))()
    total.update([[3.0, 4.0], [30.0, 40.0], [math.nan, 1.0], [math.inf, 0.0], [-1.0, 0.0]])
    assert np.allclose(total.release().estimate, [5.0, 8.0], atol=1e-4)
    assert total.diagnostics() == {"sum: not finite": 2, "sum: clipped to the bound": 1}


def test_mean_of_clipped_records():
    mean = quiet(mean=streaming.Mean(-1.0, 3.0))()
    mean.update([0.0, 1.0, 99.0, math.nan])
    estimate = mean.release().only
    assert math.isclose(estimate.value, 4 / 3, rel_tol=1e-5)
    assert np.allclose(estimate.raw, [4.0, 3.0], rtol=1e-5)
    assert mean.diagnostics() == {"mean: not finite": 1, "mean: clipped to the bounds": 1}


def test_a_mean_of_nothing_is_said_to_be_anything():
    mean = streaming.Stream(streaming.Mean(low=-1.0, high=3.0), epsilon=1.0, horizon=8)
    mean.update([])
    low, high = mean.release().interval
    assert -1.0 <= low < high <= 3.0 and high - low > 1.5


def test_categories_that_are_unknown_are_left_out():
    histogram = quiet(h=streaming.Histogram(["AA", "UA", 7]))()
    histogram.update(np.array(["UA", "AA", "ZZ", "UA"]))
    histogram.update([7, "7", None])
    assert histogram.release().estimate.tolist() == [1, 2, 1]
    assert histogram.diagnostics() == {"h: unknown category": 3}


def test_columns_of_one_batch():
    board = quiet(
        n=streaming.Count("x"), s=streaming.Sum(2.0, column="x"), h=streaming.Histogram([1, 2], "y")
    )()
    board.update({"x": [1.0, 2.0, math.nan], "y": [1, 2, 3]})
    release = board.release()
    assert release["n"].value == 3 and math.isclose(release["s"].value, 3.0, rel_tol=1e-5)
    assert release["h"].value.tolist() == [1, 1] and list(release) == ["n", "s", "h"]
    with pytest.raises(ValueError, match="name one"):
        release.estimate
    with pytest.raises(ValueError, match="differ in length"):
        board.update({"x": [1.0], "y": [1, 2]})
    with pytest.raises(ValueError, match="no column 'y'"):
        board.update({"x": [1.0]})


@pytest.mark.slow
def test_weights_share_one_clip_norm():
    statistics = {"a": streaming.Count(), "b": streaming.Count()}
    equal = streaming.Stream(statistics, epsilon=1.0, horizon=8)
    alone = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=8)
    ratio = equal.standard_deviations(3)["a"] / alone.standard_deviations(3)["count"]
    assert math.isclose(ratio, math.sqrt(2), rel_tol=1e-5)
    uneven = streaming.Stream(statistics, epsilon=1.0, horizon=8, weights={"a": 3.0, "b": 1.0})
    deviations = uneven.standard_deviations(3)
    assert math.isclose(deviations["b"] / deviations["a"], 3.0, rel_tol=1e-4)
    assert equal.shared.contribution <= 1 and 1 - 1e-4 < uneven.shared.contribution <= 1


@pytest.mark.slow
def test_the_same_key_gives_the_same_bytes_and_steps_are_updates_with_releases():
    statistics = {"sum": streaming.Sum(1.0, 3)}
    batches = [np.full((t, 3), 0.1) for t in range(6)]
    one = streaming.Stream(statistics, epsilon=1.0, horizon=6, key=KEY)
    other = streaming.Stream(statistics, epsilon=1.0, horizon=6, key=lambda: KEY)
    together = one.steps(batches, times=range(6))
    for t, batch in enumerate(batches):
        other.update(batch)
        assert bytes_of(other.release(t)) == bytes_of(together[t])


def test_every_release_states_the_epsilon_of_all():
    count = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=20)
    assert {release.epsilon for release in count.steps([1] * 20)} == {count.mechanism.epsilon()}


def test_the_horizon_is_kept():
    count = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=2)
    count.steps([1, 1])
    with pytest.raises(HorizonError, match="all 2 steps"):
        count.update(1)
    with pytest.raises(HorizonError, match="another step"):
        count.release()
    fresh = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=2)
    with pytest.raises(HorizonError, match="3 more steps"):
        fresh.steps([1, 1, 1])
    assert fresh.step == 0


@pytest.mark.parametrize("over", [streaming.Running(), streaming.SlidingWindow(3)])
@pytest.mark.few(1)
def test_sums_never_leave_their_integers(over):
    many = 2**33
    count = quiet(n=streaming.Count())(horizon=9, over=over)
    for give in (
        lambda: count.update(many),
        lambda: count.steps([many]),
        lambda: count.steps([many // 4] * 4),
    ):
        with pytest.raises(HorizonError, match="integers of 64 bits"):
            for _ in range(9):
                give()
    assert 2**27 < count.shared.reach(1) <= 2**28
    assert (np.abs(count._stream_state.open) < 2**62).all()
    count.update(1)  # nothing was lost, and smaller batches go on
    assert count.release().estimate >= many


def test_a_batch_without_a_number_is_said_and_stops_nothing(caplog):
    stream = quiet(s=streaming.Sum(1.0))()
    stream.update(["1.5", "secret"])
    assert "s: no record of a batch is a number" in caplog.text and "secret" not in caplog.text
    assert stream.release().estimate == 0 and stream.diagnostics() == {"s: not finite": 2}


def test_a_mapping_counts_its_records():
    count = quiet(n=streaming.Count())()
    count.update({"id": [1, 2, 3], "x": np.zeros(3)})
    assert count.release().estimate == 3


def test_time_may_not_go_back():
    count = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=9)
    count.release(5)
    count.release()
    with pytest.raises(ValueError, match="went back"):
        count.release(4)
    with pytest.raises(ValueError, match="all times as text"):
        count.release("2013")
    with pytest.raises(ValueError, match="went back"):
        count.steps([1, 1], times=[7, 6])
    with pytest.raises(ValueError, match="finite number"):
        count.release(math.nan)
    assert count.step == 2


def test_batches_are_added_once():
    count = quiet(count=streaming.Count())(horizon=9)
    assert count.update(3, batch_id="a") and not count.update(3, batch_id="a")
    with pytest.raises(ValueError, match="which is open"):
        count.steps([3], batch_ids=["a"])
    first = count.release()
    again = count.steps([3, 4], batch_ids=["a", "b"])
    assert bytes_of(again[0]) == bytes_of(first) and again[1].estimate == 7 and count.step == 2
    with pytest.raises(ValueError, match="twice"):
        count.steps([3, 4], batch_ids=["c", "c"])


@pytest.mark.slow
def test_units_are_held_to_their_participation():
    count = quiet(count=streaming.Count())(participation=MinSep(2, 2), per_step=2)
    feed = ["a", "a", "a", "b"]
    assert [count.steps([feed], unit_ids=[feed])[0].estimate for _ in range(6)] == [3, 3, 6, 6, 6, 6]
    reasons = count.diagnostics()
    assert reasons["of units that took part as often as they may"] == 12
    assert reasons["of units that took part too few steps ago"] == 4
    assert reasons["beyond those of one unit that count in a step"] == 2


def test_a_unit_is_counted_once_in_a_step_whatever_the_update_it_comes_in():
    count = quiet(count=streaming.Count())(participation=Single())
    for _ in range(3):
        count.update(["x", "y"], unit_ids=np.array([7, 7]))
    assert count.release().estimate == 1
    count.update(1, unit_ids=["7"])  # text is another unit
    assert count.release().estimate == 2


def test_missing_and_unwanted_unit_ids_are_refused():
    by_unit = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4, participation=Single())
    with pytest.raises(ValueError, match="give one id a record"):
        by_unit.update(["a"])
    with pytest.raises(ValueError, match="2 unit_ids for 1 records"):
        by_unit.update(["a"], unit_ids=["a", "b"])
    with pytest.raises(ValueError, match="participation=Single"):
        streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4).update(["a"], unit_ids=["a"])
    assert by_unit.release().step == 0


@pytest.mark.parametrize(
    ("promise", "error", "words"),
    [
        ({}, ValueError, "give epsilon"),
        ({"epsilon": 0.0}, ValueError, "epsilon=0.0"),
        ({"epsilon": -1.0}, ValueError, "epsilon=-1.0"),
        ({"epsilon": 1.0, "delta": 0.0}, ValueError, "delta=0.0"),
        ({"epsilon": 1.0, "horizon": 0}, ValueError, "horizon=0"),
        ({"epsilon": 1.0, "level": 1.0}, ValueError, "level=1.0"),
        ({"epsilon": 1.0, "per_step": 2}, ValueError, "without participation"),
        ({"epsilon": 1.0, "over": 5}, ValueError, "over=5"),
        ({"epsilon": 1.0, "weights": {"n": 1.0}}, ValueError, "name each"),
        ({"epsilon": 1.0, "weights": {"count": 0.0}}, ValueError, "weights"),
        ({"epsilon": 1.0, "adjacency": "add_or_remove"}, ValueError, "add_or_remove"),
        ({"epsilon": 1.0, "participation": FullBatch()}, UnsupportedError, "Bound it"),
        ({"epsilon": 1.0, "participation": MinSep(24)}, UnsupportedError, "Bound it"),
        ({"epsilon": 1.0, "participation": Patterns([[0]]), "horizon": 9}, UnsupportedError, "Take MinSep"),
    ],
)
def test_promises_that_cannot_be_kept_are_refused(promise, error, words):
    with pytest.raises(error, match=words):
        streaming.Stream(streaming.Count(), **promise)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: streaming.Sum(math.inf), "Without a bound"),
        (lambda: streaming.Sum(0.0), "bound=0.0"),
        (lambda: streaming.Mean(1.0, 1.0), "two finite numbers"),
        (lambda: streaming.Mean(-math.inf, 1.0), "two finite numbers"),
        (lambda: streaming.Histogram([]), "at least one"),
        (lambda: streaming.Histogram(["a", "a"]), "distinct"),
        (lambda: streaming.SlidingWindow(0), "width=0"),
        (lambda: streaming.Sum(10**400), "bound lies beyond the range"),
        (lambda: streaming.Mean(0, 10**400), "two finite numbers"),
        (lambda: streaming.Mean(-TOP, TOP), "difference finite"),
        (lambda: streaming.Distribution([0.0]), "two increasing"),
        (lambda: streaming.Distribution([1.0, 1.0]), "two increasing"),
        (lambda: streaming.Distribution([1, 0]), "two increasing"),
        (lambda: streaming.Distribution([0.0, math.inf]), "edges"),
        (lambda: streaming.Quantiles([0, 1], [0.0]), "strictly between"),
        (lambda: streaming.Quantiles([0, 1], [1.0]), "strictly between"),
        *((lambda b=b: streaming.Stream(streaming.Sum(b), epsilon=1.0, horizon=4), "grid") for b in BOUNDS),
    ],
)
def test_bad_statistics_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("statistic", "batch", "words"),
    [
        (streaming.Sum(1.0, 2), np.ones((3, 1)), r"shape \(3, 1\); \(records, 2\) is needed"),
        (streaming.Sum(1.0), np.array(["a"]), "real numbers of shape"),
        (streaming.Sum(1.0), "a", "one entry a record"),
        (streaming.Mean(0, 1), np.ones((3, 1)), "shape"),
        (streaming.Histogram([1]), np.ones((3, 1), int), "shape"),
        (streaming.Count(), {"a": [1, 2], "b": [1]}, "no common length"),
        (streaming.Count(), {"a": 5}, "or their number"),
        (streaming.Count(), 1.5, "or their number"),
        (streaming.Count(), "abc", "or their number"),
        (streaming.Count(), -1, "batch=-1"),
    ],
)
@pytest.mark.few(4)
def test_bad_batches_leave_the_stream_as_it_was(statistic, batch, words):
    stream = streaming.Stream({"s": statistic}, epsilon=1.0, horizon=4)
    with pytest.raises(ValueError, match=words):
        stream.update(batch)
    assert not stream._stream_state.open.any() and stream.release().step == 0


def own(participation=None, batch=1, sampling=None):
    sampling = sampling or External(participation or MinSep(2, 2), batch, steps=5)
    return an.calibrate(an.strategies.Identity(5), sampling=sampling, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("promise", "error", "words"),
    [
        ({}, MismatchError, "give the same"),
        ({"participation": Single()}, MismatchError, "is for MinSep"),
        ({"epsilon": 1.0}, ValueError, "either epsilon"),
        ({"mechanism": own(Single(), 2)}, MismatchError, "batch_size=2"),
        ({"mechanism": own(sampling=an.sampling.FixedOrder(10, 2, steps=5))}, MismatchError, "FixedOrder"),
    ],
)
def test_a_mechanism_of_ones_own(promise, error, words):
    mechanism = own()
    count = streaming.Stream(streaming.Count(), mechanism=mechanism, participation=MinSep(2, 2))
    expected = mechanism.noise_std * math.sqrt(5)
    assert count.mechanism is mechanism
    assert math.isclose(count.standard_deviations(4)["count"], expected, rel_tol=1e-5)
    with pytest.raises(error, match=words):
        streaming.Stream(streaming.Count(), **{"mechanism": mechanism, **promise})


def test_a_stream_cannot_be_copied_or_used_in_a_fork():
    count = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(count)
    child = os.fork()
    if child == 0:
        try:
            count.release()
        except GuaranteeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    count.close()
    with pytest.raises(GuaranteeError, match="closed"):
        count.release()


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.slow
def test_threads_wait_for_one_another(in_file, tmp_path):
    stream = quiet(count=streaming.Count())(horizon=100, state=tmp_path / "s" if in_file else None)
    barrier, faults = threading.Barrier(4), []

    def work():
        try:
            barrier.wait()
            for _ in range(10):
                stream.update(3)
                stream.release()
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert stream.step == 40 and stream.get().estimate == 120
    assert [release.step for release in stream.releases()] == list(range(40))


@pytest.mark.parametrize("inside", ["_save", "_state.append"])
@pytest.mark.parametrize("act", ["update", "release", "steps"])
@pytest.mark.few(4)
def test_a_change_that_was_interrupted_is_never_repeated_without_a_state(monkeypatch, act, inside):
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=5)
    stream.update(range(3))
    first = stream.release()

    def interrupted(*_):
        raise KeyboardInterrupt

    calls = {
        "update": lambda: stream.update([1]),
        "release": stream.release,
        "steps": lambda: stream.steps([[1]]),
    }
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_save", interrupted)
        if inside == "_state.append":  # the step is over, and its release is not kept
            patch.setattr(stream._state, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calls[act]()
    for again in calls.values():
        with pytest.raises(GuaranteeError, match="count records twice"):
            again()
    assert bytes_of(next(stream.releases())) == bytes_of(first)
    assert [made.step for made in stream.band()] == [made.step for made in stream.releases()]


def test_a_callers_rule_for_floats_makes_no_content_an_error():
    stream = streaming.Stream(streaming.Sum(1.0), epsilon=1.0, horizon=2)
    with np.errstate(all="raise"):
        assert stream.update([1e-200])
    assert stream.release().step == 0
