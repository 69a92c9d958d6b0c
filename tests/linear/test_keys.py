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
from anechoic.linear import LogisticRegression, Ridge
from anechoic.linear.keys import keys_of
from anechoic.linear.moments import MomentSums
from anechoic.linear.scaling import FeatureScale
from anechoic.mechanism.calibrate import calibrate
from anechoic.noise.grid import largest_square
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
    "max_iter": 3,
    "mechanism": "identity",
    "sampling": "fixed_order",
    "target_bounds": (-2, 1),
}


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
@pytest.mark.parametrize("name", mostly_slow(anechoic.linear.__all__, quick=["Ridge"]))
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
        keys[parameter] = noise_key(one(**{parameter: OTHERS[parameter]}), x, y)
    if "solver" in one().get_params():
        keys |= {solver: noise_key(made(kind, solver=solver), x, y) for solver in ("descent", "moments")}
    for seed in (bytes(32), 0, 1):
        keys[f"random_state {seed}"] = noise_key(one(random_state=seed), x, y)
    rows, labels = x.copy(), y.copy()
    rows[-1, -1] = np.nextafter(rows[-1, -1], 0)
    labels[-1] = 1 - labels[-1] if kind is LogisticRegression else 0.3
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


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", mostly_slow(anechoic.linear.__all__, quick=["LogisticRegression"]))
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
