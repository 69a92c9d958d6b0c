"""Every workload against the shipped contract, and the contract against workloads that break it."""

from types import SimpleNamespace

import numpy as np
import pytest

from anechoic import workloads
from anechoic.losses.dispatch import error
from anechoic.testing import WorkloadContract
from anechoic.testing._compare import ContractError
from anechoic.workloads.general import LowerTriangular
from anechoic.workloads.sums import ToeplitzWorkload
from tests.contracts import check_workload
from tests.workloads.test_workloads import ALL

SMALL = {name: workload for name, workload in ALL.items() if workload.n <= 64}


class TestOurs(WorkloadContract):
    def workloads(self):
        return SMALL.values()


def returning(value):
    return lambda self, *args: value


def changed(method, how):
    return lambda self, x: how(getattr(ToeplitzWorkload, method)(self, x))


def writing(self, x):
    x *= 1.0 + 1e-15
    x[0] += 1.0
    return ToeplitzWorkload.solve(self, x)


BROKEN = {
    "shape": ({"to_dense": returning(np.eye(5))}, "shape"),
    "type": ({"to_dense": returning(np.eye(6, dtype=np.float32))}, "not float64"),
    "finite": ({"to_dense": returning(np.full((6, 6), np.inf))}, "not finite"),
    "upper": ({"to_dense": returning(np.ones((6, 6)))}, "above the diagonal"),
    "diagonal": ({"to_dense": returning(-np.eye(6))}, "not positive"),
    "storage": ({"to_dense": lambda self: self.__dict__.setdefault("_d", np.eye(6))}, "own storage"),
    "multiply": ({"multiply": changed("multiply", lambda y: 1.1 * y)}, "multiply"),
    "solve": ({"solve": changed("solve", lambda y: y[::-1])}, "solve"),
    "adjoint": ({"adjoint_multiply": lambda self, x: self.multiply(x)}, "adjoint_multiply"),
    "argument": ({"solve": writing}, "changed its argument"),
    "lengths": (
        {
            "multiply": lambda self, x: (
                self.to_dense() @ x[:6] if x.ndim < 3 else np.tensordot(self.to_dense(), x, axes=1)
            )
        },
        "multiply of 7 rows is not refused",
    ),
    "prefix": ({"is_prefix_sum": property(returning(True))}, "not all ones"),
    "toeplitz": ({"is_toeplitz": property(returning(False))}, "is_toeplitz"),
    "length": ({"coefficients": property(returning(np.array([1.0, 0.5])))}, "coefficients has shape"),
    "fraction": ({"fraction": property(returning((np.ones(1), np.array([1.0, 0.3]))))}, "fraction"),
    "long fraction": ({"fraction": property(returning((np.ones(1), np.ones(7))))}, "more than n"),
    "inverse": ({"inverse_coefficients": property(returning(np.ones(3)))}, "inverse_coefficients"),
    "truncate": ({"truncate": lambda self, steps: workloads.prefix_sum(steps)}, "truncate|has n="),
    "truncate n": ({"truncate": lambda self, steps: self}, "truncate"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name):
    replaced, words = BROKEN[name]
    broken = type("Broken", (ToeplitzWorkload,), replaced)(6, np.array([1.0, 0.5, 0.25]))
    with pytest.raises(ContractError, match=words):
        check_workload(broken, serialized=False)


def test_a_diagonal_that_is_not_in_the_rates_is_seen():
    class Hidden(ToeplitzWorkload):
        @property
        def rates(self):
            return np.linspace(1.0, 2.0, self.n)

        def to_dense(self):
            return ToeplitzWorkload(self.n, self.column).to_dense()

    with pytest.raises(ContractError, match="multiply"):
        check_workload(Hidden(4, np.array([1.0, 0.5])), serialized=False)


def test_coefficients_that_are_not_those_of_the_matrix_are_seen():
    class Claiming(LowerTriangular):
        has_toeplitz_factor = is_toeplitz = True
        coefficients = inverse_coefficients = np.array([1.0, 0.0, 0.0])
        fraction = np.ones(1), np.ones(1)

    check_workload(Claiming(np.eye(3)), serialized=False)
    with pytest.raises(ContractError, match="coefficients"):
        check_workload(Claiming(np.eye(3) + np.eye(3, k=-1)), serialized=False)


def test_a_workload_that_no_file_holds_is_seen():
    class Forgetful(LowerTriangular):
        pass

    with pytest.raises(TypeError, match="register its class"):
        check_workload(Forgetful(np.eye(3)))


@pytest.mark.parametrize("wrong", ["per_step", "rms", "max"])
def test_error_that_is_not_that_of_the_matrix_is_seen(wrong, monkeypatch):
    def off(workload, strategy):
        found = error(workload, strategy)
        numbers = {name: getattr(found, name) for name in ("per_step", "rms", "max")}
        return SimpleNamespace(**{**numbers, wrong: 1.01 * numbers[wrong]})

    monkeypatch.setattr("anechoic.testing.workload.error", off)
    with pytest.raises(ContractError, match="error under"):
        check_workload(workloads.prefix_sum(5))
