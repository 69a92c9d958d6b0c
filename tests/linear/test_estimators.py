"""The interface of scikit-learn, and what a fit says of privacy."""

import inspect
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("sklearn", reason="anechoic[sklearn] installs it")

import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import anechoic.linear
from anechoic.errors import MismatchError
from anechoic.linear import LinearRegression, LogisticRegression, Ridge
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Single
from anechoic.sampling import External, Poisson
from anechoic.strategies import Identity
from tests.floats import same_bits

ALL = [getattr(anechoic.linear, name) for name in anechoic.linear.__all__]
REGRESSORS = [LinearRegression, Ridge]
KEY = bytes(range(32))


def classes(count=1000, kinds=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, 4))
    return x, (x[:, :kinds] if kinds > 2 else np.stack([0 * x[:, 0], x[:, 0]], axis=1)).argmax(axis=1)


def targets(count=1000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, 4))
    return x, 10 + 3 * x[:, 0] - 2 * x[:, 1] + rng.normal(0, 0.1, count)


def data_of(kind, count=1000):
    return classes(count) if kind is LogisticRegression else targets(count)


def made(kind, **options):
    usual = {"epsilon": 4.0, "feature_bounds": (-1, 1), "random_state": 0}
    usual |= {"classes": [0, 1]} if kind is LogisticRegression else {"target_bounds": (0, 20)}
    return kind(**usual | options)


# -- scikit-learn's own checks --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ALL)
def test_the_checks_of_scikit_learn(kind):
    failed = {}
    for estimator, check in estimator_checks_generator(kind(max_iter=5)):
        name = getattr(check, "func", check).__name__
        try:
            check(estimator)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                failed[name] = repr(error)
    assert not failed, failed


# -- what a fit learns ----------------------------------------------------------------------------


def test_classes_are_learned():
    x, y = classes()
    model = made(LogisticRegression).fit(x, y)
    assert model.score(x, y) > 0.9
    assert model.coef_.shape == (1, 4) and model.intercept_.shape == (1,)


def test_several_classes_are_learned():
    x, y = classes(3000, 3)
    model = made(LogisticRegression, classes=["a", "b", "c"]).fit(x, np.array(["a", "b", "c"])[y])
    assert model.score(x, np.array(["a", "b", "c"])[y]) > 0.8
    assert model.coef_.shape == (3, 4) and model.classes_.tolist() == ["a", "b", "c"]
    assert model.predict_proba(x).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_numbers_are_learned(kind):
    x, y = targets(3000)
    model = made(kind).fit(x, y)
    assert model.score(x, y) > 0.9
    assert model.coef_.shape == (4,) and model.predict(x) == pytest.approx(x @ model.coef_ + model.intercept_)


def test_without_privacy_in_the_way_the_coefficients_are_those_of_scikit_learn():
    from sklearn.linear_model import Ridge as Plain

    x, y = targets(20_000)
    for solver in ("moments", "descent"):
        model = made(Ridge, alpha=0.0, epsilon=500.0, solver=solver)
        with pytest.warns(UserWarning, match="next to nothing"):
            model.fit(x, y)
        assert model.coef_ == pytest.approx(Plain(alpha=0.0).fit(x, y).coef_, abs=0.15)


def test_intercepts_are_not_shrunk():
    x, _ = classes(3000)
    y = (x[:, 0] > -0.8).astype(int)
    logit = made(LogisticRegression, C=1e-3).fit(x, y)
    assert logit.predict(x).all() and np.abs(logit.coef_).max() < 0.5 < logit.intercept_[0]


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge])
def test_a_penalty_shrinks(kind):
    x, y = data_of(kind)
    name, weak, strong = ("C", np.inf, 1e-3) if kind is LogisticRegression else ("alpha", 0.0, 1e4)
    free, held = (made(kind, **{name: value}).fit(x, y) for value in (weak, strong))
    assert np.linalg.norm(held.coef_) < 0.5 * np.linalg.norm(free.coef_)


# -- which solver ---------------------------------------------------------------------------------


def test_moments_are_taken_where_they_promise_less():
    x, y = targets(500)
    few, many = made(Ridge, epsilon=0.1), made(Ridge, epsilon=8.0)
    assert few.fit(x, y).solver_ == "descent"
    x, y = targets(20_000)
    assert many.fit(x, y).solver_ == "moments" and many.n_iter_ == 1 and many.mechanism_.steps == 1
    assert many.predicted_errors_["moments"] < many.predicted_errors_["descent"]


@pytest.mark.filterwarnings("ignore:target_bounds is not given")
def test_moments_need_bounds():
    x, y = targets(100)
    assert made(Ridge, target_bounds=None).fit(x, y).solver_ == "descent"
    with pytest.raises(ValueError, match="without feature_bounds and target_bounds"):
        made(Ridge, target_bounds=None, solver="moments").fit(x, y)
    with pytest.raises(ValueError, match="leave mechanism"):
        made(Ridge, solver="moments", batch_size=10).fit(x, y)


# -- the guarantee --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_fit_keeps_its_epsilon_and_says_so(kind):
    x, y = data_of(kind)
    model = made(kind, epsilon=0.7, delta=1e-5).fit(x, y)
    assert isinstance(model.mechanism_, Mechanism) and model.mechanism_.grid_bits
    assert 0.69 < model.epsilon_ <= 0.7 and model.delta_ == model.mechanism_.delta == pytest.approx(1e-5)
    said = " ".join(model.statement(data="Patients").split())
    assert f"Data set: Patients Model: {type(model).__name__} " in said
    assert "(0.7000, 1e-05)-differential privacy" in said and "exact: contributions are rounded" in said
    assert "random_state is an integer" in said and "GridSearchCV" in said
    assert "random_state" not in made(kind, random_state=None).fit(x, y).statement()


def test_classes_that_were_read_are_said_to_be():
    x, y = classes()
    with pytest.warns(UserWarning, match="read from y"):
        model = made(LogisticRegression, classes=None).fit(x, y)
    assert "they were read from y" in " ".join(model.statement().split())
    assert "read from y" not in made(LogisticRegression).fit(x, y).statement()
    with pytest.raises(ValueError, match="not among classes"):
        made(LogisticRegression, classes=[1, 2]).fit(x, y)


def test_a_given_mechanism_is_the_one_that_is_used():
    x, y = classes(400)
    sampling = Poisson(400, 100, 20)
    given = calibrate(Identity(20), sampling=sampling, epsilon=5, delta=1e-4, clip_norm=0.2, grid_bits=28)
    model = made(LogisticRegression, mechanism=given).fit(x, y)
    assert model.mechanism_ == given and model.n_iter_ == 20 and model.plan_ is None
    assert model.score(x, y) > 0.8
    for wrong, why in (
        (replace(given, grid_bits=None), "floating-point"),
        (replace(given, sampling=Poisson(401, 100, 20)), "401"),
        (replace(given, unit="patient"), "unit_ids"),
        (replace(given, sampling=External(Single(), 100, 20)), "fit.. forms batches itself"),
    ):
        with pytest.raises(MismatchError, match=why):
            made(LogisticRegression, mechanism=wrong).fit(x, y)
    with pytest.raises(ValueError, match="or the name of a strategy"):
        made(LogisticRegression, mechanism="laplace").fit(x, y)


@pytest.mark.parametrize("sampling", ["poisson", "random_allocation", "fixed_order"])
def test_batches_may_be_drawn(sampling):
    x, y = classes(600)
    model = made(
        LogisticRegression, batch_size=100, sampling=sampling, mechanism="identity", max_iter=24
    ).fit(x, y)
    assert type(model.mechanism_.sampling).__name__.lower() == sampling.replace("_", "")
    assert model.epsilon_ <= 4.0 and model.score(x, y) > 0.8


def test_clip_norm_and_bounds_are_held():
    """Features beyond their bounds count as at them: a row cannot shout."""
    x, y = classes(300)
    wild = x.copy()
    wild[:, 1] = np.where(wild[:, 1] > 0, 1e9, -1e9)
    clipped = np.clip(wild, -1, 1)
    one, other = (made(LogisticRegression, random_state=None).fit(rows, y) for rows in (wild, clipped))
    assert one.mechanism_ == other.mechanism_
    assert np.abs(one.coef_).max() < 100
    assert made(LogisticRegression, clip_norm=0.4).fit(x, y).mechanism_.clip_norm == pytest.approx(0.4)


def test_units_are_protected_as_a_whole():
    x, y = classes(1000)
    ids = np.arange(1000) // 4
    model = made(LogisticRegression, unit="patient").fit(x, y, unit_ids=ids)
    assert model.mechanism_.sampling.examples == 250 and model.mechanism_.unit == "patient"
    assert "one patient" in model.statement() and model.score(x, y) > 0.85
    x, y = targets(1000)
    assert made(Ridge, unit="patient", solver="moments").fit(x, y, unit_ids=ids).mechanism_.unit == "patient"
    with pytest.raises(MismatchError, match="unit_ids is missing"):
        made(Ridge, unit="patient").fit(x, y)
    with pytest.raises(MismatchError, match="one a row"):
        made(Ridge).fit(x, y, unit_ids=ids[:-1])


@pytest.mark.parametrize("kind", ALL)
def test_the_delta_that_nobody_gave_is_one_that_a_reviewer_takes(kind):
    """docs/reviewer.md: delta is at most a tenth of one over the number of people."""
    x, y = data_of(kind, 60)
    model = made(kind).fit(x, y)
    assert model.delta_ == pytest.approx(0.01 / 60) and 60 * model.delta_ < 0.1
    assert made(kind, unit="patient").fit(x, y, unit_ids=np.arange(60) // 2).delta_ == pytest.approx(
        0.01 / 30
    )


@pytest.mark.parametrize("kind", ALL)
def test_sparse_rows_are_refused_with_what_makes_them_dense(kind):
    x, y = data_of(kind, 30)
    with pytest.raises(TypeError, match=r"sparse_output=False.*toarray"):
        made(kind).fit(scipy.sparse.csr_matrix(x), y)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_targets_without_bounds_are_not_looked_at(kind):
    """The warning depends on the argument alone: large targets and small ones get the same."""
    x, y = targets(200)
    said = []
    for scale in (1e-3, 1e6):
        with pytest.warns(UserWarning) as caught:
            made(kind, target_bounds=None).fit(x, scale * y)
        said.append([str(one.message) for one in caught])
    assert said[0] == said[1] and len([one for one in said[0] if "target_bounds is not given" in one]) == 1


def test_few_rows_are_told_what_they_cost():
    x, y = classes(20)
    with pytest.warns(UserWarning, match="say next to nothing at epsilon"):
        made(LogisticRegression, epsilon=0.1, delta=1e-6).fit(x, y)
    with pytest.raises(ValueError, match="at least two"):
        made(Ridge).fit(x[:1], y[:1])
    with pytest.raises(ValueError, match="at least 2 classes"):
        made(LogisticRegression, classes=[0]).fit(x, np.zeros(20))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"feature_bounds": (1, 1)}, "feature_bounds"),
        ({"feature_bounds": 3}, "feature_bounds"),
        ({"max_iter": 0}, "max_iter"),
        ({"batch_size": 10_000}, "batch_size"),
        ({"C": 0.0}, "C="),
        ({"random_state": np.random.RandomState(0)}, "random_state"),
        ({"adjacency": "nearby"}, "adjacency"),
        ({"unit": ""}, "unit"),
    ],
)
def test_bad_arguments_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        made(LogisticRegression, **options).fit(*classes(100))


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_key_gives_the_same_model_again(kind):
    x, y = data_of(kind, 300)
    one, again = (made(kind, random_state=KEY).fit(x, y) for _ in range(2))
    fresh = made(kind, random_state=None)
    assert same_bits(one.coef_, again.coef_) and same_bits(one.intercept_, again.intercept_)
    assert not same_bits(fresh.fit(x, y).coef_, fresh.fit(x, y).coef_)


# -- pipelines, searches, files -------------------------------------------------------------------


def test_unit_ids_are_routed_through_a_pipeline():
    x, y = classes(400)
    with sklearn.config_context(enable_metadata_routing=True):
        model = made(LogisticRegression, unit="patient").set_fit_request(unit_ids=True)
        steps = make_pipeline(FunctionTransformer(), model).fit(x, y, unit_ids=np.arange(400) // 2)
    assert steps[-1].mechanism_.sampling.examples == 200


def test_searches_and_validation_say_what_they_cost():
    x, y = classes(300)
    with pytest.warns(UserWarning, match="anechoic.select chooses among private fits"):
        search = GridSearchCV(made(LogisticRegression, max_iter=10), {"C": [0.1, np.inf]}, cv=2).fit(x, y)
    assert search.best_estimator_.epsilon_ <= 4.0
    with pytest.warns(UserWarning, match="whose guarantees add up"):
        assert cross_val_score(made(LogisticRegression), x, y, cv=2).mean() > 0.8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(LogisticRegression).fit(x, y)


@pytest.mark.parametrize("kind", ALL)
def test_models_are_cloned_and_survive_files(kind):
    x, y = data_of(kind, 300)
    model = made(kind, random_state=None).fit(x, y)
    loaded = pickle.loads(pickle.dumps(model))
    assert same_bits(loaded.predict(x), model.predict(x)) and loaded.statement() == model.statement()
    fresh = clone(loaded)
    assert not hasattr(fresh, "coef_") and repr(fresh.get_params()) == repr(model.get_params())
    assert fresh.fit(x, y).epsilon_ <= 4.0


def test_constructors_put_first_what_is_given_by_place_and_have_the_defaults_of_their_pages():
    for kind in ALL:
        places = {"alpha": 1.0} if kind is Ridge else {}
        places |= {"epsilon": 1.0, "delta": None}
        found = inspect.signature(kind).parameters.values()
        assert {one.name: one.default for one in found if one.kind is one.POSITIONAL_OR_KEYWORD} == places
        assert kind().max_iter == 100


# -- figures, not only classes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "epsilon", "close"), [(2000, 8.0, 0.15), (20_000, 1.0, 0.15), (20_000, 8.0, 0.1)]
)
def test_logistic_regression_is_calibrated(count, epsilon, close):
    """Clipping drew coefficients to 1.7 times the true ones, at any count: "said .985" was .927."""
    rng = np.random.default_rng(count)
    x, true = rng.uniform(-1, 1, (count, 5)), np.array([2.0, -1.0, 0.0, 1.0, 0.0])
    chance = 1 / (1 + np.exp(-(x @ true + 0.5)))
    y = (rng.random(count) < chance).astype(int)
    model = made(LogisticRegression, epsilon=epsilon).fit(x, y)
    assert model.coef_[0] == pytest.approx(true, abs=2.5 * close)
    assert float(model.coef_[0] @ true / (true @ true)) == pytest.approx(1.0, abs=close)  # the slope
    said = model.predict_proba(x)[:, 1]
    least = -np.mean(y * np.log(chance) + (1 - y) * np.log(1 - chance))
    assert -np.mean(y * np.log(said) + (1 - y) * np.log(1 - said)) < least + 0.02


@pytest.mark.parametrize(("count", "d", "epsilon"), [(1000, 3, 2.0), (10_000, 15, 2.0), (3000, 8, 8.0)])
def test_skewed_targets_are_no_worse_than_moments_and_the_mean(count, d, epsilon):
    rng = np.random.default_rng(d)
    x = rng.uniform(-1, 1, (count, d))
    y = np.minimum(np.exp(0.5 * x[:, 0] + 0.3 * x[:, 1] + rng.normal(0, 0.9, count)), 20.0)
    auto, moments = (made(Ridge, epsilon=epsilon, solver=s).fit(x, y) for s in ("auto", "moments"))
    assert auto.score(x, y) > max(-0.01, moments.score(x, y) - 0.02)
    assert auto.predict(x).mean() == pytest.approx(
        y.mean(), rel=0.15
    )  # clipped, it was the median, .7 of that


@pytest.mark.parametrize("kind", ALL)
def test_the_clip_norm_follows_from_the_noise(kind):
    """More rows, or a larger epsilon, leave room for a larger one; replacing counts twice."""
    found = {}
    for name, count, more in [
        ("usual", 300, {}),
        ("rows", 3000, {}),
        ("epsilon", 300, {"epsilon": 20.0}),
        ("replacing", 300, {"adjacency": "replace_one"}),
        ("given", 300, {"clip_norm": 0.3}),
    ]:
        found[name] = made(kind, max_iter=2, **more).fit(*data_of(kind, count)).mechanism_.clip_norm
    assert found["replacing"] < found["usual"] < min(found["rows"], found["epsilon"])
    assert found["given"] == 0.3


# -- what is refused, and what is advised -------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x, y: (np.where(np.arange(len(x))[:, None] == 3, np.nan, x), y), "X contains NaN: fill gaps"),
        (lambda x, y: (np.where(np.arange(len(x))[:, None] == 3, np.inf, x), y), "infinity.*: fill gaps"),
        (lambda x, y: (x, np.where(np.arange(len(x)) == 3, np.nan, y)), "NaN: fill gaps"),
        (lambda x, y: (x, np.stack([y, y], axis=1)), "1d array.*: fit one estimator for each target"),
    ],
)
def test_advice_is_private(kind, wrong, words):
    """scikit-learn's own names imputers that learn from the data, and estimators without privacy."""
    with pytest.raises(ValueError, match=words) as refused:
        made(kind).fit(*wrong(*data_of(kind, 50)))
    assert "HistGradient" not in str(refused.value) and "sklearn.org" not in str(refused.value)
