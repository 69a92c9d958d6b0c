"""Logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from anechoic._validate import Array, at_least
from anechoic.linear.descent import logistic_clip_norm
from anechoic.linear.fitting import FitProblem, class_residuals, fit_by_descent, probabilities
from anechoic.linear.privacy import (
    CLASSES_READ,
    PrivateLinear,
    counted,
    given_classes,
    units_of,
    warn_of_noise,
    warn_of_selection,
)
from anechoic.units.batch import Indices

#: Of the rate, for two classes and one output, which gets half the gradient that two outputs get.
BINARY = 2.0


@dataclass(eq=False, repr=False)
class LogisticRegression(LinearClassifierMixin, PrivateLinear):  # type: ignore[misc]
    """Logistic regression, of two classes or several, with a guarantee for every row or unit.

    Gradient descent with momentum on exact sums of clipped gradients. The mechanism, its noise, the number of
    rows a step and the rate follow from the numbers of rows and features and from the guarantee: nothing
    needs to be tuned.

    Guarantee: the coefficients are (`epsilon`, `delta`)-differentially private, as `statement()` says.

    Args:
        epsilon: > 0.
        delta: in (0, 1); None for 1 / (100 N), with N rows or units.
        feature_bounds: public (lowest, highest), numbers or arrays of shape (d,): features are clipped to
            them and scaled. None for features that are scaled already, to about [-1, 1].
        classes: all of them, public; None to read them from y, which the guarantee does not cover.
        clip_norm: of one row's gradient (one unit's), where a row with bounds has norm 1 at most; "auto" for
            what follows from the numbers of rows and features and from the guarantee.
        C: inverse strength of the penalty |w|^2 / 2, as scikit-learn has it, on scaled features; infinity for
            none: the noise already keeps coefficients from fitting single rows.
        fit_intercept: whether there is a constant.
        max_iter: steps n, each one release.
        batch_size: rows (units) a step; "auto" for all of them unless that takes long.
        mechanism: "auto"; a class of strategies; or a `Mechanism` with a grid, whose steps and clip norm
            then count.
        sampling: "auto", or as `anechoic.plan` takes it.
        adjacency: "zero_out", "replace_one" or "add_or_remove".
        unit: what is protected, where `unit_ids` say who owns which row.
        random_state: None for keys from the operating system; an integer for figures that can be reproduced,
            which protects from nobody who guesses it; or 32 secret bytes, with which the fit can be repeated
            and its noise be taken off. A pickle of the fitted model has them no more.
        book: a `BudgetBook`: every fit is charged to it, or refused, before there is any noise. A pickle of
            the fitted model has the name of the book alone, and is refused another fit.

    Attributes:
        coef_, intercept_: shape (1 or classes, d), (1 or classes,), for the features as given.
        classes_: shape (classes,).
        mechanism_, epsilon_, delta_: what they were released under.
        plan_: what was compared; None for a given mechanism.
        n_iter_: steps.

    Raises:
        ValueError, MismatchError: in `fit`, for an argument out of range or a mechanism for other data.
        GuaranteeError: in `fit`, where the book does not cover it.

    Example:
        >>> import numpy as np
        >>> from anechoic.linear import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (4000, 3))
        >>> y = X[:, 0] + X[:, 1] > 0
        >>> model = LogisticRegression(epsilon=1, feature_bounds=(-1, 1), classes=[False, True])
        >>> bool(model.fit(X, y).score(X, y) > 0.9), bool(model.epsilon_ <= 1)
        (True, True)

    References:
        Bassily, Smith and Thakurta, Private Empirical Risk Minimization (arXiv 1405.7085); Kairouz et al.,
        Practical and Private (Deep) Learning without Sampling or Shuffling (arXiv 2103.00039).
    """

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    C: float = np.inf
    classes: Sequence[Any] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on so few rows as tests have, that is what privacy costs
        return tags

    def fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """Fit, and release the coefficients.

        Args:
            X: features, shape (N, d), finite.
            y: classes, shape (N,).
            unit_ids: who owns each row, shape (N,); None where every row is a unit of its own. Within a
                pipeline it comes by metadata routing: `set_fit_request(unit_ids=True)`.
        """
        warn_of_selection()
        X, y = self._checked(X, y)
        check_classification_targets(y)
        units, penalty = units_of(unit_ids, len(X)), _strength(self.C)
        public = given_classes(self.classes)
        names, codes = coded(y, self.classes)
        outputs = 1 if len(names) == 2 else len(names)
        scale = self._scale(X.shape[1])
        problem = FitProblem(X, codes, class_residuals(codes, outputs), scale, penalty / len(X))
        slower, curvature = (BINARY, 0.25) if outputs == 1 else (1.0, 0.5)
        count, entries = counted(len(X), units), outputs * scale.dimension
        more: dict[str, Any] = {"slower": slower, "curvature": curvature, "flatter": True}
        asked = self._asked(units, count, entries, logistic_clip_norm, **more)
        fitted = fit_by_descent(asked, problem, outputs, units, self._keys, self._book, warn_of_noise)
        self.classes_ = names  # not before: a fit that is refused leaves the model as it was
        self.coef_, self.intercept_ = scale.coefficients(fitted.weights)
        self.plan_, self.n_iter_ = fitted.planned.plan, fitted.planned.mechanism.steps
        self._released(fitted.planned.mechanism, fitted.keys, *(() if public else (CLASSES_READ,)))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (rows, classes), computed from what was released."""
        return probabilities(self.decision_function(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Their logarithms."""
        return np.asarray(np.log(self.predict_proba(X)))


def _strength(inverse: float) -> float:
    """Of the penalty, 1 / C >= 0."""
    if not (isinstance(inverse, (int, float, np.number)) and not isinstance(inverse, bool) and inverse > 0):
        raise ValueError(f"C={inverse!r} must be > 0, or infinity for no penalty.")
    return at_least("1 / C", 1.0 / float(inverse))


def coded(labels: Any, classes: Sequence[Any] | None) -> tuple[Any, Indices]:
    """(classes ascending, the number of each label's class).

    Raises:
        ValueError: for fewer than two classes, or a label that is none of them.
    """
    known = np.unique(labels if classes is None else np.asarray(classes))
    if len(known) < 2:
        raise ValueError(f"y has {len(known)} class only: a classifier needs samples of at least 2 classes.")
    codes = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    if not np.array_equal(known[codes], labels):
        raise ValueError("y holds labels that are not among classes=: give all classes that there are.")
    return known, codes.astype(np.int64)
