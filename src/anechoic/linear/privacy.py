"""Privacy of every estimator: checked arguments, statement, warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.errors import MismatchError
from anechoic.linear.descent import DescentPlan, FitRequest, descend, planned
from anechoic.linear.fitting import FitProblem, batch_sums
from anechoic.linear.keys import FitKeys, HiddenKey, keys_of
from anechoic.linear.scaling import FeatureScale, checked_bounds
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.mechanism.statement_text import KEYS
from anechoic.mechanism.weak_delta import default_delta, odd_epsilon, weak_delta
from anechoic.statement.formats import Format, render
from anechoic.statement.statement import statement_of
from anechoic.statement.theorem import PROOFS
from anechoic.units.duplicates import check_schema
from anechoic.units.ownership import Units

_SEEDED = (
    "keys are no secret: random_state is an integer, so whoever guesses it can take the noise off again;"
    " leave it out for a release that protects anyone"
)
#: What statements say of classes that were read from the data.
CLASSES_READ = "which classes there are: they were read from y. Give classes= where that is private"
_ROWS = "settings chosen by the data: by looking at them; and how many rows and features there are"
_SELECTION = (
    "choosing among fits: by GridSearchCV for instance. Each fit is a release of its own, and the best of"
    " them costs more than one. anechoic.select chooses privately"
)


_FILL = (
    "fill gaps with a value that does not come from the data, as SimpleImputer(strategy='constant',"
    " fill_value=…) does. A mean or a median of private rows is not covered by the guarantee."
)
#: Of errors of scikit-learn, by a word in them.
_REMEDIES = {
    "NaN": _FILL,
    "infinity": _FILL,
    "should be a 1d array": (
        "fit one estimator for each target. Every fit is a release of its own, and their guarantees add up"
        " (anechoic.compose)."
    ),
}


class FittedAttributes:
    """What the estimators declare themselves, the first of their arguments, and what `fit` leaves."""

    epsilon: float
    delta: float | None
    mechanism_: Mechanism
    epsilon_: float
    delta_: float
    n_iter_: int


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinear(FittedAttributes, BaseEstimator):
    """Base of the estimators: the arguments that all have by keyword, and no more than they share of privacy.

    Constructors are those of dataclasses: scikit-learn reads the parameters from their signature.
    """

    feature_bounds: Any = None
    clip_norm: Any = "auto"
    fit_intercept: bool = True
    max_iter: int = 100
    batch_size: Any = "auto"
    mechanism: Any = "auto"
    sampling: Any = "auto"
    adjacency: Adjacency = "zero_out"
    unit: str = "example"
    random_state: Any = None
    book: BudgetBook | None = None

    def _checked(self, features: Any, targets: Any, **more: Any) -> tuple[Array, Any]:
        if issparse(features):
            raise TypeError(
                "Sparse data was passed for X, but dense data is required, since each row is clipped as a"
                " whole: give OneHotEncoder(…, sparse_output=False), ColumnTransformer sparse_threshold=0,"
                " or X.toarray()."
            )
        try:
            X, y = validate_data(self, features, targets, dtype=[np.float64, np.float32], order="C", **more)
        except ValueError as error:  # what scikit-learn advises need not be private
            said = str(error).splitlines()[0].rstrip(".")
            remedy = next((remedy for words, remedy in _REMEDIES.items() if words in said), None)
            if remedy is None:
                raise
            raise ValueError(f"{said}: {remedy}") from None
        return X, y

    def _asked(
        self, units: Units | None, rows: int, entries: int, automatic: Callable[[float], float], **more: Any
    ) -> FitRequest:
        """The arguments, checked, for so many rows; `automatic` is the clip norm by the noise."""
        count = rows if units is None else units.count
        one_of("adjacency", self.adjacency, ("zero_out", "replace_one", "add_or_remove"))
        if not isinstance(self.book, BudgetBook | None):
            raise ValueError(
                f"book={self.book!r} must be a BudgetBook, or None. A fitted model that was saved has its"
                " book's name alone, without key or address: set_params(book=BudgetBook(…)) before another"
                " fit, or set_params(book=None) where none is to be kept."
            )
        unit = self.unit
        if not isinstance(unit, str) or not unit.strip():
            raise ValueError(f"unit={unit!r} must be a word that names what is protected, such as 'patient'.")
        if units is None and unit != "example":
            raise MismatchError(
                f"unit={unit!r}, but unit_ids is missing: rows would be clipped one by one. Call"
                " fit(X, y, unit_ids=…) with one label a row."
            )
        if units is not None:
            unit = "unit" if unit == "example" else unit
            check_schema(unit, units=units, adjacency=self.adjacency)
        if count < 2:
            raise ValueError(f"n_samples={count} {unit}: a guarantee about one of them needs at least two.")
        delta = default_delta(count) if self.delta is None else fraction("delta", self.delta)
        epsilon = positive_float("epsilon", self.epsilon, remedy="Only infinitely much noise gives 0.")
        for doubt in filter(None, (weak_delta(delta, count, unit), odd_epsilon(epsilon))):
            warnings.warn(f"{doubt}.", stacklevel=3)
        given = not (isinstance(self.clip_norm, str) and self.clip_norm == "auto")
        asked = FitRequest(
            epsilon=epsilon,
            delta=delta,
            clip_norm=positive_float("clip_norm", self.clip_norm, remedy='Or "auto".') if given else 1.0,
            mechanism=self.mechanism,
            sampling=self.sampling,
            batch_size=self.batch_size,
            steps=positive_int("max_iter", self.max_iter, remedy="It counts steps, each one release."),
            units=count,
            dimension=entries,
            adjacency=self.adjacency,
            unit=unit,
            **more,
        )
        return asked if given else replace(asked, clip_norm=automatic(asked.noise))

    def _scale(self, features: int) -> FeatureScale:
        bounds = self.feature_bounds
        if bounds is not None:
            bounds = checked_bounds("feature_bounds", bounds, features)
        return FeatureScale(features, bounds, bool(self.fit_intercept))

    def _descended(
        self, asked: FitRequest, problem: FitProblem, outputs: int, units: Units | None
    ) -> tuple[Array, DescentPlan, FitKeys]:
        """Plan, warn before the data are read, charge the book before there is any noise, and descend."""
        found = planned(asked)
        warn_of_noise(found, asked.dimension)
        keys = self._keys(problem, units, found)
        sum_of = batch_sums(found.mechanism, problem, units, keys.sampling)
        self._book(found.mechanism)
        penalty = np.full(problem.scale.dimension, float(problem.penalty))
        penalty[problem.scale.features :] = 0.0
        noise: dict[str, Any] = {"outputs": outputs, "penalty": penalty, "key": keys.noise}
        return descend(found.mechanism, found.rates(), sum_of, **noise), found, keys

    def _keys(self, problem: FitProblem, units: Units | None, found: DescentPlan) -> FitKeys:
        """Of a fit, which is a function of all parameters and of the data: keys from a seed depend on both.

        What stands below of the mechanism follows from these, and may follow otherwise in a later version.
        """
        parameters = self.get_params(deep=False)
        parameters.pop("book")  # what a fit is, not what it is charged to
        return keys_of(
            parameters.pop("random_state"),
            {
                "estimator": f"{type(self).__module__} {type(self).__qualname__}",
                **{f"parameter {name}": value for name, value in parameters.items()},
                "X": problem.features,
                "y": problem.targets,
                "unit_ids": None if units is None else units.digest,
                "the mechanism": [found.mechanism, found.asked.dimension, found.rates(), problem.penalty],
            },
        )

    def _book(self, mechanism: Mechanism) -> None:
        """Charge a fit, as a run of its own each time."""
        if self.book is not None:
            self.book.reserve(mechanism).spend()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, as scikit-learn has it; 32 secret bytes are there, and are not shown."""
        found: dict[str, Any] = super().get_params(deep)
        state = found.get("random_state")
        if type(state) is bytes:
            found["random_state"] = HiddenKey(state)
        return found

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        if hasattr(self, "mechanism_"):  # a model is published
            if isinstance(state.get("random_state"), bytes):
                state["random_state"] = None  # with its key its noise can be taken off
            if state.get("book") is not None:
                state["book"] = repr(state["book"])  # neither key nor password; the next fit is refused
        return state

    def _released(self, mechanism: Mechanism, keys: FitKeys, *caveats: str) -> None:
        self.mechanism_, self.delta_ = mechanism, mechanism.delta
        self.epsilon_ = float(mechanism.epsilon())
        self._keys_secret, self._caveats = keys.secret, caveats

    def statement(
        self, format: Format = "text", *, data: str = "", out: str | Path | None = None, proofs: str = PROOFS
    ) -> str:
        """Say what the fitted model guarantees, and what it does not; `data` is what it was fitted on.

        Args:
            format, out, proofs: see `statement.formats.render`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: for another format.
        """
        check_is_fitted(self, "mechanism_")
        found = statement_of(self.mechanism_)
        duties = found.duties
        if not self._keys_secret:
            duties = tuple(_SEEDED if duty == KEYS else duty for duty in duties)
        caveats = (*self._caveats, _ROWS, _SELECTION)
        stated = replace(found, duties=duties, not_covered=(*found.not_covered, *caveats))
        return render(stated.about(data=data, model=type(self).__name__), format, out=out, proofs=proofs)


def warn_of_noise(planned: DescentPlan, dimension: int) -> None:
    """Warn where noise is larger than the signal that data can have."""
    mechanism = planned.mechanism
    longest = mechanism.noise_std / np.sqrt(mechanism.steps) / mechanism.expected_batch_size
    ratio = float(longest * np.sqrt(dimension))
    if ratio > 1.0:
        needed = int(np.ceil(mechanism.expected_batch_size * ratio))
        warnings.warn(
            f"so few {mechanism.unit}s say next to nothing at epsilon={mechanism.epsilon():.3g}: the noise is"
            f" {ratio:.1f} times as long as their mean gradient can be. Expect a model near chance; at about"
            f" {needed:,} {mechanism.unit}s or {ratio:.1f} times this epsilon it begins to learn.",
            stacklevel=4,
        )


def warn_of_selection() -> None:
    """Say what a search or a cross-validation around this fit costs, where one is found among the callers.

    A search fits with parameters of its own, which scikit-learn hands on in whatever process.
    """
    frame: FrameType | None = sys._getframe(1)
    inside = searching = False
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("sklearn.model_selection."):
            inside |= name in ("_fit_and_score", "_fit_and_predict")
            searching |= module.endswith("._search") or (
                name == "_fit_and_score" and bool(frame.f_locals.get("parameters"))
            )
        frame = frame.f_back
    if searching:
        warnings.warn(
            "a search over parameters: every fit is a release of its own, and the choice of the best is"
            " outside of the guarantee that each states. anechoic.select chooses among private fits and says"
            " what that costs ('Selecting by trial' in the documentation).",
            stacklevel=4,
        )
    elif inside:
        warnings.warn(
            "cross-validation: a row is in all fits but one, whose guarantees add up, and scores of private"
            " rows are not noised: keep them to yourself, or validate on public data.",
            stacklevel=4,
        )


def units_of(unit_ids: Any, rows: int) -> Units | None:
    """Return who owns which row; None where every row is a unit.

    Raises:
        MismatchError: for labels of another number of rows.
        ValueError: as `Units`.
    """
    if unit_ids is None:
        return None
    units = unit_ids if isinstance(unit_ids, Units) else Units(unit_ids, combine="mean")
    if units.examples != rows:
        raise MismatchError(f"unit_ids has {units.examples} labels for {rows} rows: give one a row.")
    return units
