"""A given random_state: no two fits share noise, and it is not in what is published."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="anechoic[sklearn] installs it")

from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import anechoic.linear
from anechoic.errors import UnsupportedError
from anechoic.linear import LinearSVC, LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from anechoic.linear.keys import keys_of
from anechoic.linear.moments import MomentSums
from anechoic.linear.scaling import FeatureScale
from anechoic.mechanism.calibrate import calibrate
from anechoic.noise.grid import Grid, largest_square
from anechoic.participation import MinSep
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.units.ownership import Units
from tests.floats import same_bits
from tests.marks import mostly_slow

KEY = bytes(range(32))
COUNT = 40
GIVEN = calibrate(
    Identity(2), sampling=FixedOrder(COUNT, 20, epochs=1), epsilon=2, delta=1e-3, clip_norm=0.3, grid_bits=20
)
PATIENTS = replace(GIVEN, sampling=FixedOrder(COUNT // 2, 10, epochs=1), unit="patient")
#: Another value of every parameter there is.
OTHERS = {
    "C": 2.0,
    "adjacency": "replace_one",
    "alpha": 0.5,
    "batch_size": 20,
    "classes": [0, 1, 2],
    "clip_norm": 0.11,
    "delta": 2e-3,
    "epsilon": 2.5,
    "feature_bounds": (-1, 1.5),
    "fit_intercept": False,
    "loss": None,
    "loss_width": 0.2,
    "max_iter": 3,
    "mechanism": "identity",
    "momentum": 0.4,
    "participation": MinSep(3),
    "sampling": "fixed_order",
    "steps": 7,
    "target_bounds": (-2, 1),
}
LOSSES = {LinearSVC: "hinge", SGDClassifier: "hinge", SGDRegressor: "huber"}


class Stopped(Exception):
    pass


@pytest.fixture
def noise_key(monkeypatch):
    """noise_key(model, X, y, …): what the noise of its fit would be drawn with; nothing is released."""
    seen = []

    def noted(*given):
        seen.append(keys_of(*given).noise)
        raise Stopped

    monkeypatch.setattr("anechoic.linear.privacy.keys_of", noted)

    def of(model, *data, **units):
        with pytest.raises(Stopped):
            model.fit(*data, **units)
        return seen.pop()

    return of


def data(kind, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (COUNT, 3))
    return x, (x[:, 0] > 0).astype(int) if hasattr(kind(), "classes") else x[:, 0] / 2


def made(kind, **options):
    usual = {"epsilon": 2.0, "delta": 1e-3, "feature_bounds": (-1, 1), "random_state": KEY, "max_iter": 2}
    usual |= {"classes": [0, 1]} if hasattr(kind(), "classes") else {"target_bounds": (-1, 1)}
    usual |= {"solver": "descent"} if hasattr(kind(), "solver") else {}
    return kind(**usual | options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", mostly_slow(anechoic.linear.__all__, quick=["SGDRegressor"]))
def test_every_parameter_and_every_entry_of_the_data_changes_the_noise(name, noise_key):
    """The difference of two releases with one noise would be the difference of the data, bare."""
    kind = getattr(anechoic.linear, name)
    x, y = data(kind)
    ids = np.arange(COUNT) // 2

    def one(**options):  # of a mechanism that is given, so that nothing is planned
        return made(kind, **{"mechanism": GIVEN} | options)

    keys = {"as it is": noise_key(one(), x, y), "again": noise_key(one(), x.copy(), y.tolist())}
    assert len(set(keys.values())) == 1
    for parameter in sorted(one().get_params().keys() - {"random_state", "unit", "solver", "book"}):
        value = LOSSES[kind] if parameter == "loss" else OTHERS[parameter]
        keys[parameter] = noise_key(one(**{parameter: value}), x, y)
    if "solver" in one().get_params():
        keys |= {solver: noise_key(made(kind, solver=solver), x, y) for solver in ("descent", "moments")}
    for seed in (bytes(32), 0, 1):
        keys[f"random_state {seed}"] = noise_key(one(random_state=seed), x, y)
    rows, labels = x.copy(), y.copy()
    rows[-1, -1] = np.nextafter(rows[-1, -1], 0)
    labels[-1] = 1 - labels[-1] if kind in (LogisticRegression, LinearSVC, SGDClassifier) else 0.3
    keys["features"], keys["targets"] = noise_key(one(), rows, y), noise_key(one(), x, labels)
    keys["order"] = noise_key(one(), x[::-1], y[::-1])
    keys["columns"] = noise_key(one(), x[:, ::-1], y)
    keys["precision"] = noise_key(one(), x.astype(np.float32), y)
    of_units = one(unit="patient", mechanism=PATIENTS)
    for unit_ids in (ids, np.minimum(np.arange(COUNT), 19), np.arange(COUNT) % 20):
        keys[f"units {unit_ids}"] = noise_key(of_units, x, y, unit_ids=unit_ids)
    for combine in ("mean", "sum"):
        for most in (1, 2):
            units = Units(ids, combine=combine, max_examples=most)
            keys[f"{units}"] = noise_key(of_units, x, y, unit_ids=units)
    assert len(set(keys.values())) == len(keys) - 1, keys


def test_values_that_look_alike_are_told_apart():
    alike = [1, 1.0, True, "1", b"1", None, "None", [1], [[1]], [1, 1], ["1, 1"], "[1]", np.array([1])]
    alike += [np.arange(2000), np.arange(2000) + (np.arange(2000) == 1000), np.array([[1]]), np.float32(1)]
    alike += [np.array(["a", None], object), np.array(["a", "None"], object), np.array([1], "<i4")]
    found = [keys_of(KEY, {"one": value}).noise for value in alike]
    found += [keys_of(KEY, {"one": 1, "other": 1}).noise, keys_of(KEY, {"other": 1, "one": 1}).noise]
    assert len(set(found)) == len(found)
    with pytest.raises(ValueError, match="parameter classes holds something of type object"):
        keys_of(0, {"parameter classes": [object()]})


def test_two_runs_of_partial_fit_share_no_noise(monkeypatch):
    """The rows of later calls cannot be in a key: after one first call two runs would have the same noise."""
    rows, release = [], Grid.release

    def noted(self, total, row, *rest, **more):
        rows.append(np.array(row))
        return release(self, total, row, *rest, **more)

    monkeypatch.setattr(Grid, "release", noted)
    x, y = data(SGDClassifier)
    for _ in range(2):
        made(SGDClassifier, random_state=0, delta=None, steps=2).partial_fit(x, y).partial_fit(-x, y)
    assert len(rows) == 4 and not any(same_bits(rows[i], rows[i + 2]) for i in range(2))
    model = made(SGDClassifier, random_state=0, delta=None, mechanism="identity").partial_fit(x, y)
    assert "random_state" not in model.statement()
    with pytest.raises(ValueError, match="depend on the rows of later calls"):
        made(SGDClassifier).partial_fit(x, y)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", mostly_slow(anechoic.linear.__all__, quick=["SGDClassifier"]))
def test_a_published_model_does_not_hold_its_key(name):
    kind = getattr(anechoic.linear, name)
    x, y = data(kind)
    asked = made(kind, mechanism=GIVEN)
    model = clone(asked).fit(x, y)
    told = (repr, str, lambda one: one._repr_html_(), lambda one: repr(one.get_params()), repr_of_params)
    for shown in (model, asked, make_pipeline(FunctionTransformer(), model)):
        for tell in told:
            said = tell(shown)
            assert "secret" in said and repr(KEY)[2:14] not in said, said
    loaded = pickle.loads(pickle.dumps(model))
    for published in (model, make_pipeline(model), loaded):
        assert KEY not in pickle.dumps(published)
    assert loaded.random_state is None and not same_bits(clone(loaded).fit(x, y).coef_, model.coef_)
    # what is not fitted goes to other processes, and a clone is made in this one: both repeat the fit
    for same in (pickle.loads(pickle.dumps(asked)), clone(model), clone(clone(asked))):
        assert same_bits(same.fit(x, y).coef_, model.coef_) and same.random_state == KEY


def repr_of_params(model):
    return f"{[f'{value}' for value in model.get_params().values()]}"


ODD = [(0, 1e-310), (0, 5e-324), (-1e308, -9.999999999999998e307), (-1.7e308, 1.7e308), (1e308, 1.1e308)]


@pytest.mark.parametrize("bounds", ODD)
@pytest.mark.parametrize("solver", ["moments", "descent"])
def test_bounds_whose_width_or_centre_is_no_number_are_refused(bounds, solver):
    x, y = data(Ridge)
    for name in ("feature_bounds", "target_bounds"):
        with pytest.raises(ValueError, match=f"{name}.*other units"):
            made(Ridge, solver=solver, **{name: bounds}).fit(x, y)


@pytest.mark.parametrize("bounds", [*ODD, (1e16, 1e16 + 2), (-1.0, 1.0)])
def test_no_row_adds_more_than_the_grid_allows_whatever_its_scale(bounds):
    low, high = (np.full(2, float(one)) for one in bounds)
    with np.errstate(all="ignore"):
        sums = MomentSums(FeatureScale(2, (low, high), True))
        for row in ([low[0], high[0]], [high[0], 0.0], [1e308, -1e308]):
            for target in (0.0, 1.0, -1e9, 1e200, np.inf, np.nan):
                found = sums.of_rows(np.array([row]), np.array([target]))
                assert sum(int(one) ** 2 for one in found) <= largest_square(sums.bits)


def test_a_new_unit_cannot_move_the_others_to_other_batches():
    x, y = data(SGDClassifier)
    ids = np.arange(COUNT) // 2
    ordered = made(SGDClassifier, unit="patient", adjacency="replace_one", batch_size=5)
    with pytest.raises(UnsupportedError, match="move all others"):
        ordered.fit(x, y, unit_ids=ids)
    whole = made(SGDClassifier, unit="patient", adjacency="replace_one", batch_size=20)
    assert whole.fit(x, y, unit_ids=ids).mechanism_.adjacency == "replace_one"
    ordered.set_params(unit="example").fit(x, y)  # a row is replaced where it stands
    called = made(SGDClassifier, unit="patient", adjacency="replace_one", random_state=None, steps=3)
    called.partial_fit(x, y, unit_ids=ids)  # batches are those of the calls


@pytest.mark.parametrize(("first", "again"), [("a", "a\0"), ("a\0", "a"), (b"a\0", b"a")])
def test_a_unit_is_the_same_in_whatever_form_its_label_is_given(first, again, monkeypatch):
    from anechoic.linear.sums import RankOneSums

    seen, original = [], RankOneSums.of_units

    def noted(self, weights, batch):
        seen.append(batch.count)
        return original(self, weights, batch)

    monkeypatch.setattr(RankOneSums, "of_units", noted)
    x, y = data(SGDClassifier)
    empty = type(first)()
    others = [b"p%d" % i if isinstance(empty, bytes) else f"p{i}" for i in range(COUNT - 2)]
    model = made(SGDClassifier, random_state=None, unit="patient", steps=3)
    model.partial_fit(x, y, unit_ids=np.array([first, again, *others], dtype=object))
    model.partial_fit(x[:2], y[:2], unit_ids=[again, first])
    model.partial_fit(x[:2], y[:2], unit_ids=np.array([first, "b" if empty == "" else b"b"]))
    apart = made(SGDClassifier, random_state=None, unit="patient", steps=3)
    apart.partial_fit(x[1:], y[1:], unit_ids=np.array([first, *others], dtype=object))
    apart.partial_fit(x[:2], y[:2], unit_ids=np.array([again, others[0]], dtype=object))
    assert seen == [COUNT - 1, 0, 1, COUNT - 1, 0]
