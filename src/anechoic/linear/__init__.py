"""Linear models with the interface of scikit-learn, and a guarantee for every row or unit. No PyTorch."""

from anechoic.linear.classifiers import LinearSVC, LogisticRegression

__all__ = ["LinearSVC", "LogisticRegression"]
