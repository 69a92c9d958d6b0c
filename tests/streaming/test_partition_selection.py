"""Categories that nobody listed: who counts, what is released, and what one unit can change of it."""

import json
import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from anechoic import streaming
from anechoic.budget import BudgetBook
from anechoic.errors import CheckpointError, GuaranteeError, HorizonError, MismatchError, UnsupportedError
from anechoic.participation import FullBatch, MinSep, OncePerEpoch, Single
from anechoic.streaming import PartitionSelectionHistogram
from tests.floats import same_bits
from tests.streaming.released import bytes_of

KEY = bytes(range(32))
STEPS = 6
PROMISE = {"epsilon": 1.0, "horizon": STEPS, "key": KEY}
PARTICIPATIONS = [Single(), MinSep(2, 2), OncePerEpoch(3), FullBatch()]


def feed(histogram, records, steps=STEPS):
    """Records (step, unit, category), and a release after each step; private totals after each, by name."""
    found = []
    for step in range(steps):
        own = [(unit, category) for at, unit, category in records if at == step]
        for unit, category in own:  # of several in one batch a hash would say which are first
            histogram.update([category], [unit] if histogram.by_unit else None)
        histogram.release()
        found.append(dict(zip(histogram._noise.names, histogram._stream_state.total.tolist(), strict=True)))
    return found


def drawn(rng, records=60):
    return [(int(rng.integers(STEPS)), int(rng.integers(4)), f"c{rng.integers(5)}") for _ in range(records)]


def admitted(records, participation, most):
    """(step, unit, category) that count, by the rule as it is said: slow and plain."""
    steps, found = {}, []
    for step, unit, category in sorted(records, key=lambda record: record[0]):
        own = steps.setdefault((unit, category), set())
        begun = [pair for pair in steps if pair[0] == unit and steps[pair]]
        if not own and len(begun) >= most:
            continue
        if step not in own and participation.allows({*own, step}, STEPS):
            own.add(step)
            found.append((step, unit, category))
    return found


@pytest.mark.parametrize(("participation", "most"), [(p, k) for p in PARTICIPATIONS for k in (1, 3)])
@pytest.mark.few(2)
def test_totals_are_those_of_the_rule_and_noise_that_is_the_same_for_all_data(participation, most):
    options = {**PROMISE, "participation": participation, "categories_per_unit": most}
    records = drawn(np.random.default_rng(most))
    histogram = PartitionSelectionHistogram(**options)
    found = feed(histogram, records)
    counting = admitted(records, participation, most)
    # everybody is in every category at step 0, so that the noise is drawn from there on
    other = PartitionSelectionHistogram(**{**options, "categories_per_unit": 1, "participation": Single()})
    pairs = [(0, 100 + i, f"c{i}") for i in range(5)]
    noise = feed(other, pairs)
    assert histogram.cost.mechanism.noise_std >= other.cost.mechanism.noise_std
    for step, totals in enumerate(found):
        for name, total in totals.items():
            seen = sum(at <= step and category == name for at, _, category in counting)
            if participation == Single() and most == 1:
                assert total == noise[step][name] + (seen - 1) * histogram._one
            # the rest of the total is noise, and no larger than that
            assert abs(total / histogram._one - seen) < 8 * histogram.standard_error(step)
        assert set(totals) == {category for at, _, category in counting if at <= step}


@pytest.fixture(autouse=True)
def keeps_totals(monkeypatch):
    """`seen` of a histogram: the totals of each category after each step, in steps before it was seen too."""
    release = PartitionSelectionHistogram.release

    def kept(self, time=None):
        made = release(self, time)
        seen = self.__dict__.setdefault("seen", {})
        for name, total in zip(self._noise.names, self._stream_state.total.tolist(), strict=True):
            seen.setdefault(name, [0] * made.step).append(total)
        return made

    monkeypatch.setattr(PartitionSelectionHistogram, "release", kept)


# -- the choice of categories ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("horizon", "participation", "most", "adjacency"),
    [
        (1, None, 1, "zero_out"),
        (2, None, 1, "zero_out"),
        (4, None, 1, "replace_one"),
        (4, Single(), 5, "zero_out"),
        (4, MinSep(2, 2), 2, "replace_one"),
        (None, None, 1, "zero_out"),
        (3, FullBatch(), 1, "zero_out"),
    ],
)
@pytest.mark.few(2)
def test_a_category_of_one_unit_alone_is_released_with_half_of_delta_at_most(
    horizon, participation, most, adjacency
):
    """By the exact law of the noise: numbers that a unit adds are as large, and as early, as they can be."""
    delta = 0.2
    how = {"horizon": horizon, "participation": participation, "categories_per_unit": most}
    histogram = PartitionSelectionHistogram(epsilon=1.0, delta=delta, adjacency=adjacency, **how)
    steps = horizon or 5
    scale = 2.0**histogram.cost.mechanism.grid_bits / histogram._one
    strategy = histogram.cost.mechanism.strategy.truncate(steps)
    rows = np.tril(np.ones((steps, steps))) @ strategy.correlate(np.eye(strategy.rows))
    covariance = (scale * histogram.cost.mechanism.noise_std) ** 2 * rows @ rows.T
    assert np.sqrt(np.diag(covariance)) == pytest.approx([histogram.standard_error(t) for t in range(steps)])
    own = [histogram.cost.mechanism.participation.max_participations_in(t + 1) for t in range(steps)]
    room = [histogram.threshold(t) - own[t] for t in range(steps)]
    stays = multivariate_normal.cdf(room, cov=covariance, allow_singular=True, rng=np.random.default_rng(0))
    pairs = most * (2 if adjacency == "replace_one" else 1)
    assert (1 - stays) * pairs <= delta / 2 * (1 + 1e-3)
    if horizon == 1:
        assert (1 - stays) * pairs == pytest.approx(delta / 2, rel=1e-3)
    if horizon:
        assert (1 - stays) * pairs > delta / 6  # no more than adding up four probabilities costs


@pytest.mark.slow
def test_no_event_near_the_threshold_tells_more_than_epsilon_and_delta():
    """An attack: is a category released, and how large is it, with and without one more unit in it."""
    epsilon, delta, repeats = 1.0, 0.05, 1200
    figures = []
    for size in (14, 15):
        histogram = PartitionSelectionHistogram(epsilon=epsilon, delta=delta, horizon=2)
        histogram.update([f"{i}" for i in range(repeats) for _ in range(size)])
        histogram.release()
        named = histogram.release().named()
        figures.append(np.array([named.get(f"{i}", -math.inf) for i in range(repeats)]))
    for low in [-1e9, *np.quantile(figures[0], [0.2, 0.5, 0.8, 0.95])]:
        shares = [np.mean(found > low) for found in figures]
        margin = 4 * math.sqrt(0.5 / repeats)
        for one, other in (shares, shares[::-1], [1 - s for s in shares], [1 - s for s in shares[::-1]]):
            assert one <= math.exp(epsilon) * other + delta + margin
    assert shares[1] != shares[0]


@pytest.mark.slow
def test_the_noise_of_categories_has_the_law_that_errors_state_and_is_independent():
    histogram = PartitionSelectionHistogram(epsilon=0.5, delta=1e-2, horizon=3)
    histogram.update([f"{i}" for i in range(500)])
    for _ in range(3):
        histogram.release()
    noise = np.array([np.array(totals) / histogram._one - 1 for totals in histogram.seen.values()])
    errors = [histogram.standard_error(step) for step in range(3)]
    assert np.std(noise, axis=0) == pytest.approx(errors, rel=0.14)
    assert abs(np.corrcoef(noise[::2, 2], noise[1::2, 2])[0, 1]) < 0.26


# -- the noise of a category follows from the key and its name ---------------------------------------


def test_order_company_and_time_of_appearance_change_no_bit_of_a_category():
    one = PartitionSelectionHistogram(**PROMISE)
    other = PartitionSelectionHistogram(**PROMISE)
    feed(one, [(0, 0, "a"), (0, 0, "b"), (2, 0, "late"), (3, 0, "late")])
    feed(other, [(0, 0, "late"), (0, 0, "z"), (0, 0, "b"), (0, 0, "a"), (2, 0, "late"), (3, 0, "late")])
    for name in ("a", "b"):
        assert one.seen[name] == other.seen[name]
    assert [x - y for x, y in zip(other.seen["late"], one.seen["late"], strict=True)][2:] == [one._one] * 4
    assert "z" not in one._noise.place and one._noise.step == STEPS


def test_names_of_one_release_stand_in_their_own_order():
    found = []
    for order in (["b", "a", "c"], ["c", "b", "a"]):
        histogram = PartitionSelectionHistogram(epsilon=5.0, horizon=2, key=KEY)
        histogram.update([name for name in order for _ in range(300)])
        histogram.release()
        histogram.update(["0"] * 300)
        found.append(histogram.release())
    assert same_bits(found[0]["units"].value, found[1]["units"].value)
    assert [list(release.named()) for release in found] == [["a", "b", "c", "0"]] * 2


def test_a_category_stays_and_its_first_figure_is_of_all_steps_so_far():
    histogram = PartitionSelectionHistogram(epsilon=2.0, horizon=5, key=KEY)
    size = int(histogram.threshold(0) / 2)
    shown = []
    for _ in range(5):
        histogram.update(["slow"] * size + ["rare"])
        shown.append(histogram.release().named())
    begun = next(step for step, named in enumerate(shown) if named)
    assert 0 < begun < 4 and all(list(named) == ["slow"] for named in shown[begun:])
    for step in range(begun, 5):
        assert shown[step]["slow"] == pytest.approx((step + 1) * size, abs=5 * histogram.standard_error(4))


# -- state, and what is refused ----------------------------------------------------------------------


def added(histogram, step):
    names = ["a"] * 40 + ["b"] * (30 * step) + [f"rare {step}"]
    return histogram.update(names, unit_ids=list(range(len(names))), batch_id=f"{step}")


@pytest.mark.slow
def test_opened_again_after_every_call_it_goes_on_bit_for_bit(tmp_path):
    options = {"epsilon": 3.0, "horizon": 5, "participation": MinSep(1, 5), "key": KEY}
    whole = PartitionSelectionHistogram(**options)
    for step in range(5):
        added(whole, step)
        whole.release(step)
        with PartitionSelectionHistogram(**options, state=tmp_path / "s") as histogram:
            assert histogram.step == step and added(histogram, step)
        with PartitionSelectionHistogram(**options, state=tmp_path / "s") as histogram:
            assert not added(histogram, step)
            histogram.release(step)
    with PartitionSelectionHistogram(**options, state=tmp_path / "s") as again:
        assert [*map(bytes_of, again.releases())] == [*map(bytes_of, whole.releases())]
        assert [r.labels for r in again.releases()] == [r.labels for r in whole.releases()]
        assert bytes_of(again.get()) == bytes_of(whole.get()) and "b" in again.get().named()
        assert again.diagnostics() == whole.diagnostics()
        with pytest.raises(HorizonError):
            again.update(["a"], unit_ids=[1])
    assert b"units" in (tmp_path / "s").read_bytes()
    with pytest.raises(MismatchError):
        PartitionSelectionHistogram(**{**options, "epsilon": 2.0}, state=tmp_path / "s")
    with pytest.raises((CheckpointError, MismatchError)):
        streaming.Stream(streaming.Count(), epsilon=3.0, horizon=5, state=tmp_path / "s", key=KEY)
    with pytest.raises(CheckpointError):
        streaming.read_releases(tmp_path / "s")


def test_every_opening_has_noise_of_its_own(salted, tmp_path):
    found = []
    for _ in range(2):
        histogram = PartitionSelectionHistogram(**PROMISE)
        found.append(feed(histogram, [(0, 0, "a")])[0]["a"])
    assert found[0] != found[1]
    with PartitionSelectionHistogram(**PROMISE, state=tmp_path / "s") as begun:
        begun.update(["a"])
        begun.release()
        before = begun.seen["a"]
    with PartitionSelectionHistogram(**PROMISE, state=tmp_path / "s") as again:
        again.release()
        assert again.seen["a"][1] != before[0]
        again.update(["b"])  # rows of step 0 are those of the opening that held then
        assert again._noise._openings[0][0] == 0 and len(again._noise._openings) == 2


def test_what_is_no_category_is_left_out_by_itself():
    histogram = PartitionSelectionHistogram("c", epsilon=1.0, horizon=2)
    odd = [None, 1.5, math.nan, True, ["a"], {"a"}, b"a", 2**70]
    histogram.update({"c": [7, "7", "7\0", np.int64(7), np.str_("7"), "\ud800", "", *odd]})
    assert histogram._noise.names == ["7", "\ud800", ""] and histogram.diagnostics() == {
        "without a category": len(odd)
    }
    assert (histogram._stream_state.open // histogram._one).tolist() == [5, 1, 1]
    assert json.loads(histogram._noise.saved()[3]) == [histogram._noise.names, {}]


def made(column=None, **more):
    return PartitionSelectionHistogram(column, **{"epsilon": 1.0, "horizon": 1, **more})


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda: made(categories_per_unit=2), ValueError, "every record is a unit of its own, in one"),
        (lambda: made(horizon=None, participation=FullBatch()), UnsupportedError, "infinitely much"),
        (lambda: made(delta=0.0), ValueError, "delta"),
        (lambda: made().update(["a"], unit_ids=[1]), ValueError, "a unit of its own"),
        (lambda: made(participation=Single()).update(["a"]), ValueError, "unit_ids=None"),
        (
            lambda: made(participation=Single()).update(["a", "b"], unit_ids=[1]),
            ValueError,
            "1 unit_ids for 2",
        ),
        (lambda: made().update("abc"), ValueError, "a list with one entry a record"),
        (lambda: made("c").update({"d": ["a"]}), ValueError, "no column 'c'"),
    ],
)
def test_wrong_arguments_are_refused(act, error, words):
    with pytest.raises(error, match=words):
        act()


def test_the_statement_says_what_delta_is_made_of():
    histogram = PartitionSelectionHistogram(
        epsilon=1.0, delta=1e-5, horizon=9, participation=Single(), categories_per_unit=3, unit="patient"
    )
    said = " ".join(streaming.statement(histogram).split())
    assert "(1.0000, 1e-05)-differential privacy of all 9 releases" in said
    assert "5e-06 is the noise's, and 5e-06 bounds" in said and "one patient: in at most 3 categories" in said
    assert f"{histogram.threshold(8):.4g} at step 8" in said and "Enforced" in said
    assert histogram.cost.mechanism.epsilon(delta=0.5e-5) <= 1.0
    assert (histogram.cost.epsilon(), histogram.cost.delta) == (pytest.approx(1.0), 1e-5)


def test_every_form_states_all_of_delta_and_no_curve_without_the_choice():
    """An attack: a form from the noise alone would state half of delta, and a curve that is not proved."""
    histogram = PartitionSelectionHistogram(epsilon=1.0, delta=1e-2, horizon=9)
    record = json.loads(streaming.statement(histogram, "json"))
    stated = record["guarantee"]
    assert stated["delta"] == 1e-2 and stated["mu"] is None and "rho" not in stated
    noise = histogram.cost.mechanism
    for epsilon, delta in stated["profile"]:
        assert epsilon >= noise.epsilon(delta - 0.5e-2) * (1 - 1e-12)
    sound = max(0.0, 1 - 2 * (1 - 1e-2) / (1 + math.e)) / 2 + 0.5  # what (1, 1e-2) permits
    assert record["attacker"]["membership"][0]["right"] <= sound + 1e-9
    for format in ("text", "markdown", "html"):
        said = streaming.statement(histogram, format)
        assert "0.01" in said and "0.005)-differential" not in said
    assert "choice of categories" in " ".join(streaming.statement(histogram).split())


def test_a_book_is_charged_for_the_choice_too(tmp_path):
    book = BudgetBook(tmp_path / "book.db", "visits")
    promise = {"epsilon": 1.0, "delta": 1e-6, "horizon": 4, "unit": "person", "participation": Single()}
    book.grant(epsilon=1.0, delta=5e-7, unit="person")  # what its noise alone costs
    with pytest.raises(GuaranteeError, match=r"What would cover it: grant\(.*amplified="):
        PartitionSelectionHistogram(**promise, book=book)
    with pytest.raises(MismatchError, match="one day"):
        PartitionSelectionHistogram(**{**promise, "unit": "day"}, book=book)
    histogram = PartitionSelectionHistogram(**promise)
    assert not hasattr(histogram, "mechanism")  # that of its noise alone is not what it spends
    with pytest.raises(ValueError, match="take book="):
        book.reserve(histogram)
    book.grant(epsilon=1.0, delta=1e-6, unit="person", amplified=(0.0, 5e-7))
    path, state = tmp_path / "open.db", {"state": tmp_path / "open.db", "key": KEY}
    for _ in range(2):  # opened again it costs nothing
        with PartitionSelectionHistogram(**promise, **state, book=book) as histogram:
            histogram.release()
    [one] = book.account().live
    assert one.status == "spent" and one.charge.delta == 5e-7 and path.exists()
    assert one.charge.mu == pytest.approx(histogram.cost.mechanism.gdp())
    with pytest.raises(GuaranteeError, match="does not cover"):
        book.reserve(histogram.cost)
