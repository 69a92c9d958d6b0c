"""Linear models with the interface of scikit-learn, and a guarantee for every row or unit. No PyTorch."""

import anechoic.linear.require_sklearn  # noqa: F401  first: it says which extra is missing
from anechoic.linear.classifiers import LinearSVC, LogisticRegression
from anechoic.linear.online import SGDClassifier, SGDRegressor
from anechoic.linear.regressors import LinearRegression, Ridge

__all__ = ["LinearRegression", "LinearSVC", "LogisticRegression", "Ridge", "SGDClassifier", "SGDRegressor"]
