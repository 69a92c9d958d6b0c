"""Sums of clipped gradients: exact integers, clipped in closed form, each row by itself."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="anechoic[sklearn] installs it")
import threadpoolctl
from scipy.special import expit

from anechoic.linear import integer_rows, moments
from anechoic.linear.fitting import class_residuals, softmax
from anechoic.linear.integer_rows import MOST_BITS, IntegerRows
from anechoic.linear.moments import MomentSums
from anechoic.linear.scaling import FeatureScale
from anechoic.linear.sums import RankOneSums
from anechoic.noise.grid import largest_square
from anechoic.units.ownership import Units
from tests.floats import same_bits


def data(count=60, features=5, seed=0):
    return np.random.default_rng(seed).standard_normal((count, features))


def sums(features, outputs=1, clip_norm=0.3, bits=30, seed=1):
    codes = np.random.default_rng(seed).integers(0, max(2, outputs), len(features))
    rows = IntegerRows.of(features, min(bits // 2, MOST_BITS), lambda block: block)
    residuals = class_residuals(codes, outputs)
    return RankOneSums(rows, residuals, clip_norm, bits), codes


def weights(outputs, features, seed=2, size=1.0):
    return size * np.random.default_rng(seed).standard_normal((outputs, features))


def square(total):
    """Of integers, as Python has them: without a bound."""
    return sum(int(entry) ** 2 for entry in total.ravel())


def clipped(features, residuals, clip_norm):
    """By brute force: one matrix a row."""
    found = []
    for x, r in zip(features, residuals.T, strict=True):
        gradient = np.outer(r, x)
        norm = np.linalg.norm(gradient)
        found.append(gradient * min(1.0, clip_norm / norm) if norm else gradient)
    return np.array(found)


@pytest.mark.parametrize("outputs", [1, 4])
def test_clipping_in_closed_form_is_clipping(outputs):
    x, clip_norm = data(), 0.3 if outputs == 1 else 3.0
    made, codes = sums(x, outputs, clip_norm)
    w = weights(outputs, 5)
    kinds = np.arange(outputs) if outputs > 1 else np.array([1])
    targets = (codes == kinds[:, None]).astype(float)
    expected = clipped(x, (expit if outputs == 1 else softmax)(w @ x.T) - targets, clip_norm)
    norms = np.linalg.norm(expected, axis=(1, 2))
    assert (norms > 0.9999 * clip_norm).any() and (norms < 0.99 * clip_norm).any()
    for i in range(len(x)):
        found = made.of_rows(w, np.array([i])) * clip_norm * 2.0**-30
        assert found == pytest.approx(expected[i], abs=5e-4 * clip_norm)


@pytest.mark.parametrize("bits", [30, 21, 8])
@pytest.mark.parametrize("outputs", [1, 3])
def test_no_row_moves_a_sum_by_more_than_the_clip_norm(outputs, bits):
    """Rows of every size, weights of every size: the squares are counted in Python's integers."""
    rng, limit, reached = np.random.default_rng(5), largest_square(bits), 0.0
    for trial in range(24):
        x = rng.standard_normal((8, 7)) * 10.0 ** rng.integers(-200, 200, (8, 1))
        x[rng.random((8, 7)) < 0.3] = 0.0
        x[0], x[1, 0] = 0.0, 5e-324
        clip_norm = 10.0 ** rng.uniform(-6, 6)
        made, _ = sums(x, outputs, clip_norm, bits, seed=trial)
        w = weights(outputs, 7, trial, 10.0 ** rng.uniform(-250, 250))
        for i in range(8):
            found = square(made.of_rows(w, np.array([i])))
            assert found <= limit
            reached = max(reached, found / limit)
    assert reached > (0.99 if bits > 20 else 0.5)  # and some come near


def test_weights_that_are_no_numbers_add_nothing():
    made, _ = sums(data(), 3)
    for value in (np.nan, np.inf):
        assert not made.of_rows(np.full((3, 5), value)).any()


def test_sums_do_not_depend_on_order_blocks_and_threads(monkeypatch):
    x = data(4500, 9)
    made, _ = sums(x, 3)
    w = weights(3, 9)
    whole = made.of_rows(w)
    order = np.random.default_rng(0).permutation(len(x))
    assert same_bits(made.of_rows(w, order), whole)
    one_by_one = sum(made.of_rows(w, np.array([i])) for i in order[:60])
    assert same_bits(one_by_one, made.of_rows(w, order[:60]))
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            assert same_bits(made.of_rows(w), whole)
    monkeypatch.setattr(integer_rows.blocks, "__defaults__", (7,))
    assert same_bits(made.of_rows(w), whole)
    again = IntegerRows.of(x, 15, lambda block: block)
    assert same_bits(again.integers, made.rows.integers) and same_bits(again.units, made.rows.units)


def test_neighbouring_data_differ_by_the_row_alone():
    """Without one row, wherever it stood: the sum loses what that row adds alone, and nothing else moves."""
    x = data(300, 6)
    made, _ = sums(x, 3)
    w, everyone = weights(3, 6), np.arange(300)
    whole = made.of_rows(w)
    for gone in (0, 150, 299):
        rest = made.of_rows(w, everyone[everyone != gone])
        assert same_bits(whole - rest, made.of_rows(w, np.array([gone])))
        assert square(whole - rest) <= largest_square(30)


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_units_are_clipped_as_a_whole(combine):
    x = data(40, 4)
    made, codes = sums(x, 1, clip_norm=0.5)
    w, units = weights(1, 4), Units(np.arange(40) // 5, combine=combine)
    residuals = expit(w @ x.T) - codes
    expected = np.zeros((1, 4))
    for unit in range(8):
        mine = slice(5 * unit, 5 * unit + 5)
        gradient = residuals[:, mine] @ x[mine] / (5 if combine == "mean" else 1)
        expected += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
        alone = made.of_units(w, units.grouped(units.of(unit)))
        assert square(alone) <= largest_square(30)
    found = made.of_units(w, units.grouped(np.arange(40)))
    assert found * 0.5 * 2.0**-30 == pytest.approx(expected, abs=1e-3)
    rest = units.grouped(np.arange(5, 40))
    assert same_bits(found - made.of_units(w, rest), made.of_units(w, units.grouped(np.arange(5))))


def moment_sums(features=4):
    return MomentSums(FeatureScale(features, (np.full(features, -1.0), np.ones(features)), True))


def test_moments_are_those_of_the_rows():
    x, y = np.random.default_rng(0).uniform(-1, 1, (500, 4)), np.random.default_rng(1).uniform(-1, 1, 500)
    made = moment_sums()
    matrix, vector = made.unpacked(made.of_rows(x, y) * 2.0**-30 / 500)
    rows = made.scale.rows(x)
    assert matrix == pytest.approx(rows.T @ rows / 500, abs=1e-4)
    assert vector == pytest.approx(rows.T @ y / 500, abs=1e-4)


def test_no_row_adds_more_moments_than_the_grid_allows(monkeypatch):
    made, rng = moment_sums(), np.random.default_rng(3)
    corners = rng.choice([-1.0, 1.0], (200, 4)) * np.where(rng.random((200, 1)) < 0.5, 1.0, 1e3)
    found = [square(made.of_rows(corners[i : i + 1], np.array([1.0]))) for i in range(200)]
    one_hot = square(made.of_rows(np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([-1.0])))
    assert max(*found, one_hot) <= largest_square(30)
    assert max(found) > 0.9 * largest_square(30)
    # what would be too long counts as zero
    monkeypatch.setattr(moments, "_USED", 4.0)
    assert not moment_sums().of_rows(corners[:1], np.array([1.0])).any()


def test_moments_do_not_depend_on_order_and_blocks(monkeypatch):
    x, y = np.random.default_rng(0).uniform(-1, 1, (5000, 4)), np.random.default_rng(1).uniform(-1, 1, 5000)
    made, order = moment_sums(), np.random.default_rng(2).permutation(5000)
    whole = made.of_rows(x, y)
    assert same_bits(made.of_rows(x[order], y[order]), whole)
    monkeypatch.setattr(moments.blocks, "__defaults__", (11,))
    assert same_bits(made.of_rows(x, y), whole)


def test_moments_of_a_unit_are_the_mean_of_its_rows():
    x, y = np.random.default_rng(0).uniform(-1, 1, (50, 4)), np.ones(50)
    made, units = moment_sums(), Units(np.arange(50) // 10, combine="mean")
    for unit in range(5):
        mine = units.of(unit)
        alone = made.of_units(x[mine], y[mine], Units(np.zeros(10, int), combine="mean"))
        assert square(alone) <= largest_square(30)
        assert alone == pytest.approx(made.of_rows(x[mine], y[mine]) / 10, abs=1)
    assert made.of_units(x, y, units) == pytest.approx(made.of_rows(x, y) / 10, abs=5)
