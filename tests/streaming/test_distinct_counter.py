"""Units of the last steps, each once: what one unit changes, and that no order or company changes it."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anechoic as an
from anechoic import streaming
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.participation import MinSep, Single
from anechoic.sampling import External
from anechoic.streaming.mechanisms import planned_mechanism
from tests.floats import same_bits
from tests.streaming.test_stream import KEY, NoNoise

STEPS = 6


@cache
def planned(epsilon=1.0):
    """The mechanism that such a stream plans."""
    made = {"over": streaming.Running(), "participation": Single(), "buffered": True, "unit": "unit"}
    return planned_mechanism(horizon=STEPS, epsilon=epsilon, delta=1e-6, dimension=1, **made)


def sums_of(feed, within, visits, mechanism=None):
    """Sums of every step, int64, and the stream, for units by step."""
    count = streaming.Count(within=within, visits=visits)
    stream = NoNoise(count, mechanism=mechanism or planned())
    stream.steps(feed, unit_ids=feed)
    return np.array([stream._row(step)[0] for step in range(STEPS)]), stream


def there(seen, within, visits):
    """By the definition: at which steps a unit is counted that has records at the steps `seen`."""
    window = np.array([any(t - within < s <= t for s in seen) for t in range(STEPS)])
    number = np.cumsum(window & ~np.append(False, window[:-1]))  # of the visit that a step is in
    return window & (number <= visits)


@pytest.mark.slow
@pytest.mark.parametrize(("within", "visits"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (7, 1)])
def test_all_that_one_unit_can_do_is_within_the_sensitivity(within, visits):
    """Over all neighbouring inputs: every set of steps in which a unit may have records."""
    root = planned().strategy.to_dense()
    clip, worst = 2.0 ** planned().grid_bits, 0.0
    others = [["a", "b"], ["b"], [], ["c"], ["a"], []]
    without, _ = sums_of(others, within, visits)
    for size in range(STEPS + 1):
        for seen in itertools.combinations(range(STEPS), size):
            feed = [[*units, *["greedy"] * 2 * (t in seen)] for t, units in enumerate(others)]
            with_unit, stream = sums_of(feed, within, visits)
            (one,) = stream.shared.units.values()
            assert np.array_equal(np.cumsum(with_unit - without), one * there(seen, within, visits))
            worst = max(worst, float(np.linalg.norm(root @ (with_unit - without))) / clip)
    allowed = planned().sensitivity.value
    assert worst <= allowed
    assert worst > 0.5 * allowed  # something is at stake


FALLING = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(lambda c: np.sort([1.0, *c])[::-1])


@settings(max_examples=15, deadline=None)
@given(coefficients=FALLING, data=st.data())
def test_coming_and_leaving_costs_no_more_than_as_many_columns(coefficients, data):
    """The lemma, by brute force: alternating signs at any steps, falling coefficients."""
    n = len(coefficients)
    strategy = an.strategies.BandedToeplitz(n, coefficients)
    dense = strategy.to_dense()
    single = an.sensitivity(strategy, Single()).value
    steps = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    signs = (-1.0) ** np.arange(len(steps))
    assert np.linalg.norm(dense[:, steps] @ signs) <= math.sqrt(len(steps)) * single * (1 + 1e-12)


def test_other_coefficients_would_cost_more_and_are_refused():
    strategy = an.strategies.BandedToeplitz(6, [1.0, -1.0])
    moved = np.linalg.norm(strategy.to_dense()[:, :2] @ [1.0, -1.0])
    assert moved > math.sqrt(2) * an.sensitivity(strategy, Single()).value
    for kind, participation in (
        (strategy, Single()),
        (an.strategies.Tree(6), Single()),
        (an.strategies.Identity(6), MinSep(2, 2)),
    ):
        mechanism = an.calibrate(kind, sampling=External(participation, 1, steps=6), epsilon=1.0, delta=1e-6)
        with pytest.raises((UnsupportedError, ValueError), match="Single|participation"):
            streaming.Stream(streaming.Count(within=2), mechanism=mechanism)


@settings(max_examples=8, deadline=None)
@given(
    feed=st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=STEPS, max_size=STEPS),
    within=st.integers(1, 7),
    visits=st.integers(1, 3),
)
def test_figures_are_the_numbers_of_units_of_the_window(feed, within, visits):
    _, stream = sums_of(feed, within, visits)
    seen = {unit: [t for t in range(STEPS) if unit in feed[t]] for unit in "abcd"}
    true = np.sum([there(steps, within, visits) for steps in seen.values()], axis=0)
    assert np.allclose([made.estimate for made in stream.releases()], true)
    late = sum(not there(seen[unit], within, visits)[t] for t, units in enumerate(feed) for unit in units)
    assert stream.diagnostics().get("of units that came as often as they may", 0) == late


@pytest.mark.slow
def test_opened_again_after_every_call_it_goes_on(tmp_path):
    how = {"mechanism": planned(), "key": KEY, "state": tmp_path / "s"}
    feed = [["a", "b"], ["a", None], [], ["b"], ["c", "a"], []]
    for step, units in enumerate(feed):
        with NoNoise(streaming.Count(within=2, visits=2), **how) as stream:
            assert stream.update(units, units, batch_id=f"{step}")
            assert not stream.update(units, units, batch_id=f"{step}")
        with NoNoise(streaming.Count(within=2, visits=2), **how) as stream:
            stream.release()
            found = [one.estimate for one in stream.releases()]
    assert found == pytest.approx([2, 2, 1, 1, 3, 2])
    assert stream.diagnostics() == {"without an id that can be read": 1}
    assert same_bits([one.estimate for one in streaming.read_releases(tmp_path / "s")], found)
    with pytest.raises(MismatchError):
        streaming.Stream(streaming.Count(within=2, visits=3), **how)


def test_sums_made_elsewhere_count_units_as_records_do():
    feed = [["a", "b"], ["a", "a"], [], ["b", "c"], ["c"], []]
    stream = NoNoise(streaming.Count(within=2), mechanism=planned())

    def made_for(stream):
        spec = stream.accumulator_spec()
        return [streaming.Accumulator(spec, step).add(units, units) for step, units in enumerate(feed)]

    made = made_for(stream)
    assert stream.add_sums(made, batch_id="all") and not stream.add_sums(made, batch_id="all")
    found = [stream.release().estimate for _ in feed]
    assert found == pytest.approx([2, 2, 1, 1, 1, 1])  # b came once before
    assert stream.diagnostics() == {
        "of units that came as often as they may": 1,
        "beyond those of one unit that count in a step": 1,
    }
    late = NoNoise(streaming.Count(within=2), mechanism=planned())
    made = made_for(late)
    late.add_sums(made[3], batch_id="first")
    late.add_sums(made[0], batch_id="second")
    assert late.diagnostics() == {"of units that have records of later steps": 1}
    assert [late.release().estimate for _ in feed] == pytest.approx([1, 1, 0, 2, 2, 0])


def test_a_count_of_who_is_there_stands_alone():
    count = streaming.Count(within=3)
    for how in (
        {"participation": Single()},
        {"over": streaming.SlidingWindow(3)},
        {"by": ("x", ["a"])},
        {"per_step": 2},
    ):
        with pytest.raises(ValueError, match="Count|within|participation"):
            streaming.Stream(count, epsilon=1.0, horizon=6, **how)
    with pytest.raises(ValueError, match="a stream of its own"):
        streaming.Stream({"a": count, "b": streaming.Count()}, epsilon=1.0, horizon=6)
    with pytest.raises(ValueError, match="Take longer steps"):
        streaming.Stream(streaming.Count(within=2**20 + 1), epsilon=1.0, horizon=6)
    for wrong in ({"within": 0}, {"within": 2, "visits": 0}, {"visits": 2}, {"within": 1.5}):
        with pytest.raises(ValueError, match="within|visits"):
            streaming.Count(**wrong)
    with pytest.raises(ValueError, match="unit_ids=None"):
        streaming.Stream(count, mechanism=planned()).update(["a"])


def test_its_error_and_its_statement_say_what_visits_cost():
    one, two = (streaming.Stream(streaming.Count(within=3, visits=v), mechanism=planned()) for v in (1, 2))
    plain = streaming.Stream(streaming.Count(), mechanism=planned())
    error = [made.standard_deviations(5)["count"] for made in (plain, one, two)]
    assert error == pytest.approx([error[0], error[0] * math.sqrt(2), error[0] * 2], rel=1e-4)
    said = streaming.statement(two)
    assert "in at most 2 visits, each until 3 steps have passed" in said
    assert planned().participation.describe() not in said
    endless = streaming.Stream(streaming.Count(within=3), epsilon=1.0)
    assert endless.mechanism.steps == 2**40 and endless.update(["a"], ["a"])


def test_no_sum_of_those_who_leave_is_too_large_for_its_integers():
    stream = NoNoise(streaming.Count(within=2), mechanism=planned())
    (one,) = stream.shared.units.values()
    assert stream.shared.reach(7) >= 14 * one
    before = np.abs(stream._stream_state.open).sum()
    stream.update(["a", "b"], ["a", "b"])
    moved = np.abs(stream._stream_state.open).sum() + sum(
        np.abs(s).sum() for s in stream._stream_state.ahead.values()
    )
    assert moved - before <= stream.shared.reach(2)
