"""SGD in time order: one pass over rows as they stand, or one step for every call of partial_fit."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if

from anechoic._validate import Array, at_least, fraction, positive_int
from anechoic.errors import MismatchError
from anechoic.linear.classifiers import PrivateClassifier, coded
from anechoic.linear.descent import FitRequest, planned
from anechoic.linear.fitting import Problem, class_residuals, fit_by_descent, number_residuals
from anechoic.linear.keys import fresh_keys
from anechoic.linear.losses import classifier_loss, probabilities, regressor_loss
from anechoic.linear.online_run import OnlineRun
from anechoic.linear.privacy import (
    CLASSES_READ,
    PrivateLinear,
    counted,
    given_classes,
    given_target_bounds,
    units_of,
    warn_of_selection,
)
from anechoic.linear.regressors import CLIP_NORM, LinearNumbers
from anechoic.linear.scaling import TargetScale
from anechoic.participation import Single
from anechoic.participation.base import Participation
from anechoic.sampling import External
from anechoic.units.ownership import Units

#: Steps of a pass where the batch size is automatic.
STEPS = 100
#: Of the rate of a regressor, beside that of classifiers.
SLOWER = 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class Online(PrivateLinear):
    """What both have: passes in the order of the data, and steps that are called for one by one."""

    alpha: float = 0.0
    max_iter: int = 1
    momentum: float = 0.0
    steps: int = 1000
    participation: Participation | None = None

    def _in_order(self, asked: FitRequest) -> FitRequest:
        """Of `fit`: passes over chunks of the data as they stand."""
        passes = asked.steps
        size = asked.batch_size
        if isinstance(size, str) and size == "auto":
            size = -(-asked.units // STEPS)
        momentum = self.momentum
        if momentum != 0.0:
            fraction("momentum", momentum, remedy="Or 0 for none.")
        period = -(-asked.units // positive_int("batch_size", size, remedy='Or "auto".'))
        return replace(
            asked,
            batch_size=min(size, asked.units),
            steps=passes * period,
            momentum=float(momentum),
            shuffled=False,
            quick=True,
        )

    def _step(self, problem: Problem, outputs: int, units: Units | None, unit_ids: Any, **more: Any) -> None:
        """One call of partial_fit: plans at the first, and makes one release."""
        if not hasattr(self, "_run"):
            if hasattr(self, "mechanism_"):
                raise MismatchError(
                    "this model was fitted by fit(), loaded or copied, and cannot go on: another process may"
                    " use the same noise for other rows. Make a new estimator for new rows: its epsilon is"
                    " spent on those."
                )
            self._begin(problem, outputs, units, **more)
        weights = self._run.step(problem, units, unit_ids)
        self.n_iter_ = self._run.descent.steps
        self._set_weights(weights, problem.scale)

    def _begin(self, problem: Problem, outputs: int, units: Units | None, **more: Any) -> None:
        if isinstance(self.random_state, bytes):
            raise ValueError(
                "random_state holds bytes, and partial_fit draws fresh keys: noise of a given key could not"
                " depend on the rows of later calls, so that two runs would share it and differ by their rows"
                " alone. Leave random_state out."
            )
        promise = Single() if self.participation is None else self.participation
        if not isinstance(promise, Participation):
            raise ValueError(
                f"participation={promise!r} must be a Participation, such as MinSep(100), or None for"
                " Single()."
            )
        given: Any = self.steps
        steps = positive_int("steps", given, remedy="It counts calls of partial_fit.")
        size = self.batch_size
        if isinstance(size, str) and size == "auto":
            size = counted(problem.count, units)
        size = positive_int("batch_size", size, remedy='Or "auto" for that of the first call.')
        sampling = External(promise, size, steps, size * steps)
        asked = self._asked(size * steps, units, outputs * problem.scale.dimension, outside=sampling, **more)
        asked = replace(self._in_order(asked), steps=steps, schedule="constant", batch_size=size)
        found, keys = planned(asked), fresh_keys()
        self._book(found.mechanism)
        self._run = OnlineRun.of(asked, found, problem, outputs, keys)
        self.plan_ = found.plan
        self._released(found.mechanism, keys, *problem.caveats)

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_run", None)  # noise goes with one process: what is loaded predicts
        return state


@dataclass(eq=False, repr=False)
class SGDClassifier(Online, PrivateClassifier):
    """A linear classifier by stochastic gradient descent in time order, with correlated noise.

    `fit` makes passes over chunks of the rows as they stand. `partial_fit` makes one step a call, for rows as
    they come in: the first call plans the noise of all `steps`, and each row is for one call.

    Guarantee: all releases together (the coefficients after every step) are (`epsilon`,
    `delta`)-differentially private. Under `partial_fit` whoever calls it promises `participation`; with
    `unit_ids` it is enforced: rows of a unit that may not take part again are left out.

    Args:
        loss: "log_loss", "hinge", "squared_hinge" or "modified_huber".
        epsilon, delta, feature_bounds, classes, clip_norm, fit_intercept, sampling, adjacency, unit,
            random_state, book: see `LogisticRegression`. Under `partial_fit` the N of delta is batch size x
            steps, keys are always fresh (an integer is of no effect, and bytes are refused), and the first
            call books all steps.
        alpha: of the penalty alpha / 2 |w|^2 beside the mean loss, >= 0, on scaled features.
        max_iter: passes of `fit`.
        momentum: of heavy ball, in [0, 1).
        steps: calls of `partial_fit` at most.
        batch_size: rows (units) a step: "auto" for a hundredth of the data, or those of the first call.
        participation: of `partial_fit`: how often a row (unit) takes part; None for once.
        mechanism: "auto" for the better of independent noise and a BLT, which takes no time to plan; another
            class of strategies; or a `Mechanism` with a grid.

    Attributes:
        coef_, intercept_, classes_, mechanism_, epsilon_, delta_, plan_: see `LogisticRegression`; epsilon_
            is of all steps, made or not.
        n_iter_: steps so far.

    Raises:
        ValueError, MismatchError: as `LogisticRegression`.
        HorizonError: in `partial_fit`, after `steps` calls.
        GuaranteeError: in `partial_fit`, in another process than the first.

    Example:
        >>> import numpy as np
        >>> from anechoic.linear import SGDClassifier
        >>> rng = np.random.default_rng(0)
        >>> model = SGDClassifier(epsilon=2, feature_bounds=(-1, 1), classes=[0, 1], steps=50)
        >>> for _ in range(50):
        ...     X = rng.uniform(-1, 1, (200, 2))
        ...     _ = model.partial_fit(X, (X[:, 0] > 0).astype(int))
        >>> model.n_iter_, bool(model.score(X, X[:, 0] > 0) > 0.8)
        (50, True)

    References:
        Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling (arXiv
        2103.00039); McMahan, Xu and Zhang, A Hassle-free Algorithm for Strong Differential Privacy in
        Federated Learning Systems (arXiv 2408.08868), for BLTs.
    """

    loss: str = "log_loss"
    epsilon: float = 1.0
    delta: float | None = None

    def fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """Fit in the order of the rows, and release the coefficients; see `LogisticRegression.fit`."""
        self.__dict__.pop("_run", None)
        self._fit(X, y, unit_ids, loss=self.loss, penalty=at_least("alpha", self.alpha), mean=True)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, unit_ids: Any = None) -> Self:
        """One step, and one release.

        Args:
            X: features, shape (rows, d), finite.
            y: classes, shape (rows,).
            classes: all of them, at the first call, where the estimator was not told.
            unit_ids: who owns each row, shape (rows,); None where every row is a unit of its own.
        """
        first = not hasattr(self, "mechanism_")
        X, y = self._checked(X, y, reset=first)
        if first:
            known = self.classes if self.classes is not None else classes
            public = given_classes(known)
            self.classes_ = coded(y, known)[0]
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} is not those of the first call, {self.classes_!r}.")
        else:
            public = True
        codes = coded(y, self.classes_)[1]
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        residuals = class_residuals(classifier_loss(self.loss, outputs), codes, outputs)
        problem = Problem(
            X, codes, residuals, self._scale(X.shape[1]), at_least("alpha", self.alpha),
            () if public else (CLASSES_READ,),
        )  # fmt: skip
        self._step(problem, outputs, units_of(unit_ids, len(X)), unit_ids)
        return self

    @available_if(lambda self: self.loss == "log_loss")
    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (rows, classes), of `loss="log_loss"`."""
        return probabilities(self.decision_function(X))


@dataclass(eq=False, repr=False)
class SGDRegressor(Online, LinearNumbers):
    """A linear regressor by stochastic gradient descent in time order, with correlated noise.

    As `SGDClassifier`, for numbers.

    Args:
        loss: "squared_error", "huber" or "epsilon_insensitive".
        loss_width: of the last two, in units of the scaled target, > 0.
        target_bounds: public (lowest, highest): targets are clipped to them and scaled to [-1, 1]. None for
            targets of about that size.
        epsilon, delta, feature_bounds, clip_norm, alpha, fit_intercept, max_iter, momentum, steps,
            batch_size, participation, mechanism, sampling, adjacency, unit, random_state, book: see
            `SGDClassifier`. The momentum is .9 here.

    Attributes:
        coef_, intercept_: shape (d,), and a number, for features and targets as given.
        mechanism_, epsilon_, delta_, plan_, n_iter_: see `SGDClassifier`.

    Raises:
        ValueError, MismatchError, HorizonError, GuaranteeError: as `SGDClassifier`.
    """

    loss: str = "squared_error"
    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    loss_width: float = 0.1
    momentum: float = 0.9

    def fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """Fit in the order of the rows, and release the coefficients; see `Ridge.fit`."""
        warn_of_selection()
        self.__dict__.pop("_run", None)
        problem = self._problem(X, y, reset=True)
        units = units_of(unit_ids, problem.count)
        how: dict[str, Any] = {"clip_norm": CLIP_NORM, "slower": SLOWER, "curvature": 1.0}
        asked = self._asked(counted(problem.count, units), units, problem.scale.dimension, **how)
        fitted = fit_by_descent(self._in_order(asked), problem, 1, units, self._keys, self._book)
        self.plan_, self.n_iter_ = fitted.planned.plan, fitted.planned.mechanism.steps
        self._set_weights(fitted.weights, problem.scale)
        self._released(fitted.planned.mechanism, fitted.keys)
        return self

    def partial_fit(self, X: Any, y: Any, *, unit_ids: Any = None) -> Self:
        """One step, and one release; see `SGDClassifier.partial_fit`."""
        problem = self._problem(X, y, reset=not hasattr(self, "mechanism_"))
        units = units_of(unit_ids, problem.count)
        self._step(problem, 1, units, unit_ids, clip_norm=CLIP_NORM, slower=SLOWER, curvature=1.0)
        return self

    def _problem(self, features: Any, targets: Any, *, reset: bool) -> Problem:
        X, y = self._checked(features, targets, y_numeric=True, reset=reset)
        if reset:
            given_target_bounds(self.target_bounds)
        self._target = TargetScale.of(self.target_bounds)
        scaled = self._target.scaled(np.asarray(y, dtype=np.float64))
        residuals = number_residuals(regressor_loss(self.loss, self.loss_width), scaled)
        return Problem(X, scaled, residuals, self._scale(X.shape[1]), at_least("alpha", self.alpha))
