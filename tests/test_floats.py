"""No test and no loop hangs on the last digit of a float, which differs from processor to processor."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.floats import same_bits

ROOT = Path(__file__).resolve().parents[1]

# What is computed in floating point wherever it is called or read by this name.
FLOATS = {
    *("loss", "error", "lower_bound", "upper_bound", "gap", "rms", "sensitivity", "largest_column_norm"),
    *("epsilon", "get_epsilon", "gaussian_epsilon", "poisson_epsilon", "random_allocation_epsilon"),
    *("gdp", "noise_std", "noise_multiplier", "predicted_error", "relative_error", "gaussian_delta"),
}
# What compares with a tolerance, or names a value that is no result.
SAFE = {"approx", "None"}
ALIKE = {"array_equal", "array_equiv"}


def name(node):
    """The last name of `found.loss`, `mechanism.epsilon(1e-5)`, `sensitivity(c, schema).value`."""
    while isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and node.attr == "value"):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def is_given(node):
    """A literal: a number that is written down is met exactly where it is a limit, or stored."""
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    )


def nodes(source, kind):
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, kind))


def equal_results(source):
    """Lines with `==` between a float of `FLOATS` and another result."""
    for node in nodes(source, ast.Compare):
        for operator, pair in zip(node.ops, itertools.pairwise([node.left, *node.comparators]), strict=True):
            names = {name(side) for side in pair}
            results = names & FLOATS and not names & SAFE and not any(map(is_given, pair))
            if isinstance(operator, ast.Eq) and results:
                yield node.lineno


def loops_until_equal(source):
    """Lines of loops that go on while two arrays, or two numbers that are computed in them, differ."""
    for node in nodes(source, ast.While) if "while " in source else ():
        changed = {
            inner.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
        for part in ast.walk(node.test):
            if isinstance(part, ast.Call) and name(part) in ALIKE:
                yield node.lineno
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.NotEq):
                sides = [part.left, part.comparators[0]]
                if all(isinstance(side, ast.Name) and side.id in changed for side in sides):
                    yield node.lineno


def found(check, folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    return [f"{path.relative_to(ROOT)}:{line}" for path in files for line in check(path.read_text())]


@pytest.mark.slow
def test_results_of_two_computations_are_compared_with_a_tolerance():
    assert found(equal_results, "tests") == [], "pytest.approx, or tests.floats.same_bits for what is stored"


@pytest.mark.slow
def test_no_loop_ends_when_two_floats_are_equal():
    assert found(loops_until_equal, "src") == [], "they never are where one is NaN: count, or compare with <"


@pytest.mark.parametrize(
    "line",
    [
        "assert whole.loss == optimiser(workload, loss='rms').loss",
        "assert found.lower_bound == max(taken)",
        "assert sensitivity(c, schema).value == expected",
        "assert 0 < spent == mechanism.epsilon(1e-5) <= 4",
    ],
)
def test_a_comparison_of_results_is_seen(line):
    assert list(equal_results(line)) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "assert found.loss == pytest.approx(other.loss)",
        "assert mechanism.epsilon() == 0.0 and found.gap == -0.0",
        "assert found.loss <= other.loss",
        "assert same_bits(again.noise_std, mechanism.noise_std)",
        "assert found.name == other.name",
    ],
)
def test_other_comparisons_pass(line):
    assert list(equal_results(line)) == []


@pytest.mark.parametrize(
    "line", ["while last is None or not np.array_equal(last, x): f(x)", "while a != b: a, b = b, f(a)"]
)
def test_a_loop_until_equality_is_seen(line):
    assert list(loops_until_equal(line)) == [1]
    assert list(loops_until_equal("while high - low > 1e-9 * high: low = f(low)")) == []


def test_same_bits_are_of_the_same_kind():
    assert same_bits(0.1 + 0.2, 0.1 + 0.2) and not same_bits(0.1 + 0.2, 0.3)
    assert same_bits(np.nan, np.nan) and not same_bits(0.0, -0.0)
    assert not same_bits(np.ones(2, np.float32), np.ones(2))
