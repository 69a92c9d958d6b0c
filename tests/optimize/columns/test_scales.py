"""How long banded columns may be: norms that a schema allows, prices, multipliers."""

from importlib import import_module

import numpy as np
import pytest
from scipy.optimize import linprog

from anechoic.participation import MinSep
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Banded
from tests.optimize.columns.banded_cases import SCHEMAS, free_columns

scaling = import_module("anechoic.optimize.columns.scales")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_scales(schema):
    n, bands = 23, 4
    scales = scaling.scales_of(schema, np.linspace(1.0, 0.1, n)[:, None], bands)
    variables = scales.variables(free_columns(n, bands))
    variables[len(variables) - scales.bounded :] = np.linspace(0.1, 0.4, scales.bounded)
    columns = scales.columns(variables)
    strategy = Banded(n, columns)
    found = sensitivity(strategy, schema)
    assert found.exact and found.value <= 1.0 + 1e-12
    if not isinstance(schema, MinSep):  # there only the best weights of windows have no slack
        assert found.value == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(scales.columns(scales.variables(columns)), columns, rtol=1e-9)
    # the pull-back, by differences of a linear function of C
    by_columns = np.random.default_rng(0).standard_normal((n, bands))
    slopes, size = scales.pull_back(variables, by_columns)
    steps = 1e-6 * np.eye(len(variables))
    values = [
        ((scales.columns(variables + s) - scales.columns(variables - s)) * by_columns).sum() / 2e-6
        for s in steps
    ]
    np.testing.assert_allclose(slopes, values, atol=1e-8)
    assert size > 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_price_is_the_value_of_a_linear_programme(schema):
    # max sum_t v_t d_t over squared norms d >= 0 whose sums over all patterns are at most 1
    n, bands = 17, 4
    scales = scaling.scales_of(schema, np.ones((n, 1)), bands)
    patterns = list(schema.patterns(n))
    sums = np.zeros((len(patterns), n))
    for row, pattern in zip(sums, patterns, strict=True):
        row[list(pattern)] = 1.0
    rng = np.random.default_rng(0)
    for v in (rng.random(n), np.arange(n) % 7 == 2, np.arange(n) // 3 == 1, rng.exponential(size=n) ** 3):
        best = linprog(-1.0 * v, sums, np.ones(len(patterns)))
        assert scales.price(1.0 * v) == pytest.approx(-best.fun)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_multipliers_are_worth_most_at_their_price(schema):
    n = 17
    scales = scaling.scales_of(schema, np.ones((n, 1)), 4)
    rewards = np.random.default_rng(0).random(n)
    rewards /= rewards.sum()
    found = scales.multipliers(rewards)
    assert scales.price(found) == pytest.approx(1.0, abs=2e-3)
    worth = rewards @ np.log(found / scales.price(found))
    rng = np.random.default_rng(1)
    for size in (0.01, 0.1, 1.0):
        for _ in range(50):
            other = found * np.exp(size * rng.standard_normal(n))
            assert rewards @ np.log(other / scales.price(other)) <= worth + 2e-3
