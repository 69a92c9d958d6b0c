"""The table of rectangles: every inequality that the law of the variates rests on, checked with mpmath."""

import hashlib

import mpmath
import numpy as np
import pytest

from anechoic.noise import ziggurat as module
from anechoic.noise.ziggurat import (
    GRID_BITS,
    INDEX_BITS,
    PICK_BITS,
    RECTANGLES,
    TAIL_STEP,
    layers,
    stack_height,
)


@pytest.fixture(scope="module")
def stack():
    """S_0, S_1, … of the rounded widths, to 60 digits."""
    with mpmath.workdps(60):
        factor = mpmath.sqrt(2 * mpmath.pi) / 2 ** (INDEX_BITS + 1)
        heights, total = [], mpmath.mpf(0)
        for width in layers().widths.tolist():
            total += factor / mpmath.mpf(width)
            heights.append(total)
        return heights


def curve(x):
    return mpmath.exp(-(mpmath.mpf(x) ** 2) / 2)


def test_every_rectangle_lies_under_the_curve(stack):
    widths = layers().widths
    assert len(widths) == RECTANGLES and (np.diff(widths) < 0).all() and widths[-1] > 0
    with mpmath.workdps(60):
        gaps = [curve(width) - height for width, height in zip(widths.tolist(), stack, strict=True)]
    assert min(gaps) >= 0
    assert max(gaps[1:]) < 2.0**-GRID_BITS  # and none could be noticeably wider: what is left is 3 / 2048
    assert stack[-1] < 1


def test_the_rest_has_the_mass_of_three_indices(stack):
    # the integral of f - S, piece by piece, is what the indices beyond the rectangles stand for
    with mpmath.workdps(40):
        stacked = 2 * sum(
            height * (mpmath.mpf(inner) - mpmath.mpf(outer))
            for height, inner, outer in zip(
                stack, layers().widths.tolist(), [*layers().widths[1:].tolist(), 0.0], strict=True
            )
        )
        rest = 1 - stacked / mpmath.sqrt(2 * mpmath.pi)
        assert abs(rest - mpmath.mpf(2**INDEX_BITS - RECTANGLES) / 2**INDEX_BITS) < 1e-35


def test_the_pieces_cover_the_line_once_and_are_exact():
    table = layers()
    assert len(table.starts) == RECTANGLES + 1
    assert table.starts[0] == table.widths[0] and table.lengths[0] == TAIL_STEP
    np.testing.assert_array_equal(table.starts[1:-1], table.widths[1:])
    assert table.starts[-1] == 0
    np.testing.assert_array_equal(table.starts[1:] + table.lengths[1:], table.widths)
    scaled = np.concatenate([table.widths, table.starts, table.lengths]) * 2.0**GRID_BITS
    assert (scaled == np.rint(scaled)).all() and scaled.max() < 2**53
    assert float(table.widths[0] * 2**47).is_integer()  # so that steps of the tail are exact to the last one


def test_no_proposal_exceeds_its_ceiling(stack):
    table, below = layers(), [0, *stack]
    for piece in range(len(table.starts)):
        top = float(curve(table.starts[piece]) - below[piece]) * table.lengths[piece]
        assert top * (1 if piece else 2) <= table.ceilings[piece] * (1 - 1e-12)
    # in the tail the curve more than halves within a step: later steps, proposed half as often, fit too
    assert float(curve(table.starts[0] + TAIL_STEP) / curve(table.starts[0])) < 0.5


def test_pieces_are_proposed_in_proportion_to_their_ceilings():
    table = layers()
    shares = np.bincount(table.picks, minlength=len(table.starts))
    assert len(table.picks) == 2**PICK_BITS and shares.min() >= 1
    unit = table.ceilings[0] / shares[0]
    np.testing.assert_array_equal(table.ceilings, shares * unit)
    assert float(unit * 2**40).is_integer()


def test_heights_are_those_of_the_stack(stack):
    np.testing.assert_array_equal(layers().heights, [0.0, *map(float, stack)])
    for piece in (0, 1, 700, RECTANGLES):
        for digits in (30, 80):
            with mpmath.workdps(100):
                factor = mpmath.sqrt(2 * mpmath.pi) / 2 ** (INDEX_BITS + 1)
                exact = mpmath.fsum(factor / mpmath.mpf(width) for width in layers().widths[:piece].tolist())
                found = mpmath.mpf(str(stack_height(piece, digits)))
                assert abs(found - exact) <= mpmath.mpf(10) ** -digits * exact


@pytest.mark.parametrize("digits", [20, 50, 300])
def test_pi(digits):
    with mpmath.workdps(digits + 20):
        assert abs(mpmath.mpf(str(module._pi(digits))) - mpmath.pi) < mpmath.mpf(10) ** (2 - digits)


def test_the_table_is_the_one_that_streams_were_made_with():
    # another table gives other rows: a run could not be resumed
    table = layers()
    found = hashlib.sha256()
    for part in (table.widths, table.starts, table.lengths, table.ceilings, table.picks.astype("<i8")):
        found.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes())
    assert found.hexdigest() == "209cd3fdb34ee8785318c33b1f61ac608c2ba9d2891418cfddead4653f380b62"
