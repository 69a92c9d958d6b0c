"""Regressors: least squares with a penalty or without, by descent or from sufficient statistics."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.linear_model._base import LinearModel

from anechoic._validate import Array, at_least, one_of
from anechoic.errors import UnsupportedError
from anechoic.linear.descent import FitRequest, planned, squares_clip_norm, wants_mechanism, with_advice
from anechoic.linear.fitting import FitProblem, number_residuals
from anechoic.linear.keys import FitKeys
from anechoic.linear.moments import MomentSums, are_means, entry_noise, fit_by_moments, moments_mechanism
from anechoic.linear.privacy import (
    PrivateLinear,
    units_of,
    warn_of_selection,
)
from anechoic.linear.scaling import FeatureScale, TargetScale
from anechoic.mechanism.mechanism import Mechanism
from anechoic.units.ownership import Units

SOLVERS = ("auto", "descent", "moments")
#: Of the rate of descent, beside that of classifiers, whose scale does not matter.
SLOWER = 0.25
#: Squared error that descent leaves with hardly any noise, for targets in [-1, 1]; one over the variance of a
#: feature, times their count, where features fill a half of their bounds; and the part of the noise's square
#: that the loss does not pull back. Measured: 'Linear models for tables'.
LEFT, SPREAD, STAYS = 5e-4, 12.0, 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, LinearModel, PrivateLinear):  # type: ignore[misc]
    """Least squares, the scale of targets, and the choice of a solver."""

    target_bounds: Any = None
    solver: str = "auto"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on so few rows as tests have, that is what privacy costs
        tags.input_tags.sparse = False
        return tags

    def _fit_numbers(self, features: Any, targets: Any, unit_ids: Any, penalty: float) -> None:
        """Fit; leaves coef_, intercept_, solver_, predicted_errors_, and what `_released` leaves."""
        warn_of_selection()
        X, y = self._checked(features, targets, y_numeric=True)
        units = units_of(unit_ids, len(X))
        scale = self._scale(X.shape[1])
        target = TargetScale.of(self.target_bounds)
        scaled = target.scaled(np.asarray(y, dtype=np.float64))
        problem = FitProblem(X, scaled, number_residuals(scaled), scale, penalty / len(X))
        more = {"slower": SLOWER, "curvature": 1.0}
        asked = self._asked(units, len(X), scale.dimension, squares_clip_norm, **more)
        solver, errors = self._chosen(asked, scale, units)
        if self.target_bounds is None:  # targets are not looked at
            warnings.warn(
                "target_bounds is not given: targets are taken as they are, and should be of about unit size."
                " Far larger ones are clipped row by row, and the model is then useless, though as private."
                " Give target_bounds=(lowest, highest), public ones; (-1, 1) where targets are scaled"
                " already.",
                stacklevel=3,
            )
        if solver == "moments":
            weights, mechanism, keys = self._by_moments(asked, problem, units)
            plan, steps = None, 1
        else:
            weights, found, keys = self._descended(asked, problem, 1, units)
            mechanism, plan, steps = found.mechanism, found.plan, found.mechanism.steps
        # not before: a fit that is refused leaves the model as it was
        self.plan_, self.n_iter_ = plan, steps
        self.solver_, self.predicted_errors_ = solver, errors
        coefficients, intercepts = scale.coefficients(weights)
        self.coef_ = coefficients[0] * target.unit
        self.intercept_ = float(intercepts[0] * target.unit + target.centre)
        self._released(mechanism, keys)

    def _chosen(
        self, asked: FitRequest, scale: FeatureScale, units: Units | None
    ) -> tuple[str, dict[str, float]]:
        """(solver, predicted squared errors of both, of targets in [-1, 1])."""
        solver = one_of("solver", self.solver, SOLVERS)
        bounded = scale.bounds is not None and self.target_bounds is not None
        if solver == "moments" and not bounded:
            raise ValueError(
                'solver="moments" without feature_bounds and target_bounds: nothing would bound what a row'
                " adds to the sums. Give both, public ones."
            )
        plain = are_means(units)
        if solver == "moments" and not plain:
            raise UnsupportedError(
                'solver="moments" takes the mean over the rows of each unit: rows with several owners,'
                ' combine="sum" and max_examples need solver="descent".'
            )
        if solver != "auto" or not bounded or not plain or not wants_mechanism(asked):
            return ("descent" if solver == "auto" else solver), {}
        found = planned(asked)
        noise = STAYS * found.noise() ** 2 / SPREAD
        m, entry = scale.dimension, entry_noise(MomentSums(scale), moments_mechanism(asked))
        errors = {
            "descent": LEFT + noise,
            # of m directions of variance 1 / (12 m), and coefficients that explain a ninth
            "moments": SPREAD * (m * entry) ** 2 * (1.0 + SPREAD * m / 9.0),
        }
        return min(errors, key=lambda name: errors[name]), errors

    def _by_moments(
        self, asked: FitRequest, problem: FitProblem, units: Units | None
    ) -> tuple[Array, Mechanism, FitKeys]:
        if not wants_mechanism(asked):
            raise ValueError(
                'solver="moments" makes one release of its own: leave mechanism, sampling and batch_size as'
                ' they are, or take solver="descent".'
            )
        sums, mechanism = MomentSums(problem.scale), moments_mechanism(asked)
        found = with_advice(asked, mechanism)
        keys = self._keys(problem, units, found)
        self._book(mechanism)
        weights = fit_by_moments(
            sums, mechanism, problem.features, problem.targets, units, problem.penalty, keys.noise
        )
        return weights, mechanism, keys


@dataclass(eq=False, repr=False)
class Ridge(PrivateRegressor):
    """Least squares with a penalty, with a guarantee for every row or unit.

    Either by gradient descent on clipped gradients, or from one release of the sums of x x^T and x y and a
    closed form: whichever promises the smaller error for these numbers of rows and features and this
    guarantee, which looks at no private value.

    Guarantee: the coefficients are (`epsilon`, `delta`)-differentially private, as `statement()` says.

    Args:
        alpha: of the penalty alpha / 2 |w|^2 beside the sum of half the squared residuals, >= 0, on scaled
            features and targets.
        target_bounds: public (lowest, highest): targets are clipped to them and scaled to [-1, 1]. None for
            targets of about that size.
        solver: "descent", "moments" (which needs both bounds), or "auto".
        clip_norm: of one row's gradient, where a row with bounds has norm 1 at most; "auto" as there.
        epsilon, delta, feature_bounds, fit_intercept, max_iter, batch_size, mechanism, sampling, adjacency,
            unit, random_state, book: see `LogisticRegression`.

    Attributes:
        coef_, intercept_: shape (d,), and a number, for features and targets as given.
        solver_: which was chosen.
        predicted_errors_: of both, squared, for targets in [-1, 1]; empty where nothing was compared.
        mechanism_, epsilon_, delta_, plan_, n_iter_: see `LogisticRegression`.

    Raises:
        ValueError, MismatchError: in `fit`, for an argument out of range or a mechanism for other data.

    Example:
        >>> import numpy as np
        >>> from anechoic.linear import Ridge
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (4000, 3))
        >>> y = X @ [1.0, 2.0, 0.0] + rng.normal(0, 0.1, 4000)
        >>> model = Ridge(epsilon=1, feature_bounds=(-1, 1), target_bounds=(-4, 4)).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True

    References:
        Vu and Slavkovic, Differential Privacy for Clinical Trial Data (2009), and Wang, Revisiting
        differentially private linear regression (arXiv 1803.02596), for the moments; see
        `LogisticRegression` for descent.
    """

    alpha: float = 1.0
    epsilon: float = 1.0
    delta: float | None = None

    def fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """Fit, and release the coefficients.

        Args:
            X: features, shape (N, d), finite.
            y: targets, shape (N,), finite.
            unit_ids: see `LogisticRegression.fit`.
        """
        self._fit_numbers(X, y, unit_ids, at_least("alpha", self.alpha))
        return self


@dataclass(eq=False, repr=False)
class LinearRegression(PrivateRegressor):
    """Least squares, with a guarantee for every row or unit: `Ridge` without a penalty.

    Args:
        epsilon, delta, feature_bounds, target_bounds, solver, clip_norm, fit_intercept, max_iter, batch_size,
            mechanism, sampling, adjacency, unit, random_state, book: see `Ridge`.

    Attributes:
        coef_, intercept_, solver_, predicted_errors_, mechanism_, epsilon_, delta_, plan_, n_iter_: see
            `Ridge`.

    Raises:
        ValueError, MismatchError: in `fit`, as `Ridge`.
    """

    epsilon: float = 1.0
    delta: float | None = None

    def fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """Fit, and release the coefficients; see `Ridge.fit`."""
        self._fit_numbers(X, y, unit_ids, 0.0)
        return self
