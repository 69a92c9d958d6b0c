"""Linear models with the interface of scikit-learn, and a guarantee for every row or unit. No PyTorch."""

import anechoic.linear.require_sklearn  # noqa: F401  first: it says which extra is missing
from anechoic.linear.classifiers import LogisticRegression
from anechoic.linear.regressors import LinearRegression, Ridge

__all__ = ["LinearRegression", "LogisticRegression", "Ridge"]
