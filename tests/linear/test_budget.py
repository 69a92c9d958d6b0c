"""Fits in the budget book: charged before there is noise, one by one, also inside of a search."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="anechoic[sklearn] installs it")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.linear import LinearRegression, LogisticRegression, Ridge
from anechoic.linear import privacy as of_fits
from anechoic.linear import regressors as of_moments
from tests.linear.test_estimators import data_of, made

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

#: Each way to fit, and what draws its noise.
WAYS = [
    (LogisticRegression, {"max_iter": 3, "mechanism": "identity"}, (of_fits, "descend")),
    (Ridge, {"solver": "moments"}, (of_moments, "fit_by_moments")),
]


def book_of(folder, fits=1.0, key=None):
    """For so many fits of epsilon 4 alone, or a little less than one more."""
    book = BudgetBook(folder / "b.db", "visits", who="ann", key=key)
    book.grant(4.0 * fits, 1e-5)
    return book


@pytest.mark.parametrize(("kind", "options", "draws"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fit_beyond_the_book_is_refused_before_there_is_noise(kind, options, draws, tmp_path, monkeypatch):
    book, data = book_of(tmp_path), data_of(kind)
    noise, drawn = getattr(*draws), []

    def seen(*given, **more):
        drawn.append([one.status for one in book.account().live])
        return noise(*given, **more)

    monkeypatch.setattr(*draws, seen)
    model = made(kind, delta=1e-5, book=book, **options)
    model.fit(*data)
    assert drawn == [["spent"]]
    assert [one.fingerprint for one in book.account().live] == [model.mechanism_.fingerprint]
    other = clone(model)
    assert other.book is book
    with pytest.raises(GuaranteeError, match="does not cover"):
        other.fit(*data)
    assert len(drawn) == 1 and not hasattr(other, "coef_")


def test_a_crash_between_booking_and_release_costs(tmp_path, monkeypatch):
    book, data = book_of(tmp_path), data_of(LogisticRegression)
    model = made(LogisticRegression, delta=1e-5, book=book, max_iter=3, mechanism="identity")
    monkeypatch.setattr(of_fits, "descend", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(*data)
    assert [one.status for one in book.account().live] == ["spent"]
    monkeypatch.undo()
    with pytest.raises(GuaranteeError, match="does not cover"):
        model.fit(*data)


def test_every_fit_of_a_search_is_charged(tmp_path):
    book, data = book_of(tmp_path, fits=20), data_of(Ridge, 300)
    model = made(Ridge, delta=1e-5, book=book, solver="moments", random_state=None)
    search = GridSearchCV(model, {"alpha": [0.1, 10.0]}, cv=2).fit(*data)
    assert [one.status for one in book.account().live] == ["spent"] * 5  # four, and the best on all rows
    assert search.best_estimator_.book is book


def test_a_search_beyond_the_book_ends_without_the_fits_that_it_does_not_cover(tmp_path):
    book, data = book_of(tmp_path, fits=1.5), data_of(Ridge, 300)
    model = made(Ridge, delta=1e-5, book=book, solver="moments", random_state=None)
    with pytest.raises(GuaranteeError, match="does not cover"):
        GridSearchCV(model, {"alpha": [0.1, 10.0]}, cv=2, error_score="raise").fit(*data)
    charged = len(book.account().live)
    with pytest.raises(ValueError, match="does not cover"):  # all of them fail
        GridSearchCV(model, {"alpha": [0.1, 10.0]}, cv=2).fit(*data)
    assert len(book.account().live) == charged


def test_the_unit_of_a_fit_is_that_of_the_account(tmp_path):
    book = BudgetBook(tmp_path / "b.db", "visits")
    book.grant(9.0, 1e-5, unit="patient")
    (x, y), ids = data_of(LinearRegression, 300), np.arange(300) // 2
    model = made(LinearRegression, delta=1e-5, book=book, solver="moments")
    with pytest.raises(MismatchError, match="one patient"):
        model.fit(x, y)
    model.set_params(unit="patient").fit(x, y, unit_ids=ids)
    assert len(book.account().live) == 1


def test_a_model_that_is_published_has_neither_key_nor_another_fit(tmp_path):
    key = bytes(range(100, 132))
    book, data = book_of(tmp_path, fits=9, key=key), data_of(Ridge, 300)
    model = made(Ridge, delta=1e-5, book=book, solver="moments")
    unfitted = pickle.loads(pickle.dumps(model))  # as a search sends it to other processes
    unfitted.fit(*data)
    assert len(book.account().live) == 1 and key not in repr(model).encode()
    held = pickle.dumps(unfitted)
    assert key not in held
    loaded = pickle.loads(held)
    with pytest.raises(ValueError, match="its book's name alone"):
        loaded.fit(*data)
    assert len(book.account().live) == 1
    loaded.set_params(book=book).fit(*data)
    assert len(book.account().live) == 2


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge])
def test_a_fit_that_is_refused_leaves_the_model_as_it_was(kind, tmp_path):
    book, (x, y) = book_of(tmp_path), data_of(kind)
    options = (
        {"max_iter": 3, "mechanism": "identity"} if kind is LogisticRegression else {"solver": "moments"}
    )
    model = made(kind, delta=1e-5, book=book, **options).fit(x, y)
    before = vars(model) | {"predicted": model.predict(x)}
    other = np.where(y == np.max(y), "alive", "dead") if kind is LogisticRegression else y / 2
    more = {"classes": None} if kind is LogisticRegression else {"solver": "descent", "mechanism": "identity"}
    model.set_params(**more)
    with pytest.raises(GuaranteeError, match="does not cover"):
        model.fit(x, other)
    for name in ("solver_", "classes_", "coef_", "n_iter_"):
        assert np.array_equal(getattr(model, name, None), before.get(name)), name
    assert np.array_equal(model.predict(x), before["predicted"])
