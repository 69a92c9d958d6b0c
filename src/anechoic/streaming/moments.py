"""Moments and linear regression: running sums of products of clipped vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from anechoic._validate import Array, finite_array, positive_float, positive_int
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import Records, Rows, counted, in_ball, numbers, read_vectors


class Moments(Rows):
    """Mean and covariance of vectors, clipped to 2-norm `bound` around `centre`.

    A record adds (1, u, u u^T) with u = (x - centre) / bound, of norm at most sqrt(3): the symmetric matrix
    is kept as its upper half, off-diagonal entries times sqrt(2). The value has shape (d + 1, d): the mean,
    then the covariance, projected to the nearest positive semi-definite matrix. Standard errors are
    linearised at the estimate before that.

    Args:
        bound: > 0.
        dimension: d, >= 1.
        centre: shape (d,), public; the origin by default.
        column: of the batch.

    Raises:
        ValueError: for an argument out of range.
    """

    name = "moments"
    bound = float(np.sqrt(3.0))
    spread = 2.0  # an entry of the covariance rests on a product, two sums and the count

    def __init__(
        self, bound: float, dimension: int = 1, centre: Any = None, column: str | None = None
    ) -> None:
        remedy = "Without a bound one record could change a sum by any amount."
        self._radius = positive_float("bound", bound, remedy=remedy)
        self._d = positive_int("dimension", dimension)
        self._centre = finite_array("centre", np.zeros(self._d) if centre is None else centre, length=self._d)
        self._half = HalfMatrix(self._d)
        self.dimension, self.column = 1 + self._d + self._half.size, column

    @property
    def labels(self) -> tuple[str, ...]:
        if self._d == 1:
            return ("mean", "variance")
        means = tuple(f"mean[{i}]" for i in range(self._d))
        return means + tuple(f"covariance[{i},{j}]" for i in range(self._d) for j in range(self._d))

    def read(self, batch: Any) -> Records:
        return read_vectors(batch, self._d, self._centre, self._radius)

    def rows(self, values: Array) -> Array:
        inside, _ = in_ball(values, self._centre, self._radius)
        return np.concatenate([np.ones((len(inside), 1)), inside, self._half.of(inside)], axis=1)

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        count = max(totals[0], deviation)  # fewer records than that cannot be told from none
        first, second = totals[1 : 1 + self._d] / count, self._half.full(totals[1 + self._d :]) / count
        covariance = second - np.outer(first, first)
        eigenvalues, vectors = np.linalg.eigh(covariance)
        projected = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
        value = np.vstack([self._centre + self._radius * first, self._radius**2 * projected])
        error = np.vstack([self._mean_error(first), self._covariance_error(first, second)])
        error *= deviation / count
        return Estimate(value, error, value - z * error, value + z * error, totals)

    def _mean_error(self, first: Array) -> Array:
        return np.asarray(self._radius * np.sqrt(1 + np.square(first)))

    def _covariance_error(self, first: Array, second: Array) -> Array:
        """Of Q/N - (S/N)(S/N)^T, in units of deviation / N."""
        own = np.where(np.eye(self._d) > 0, 1.0, 0.5)  # variance of the noise in an entry of Q
        squares = np.square(first)[:, None] + np.square(first)[None, :]
        squares[np.diag_indices(self._d)] *= 2  # 2 m_i S_i: (2 m_i)^2
        count = np.square(second - 2 * np.outer(first, first))
        return np.asarray(self._radius**2 * np.sqrt(own + squares + count))

    def describe(self) -> dict[str, Any]:
        centre = self._centre.tolist()
        return {"kind": "moments", "bound": self._radius, "centre": centre, "column": self.column}


class LinearRegression(Rows):
    """Coefficients of a linear model y = x · theta, from noisy sums of x x^T and x y.

    A record is a row (x, y); x is clipped to 2-norm `bound`, y to [-target_bound, target_bound]. It adds
    (u u^T, u w) with u = x / bound and w = y / target_bound, of norm at most sqrt(2). Eigenvalues of the
    matrix below the size of its noise (sqrt(2 d) standard deviations, its spectral norm for large d) are
    raised to it, so that it can be inverted: in such directions coefficients are drawn towards 0, and
    intervals do not speak of that. In all others nothing is drawn, and intervals cover as stated. Standard
    errors are linearised at the estimate, and do not speak of sampling.

    Args:
        features: d, >= 1. For an intercept let one of them be constant.
        bound, target_bound: > 0.
        column: of the batch, in which a record has d + 1 numbers, the target last.

    Raises:
        ValueError: for an argument out of range.
    """

    name = "coefficients"
    bound = float(np.sqrt(2.0))

    def __init__(self, features: int, bound: float, target_bound: float, column: str | None = None) -> None:
        self._d = positive_int("features", features)
        self._radius = positive_float("bound", bound, remedy="It limits the norm of x.")
        self._target = positive_float("target_bound", target_bound, remedy="It limits |y|.")
        self._half = HalfMatrix(self._d)
        self.dimension, self.column = self._half.size + self._d, column
        self.spread = float(np.sqrt(self.dimension))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"coefficient[{i}]" for i in range(self._d))

    def read(self, batch: Any) -> Records:
        values = numbers(batch, self._d + 1)
        usable = np.asarray(np.isfinite(values).all(axis=1))
        _, long = in_ball(values[usable, :-1], 0.0, self._radius)
        large = np.abs(values[usable, -1]) > self._target
        remarks = {"not finite": counted(~usable), "clipped to the bounds": counted(long | large)}
        return Records(len(values), values, usable, remarks)

    def rows(self, values: Array) -> Array:
        inside, _ = in_ball(values[:, :-1], 0.0, self._radius)
        target = np.clip(values[:, -1:], -self._target, self._target) / self._target
        return np.concatenate([self._half.of(inside), inside * target], axis=1)

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        ridge = np.sqrt(2.0 * self._d) * deviation
        matrix = self._half.full(totals[: self._half.size])
        eigenvalues, vectors = np.linalg.eigh(matrix)
        inverse = (vectors / np.maximum(eigenvalues, ridge)) @ vectors.T
        theta = inverse @ totals[self._half.size :]
        # noise of x y, and of x x^T times theta, whose covariance is (|theta|^2 I + theta theta^T) / 2
        noise = np.eye(self._d) * (1 + theta @ theta / 2) + np.outer(theta, theta) / 2
        error = deviation * np.sqrt(np.diag(inverse @ noise @ inverse))
        scale = self._target / self._radius
        value, error = scale * theta, scale * error
        return Estimate(value, error, value - z * error, value + z * error, totals)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "linear regression",
            "features": self._d,
            "bound": self._radius,
            "target_bound": self._target,
            "column": self.column,
        }


class HalfMatrix:
    """Symmetric d x d matrices as their upper halves, with the same 2-norm."""

    def __init__(self, d: int) -> None:
        self._d = d
        self._where = np.triu_indices(d)
        self._factor = np.where(self._where[0] == self._where[1], 1.0, np.sqrt(2.0))
        self.size = len(self._factor)

    def of(self, vectors: Array) -> Array:
        """Halves of u u^T for each row u, shape (k, size)."""
        return np.asarray(vectors[:, self._where[0]] * vectors[:, self._where[1]] * self._factor)

    def full(self, half: Array) -> Array:
        """The matrix."""
        matrix = np.zeros((self._d, self._d))
        matrix[self._where] = half / self._factor
        return matrix + np.triu(matrix, 1).T
