"""Variates as real numbers: their digits, the decisions behind them, and that float64 follows them."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from anechoic.noise import exact_variate, ziggurat_tail
from anechoic.noise.exact_variate import HEIGHT, PLACE, Proposal, accepts
from anechoic.noise.gaussian import ERROR, LARGEST, FreshRow
from anechoic.noise.ziggurat import RECTANGLES, TAIL_STEPS, layers
from tests.noise.streams import KEY

ROW = FreshRow(KEY, 3)
DETAILS = ROW._details
WORDS = ROW.words.words(0, 60_000)
IN_REST = np.flatnonzero(WORDS % np.uint64(2048) >= RECTANGLES)


def entries(count, start=0):
    found = np.empty(count)
    ROW.fill(found, start)
    return found


# Digits


@pytest.mark.parametrize("coordinates", [range(40), IN_REST[:60].tolist(), [2**40 + 1, 2**62]])
def test_the_entry_is_within_its_error_of_the_variate(coordinates):
    for i in coordinates:
        low, exponent = FreshRow(KEY, 3).enclosure(i, 150)
        (entry,) = entries(1, i)
        for end in (low, low + 1):
            error = abs(Fraction(end, 2**exponent) - Fraction(float(entry)))
            assert error <= ERROR
            assert error <= 2.0**-50 or abs(entry) >= 4


@pytest.mark.parametrize("i", [0, 1, 17, *IN_REST[:5].tolist()])
def test_enclosures_are_nested_and_as_narrow_as_asked_for(i):
    widths, bits = [], [0, 1, 30, 53, 64, 65, 100, 127, 128, 129, 200, 1000]
    found = [FreshRow(KEY, 3).enclosure(i, b) for b in bits]
    assert [exponent for _, exponent in found] == bits
    for (low, exponent), (finer, more) in pairwise(found):
        widths.append(finer - (low << (more - exponent)))
        assert 0 <= widths[-1] < 2 ** (more - exponent)
    assert len(set(widths)) > 6  # the digits go on


def test_digits_are_addressed_by_coordinate_attempt_and_purpose():
    addresses = [
        (0, 0, PLACE),
        (1, 0, PLACE),
        (0, 1, PLACE),
        (0, 0, HEIGHT),
        (2**40, 0, PLACE),
        (0, 2**20, PLACE),
    ]
    found = {DETAILS.digits(*address, 128) for address in addresses}
    assert len(found) == len(addresses)
    for count in (0, 1, 64, 127, 128, 129, 300):
        assert DETAILS.digits(5, 1, PLACE, count) == DETAILS.digits(5, 1, PLACE, 600) >> (600 - count)


@pytest.mark.parametrize(("coordinate", "bits"), [(-1, 10), (0, -1), (0.5, 3), (2, 1.0)])
def test_bad_arguments_are_refused(coordinate, bits):
    with pytest.raises(ValueError, match="coordinate=|bits="):
        FreshRow(KEY, 0).enclosure(coordinate, bits)


# Decisions


def proposals(count, seed=0):
    """Proposals with words of their own, those for the tail among them."""
    rng = np.random.default_rng(seed)
    words = rng.integers(2**64, size=(count, 1, 4), dtype=np.uint64)
    words[::7, 0, 0] = 0  # the tail
    return words


def test_float64_decides_as_exact_arithmetic_does():
    words = proposals(1500)
    _, gap, margin = ziggurat_tail._proposals(words)
    assert (np.abs(gap) > margin).all()
    for i, row in enumerate(words[:, 0].tolist()):
        assert accepts(DETAILS, i, 1, exact_variate.proposal(row)) == bool(gap[i, 0] > 0)


def test_values_are_those_of_exact_arithmetic():
    words = proposals(500, seed=1)
    values, _, _ = ziggurat_tail._proposals(words)
    for value, row in zip(values[:, 0].tolist(), words[:, 0].tolist(), strict=True):
        segment = exact_variate.candidate(exact_variate.proposal(row), 1)
        low, high, exponent = segment.interval(DETAILS, 0, 0)
        assert abs(Fraction(segment.sign * (low + high), 2 ** (exponent + 1)) - Fraction(value)) <= ERROR / 2


def near_the_curve(piece, place, step=0):
    """The word of height at which a proposal crosses the curve: undecided by the first 64 digits."""
    with localcontext(prec=60):
        segment = exact_variate.candidate(Proposal(piece, step, place, 0), 1)
        low, _, exponent = segment.interval(DETAILS, 9, 0)
        x = Decimal(low) / 2**exponent
        length = Decimal(float(layers().lengths[piece])) * (1 if piece else 2 ** (step + 1))
        below = exact_variate.stack_height(piece, 50)
        share = length * ((-x * x / 2).exp() - below) / Decimal(float(layers().ceilings[piece]))
        return int(share * 2**64)


@pytest.mark.parametrize("piece", [0, 1, 2, 500, 1500, RECTANGLES - 1, RECTANGLES])
def test_what_float64_cannot_decide_is_decided_exactly(piece, monkeypatch):
    place = 0x7F3A_5577_1234_5678
    height = near_the_curve(piece, place)
    pick = int(np.flatnonzero(layers().picks == piece)[0])
    words = np.array([[[pick, place, height, 1]]], np.uint64)
    _, gap, margin = ziggurat_tail._proposals(words)
    assert abs(gap[0, 0]) <= margin[0, 0]
    # a little off, both ways, it is clear; at the crossing further digits are read
    asked = []
    digits = exact_variate.FurtherDraws.digits

    def counted(self, coordinate, attempt, purpose, count):
        asked.append(count)
        return digits(self, coordinate, attempt, purpose, count)

    monkeypatch.setattr(exact_variate.FurtherDraws, "digits", counted)
    accepts(DETAILS, 9, 1, Proposal(piece, 0, place, height))
    assert max(asked) >= 64
    assert accepts(DETAILS, 9, 1, Proposal(piece, 0, place, height - 2**30))
    assert not accepts(DETAILS, 9, 1, Proposal(piece, 0, place, height + 2**30))


def test_rows_do_not_depend_on_what_float64_left_open(monkeypatch):
    expected = entries(60_000)
    asked = []
    accepts_exactly = ziggurat_tail.accepts

    def counted(*arguments):
        asked.append(arguments)
        return accepts_exactly(*arguments)

    monkeypatch.setattr(ziggurat_tail, "accepts", counted)
    monkeypatch.setattr(
        ziggurat_tail, "_RELATIVE", 0.05
    )  # as if the exponential function were as wrong as that
    np.testing.assert_array_equal(entries(60_000), expected)
    assert len(asked) > 20


def test_a_step_beyond_the_tail_is_refused():
    proposed = exact_variate.proposal([0, 1, 0, 0])
    assert (proposed.piece, proposed.step) == (0, -1)
    assert not accepts(DETAILS, 0, 1, proposed)
    _, gap, _ = ziggurat_tail._proposals(np.array([[[0, 1, 0, 0]]], np.uint64))
    assert gap[0, 0] == -np.inf


def test_the_largest_variate():
    last = exact_variate.proposal([0, 2**64 - 1, 0, 2**63])
    assert last.step == TAIL_STEPS - 1
    _, high, exponent = exact_variate.candidate(last, 1).interval(DETAILS, 0, 64)
    assert Fraction(20) < Fraction(high, 2**exponent) < LARGEST
    assert 2 * stats.norm.sf(float(layers().widths[0]) + TAIL_STEPS / 4) < 1e-85
    values, gap, margin = ziggurat_tail._proposals(np.array([[[0, 2**64 - 1, 0, 2**63]]], np.uint64))
    assert values[0, 0] == pytest.approx(-20.2035098, abs=1e-6)
    assert abs(gap[0, 0]) <= margin[0, 0]  # so far out a height of 0 is open
    assert not accepts(DETAILS, 0, 1, last)  # and is decided by its further digits


def test_a_coordinate_of_the_rest_takes_the_first_proposal_that_is_accepted():
    for i in IN_REST[:20].tolist():
        attempt = 1
        while not accepts(DETAILS, i, attempt, exact_variate.proposal(DETAILS.words(i, attempt))):
            attempt += 1
        assert exact_variate.variate(int(WORDS[i]), DETAILS, i).attempt == attempt
        words = np.array([[DETAILS.words(i, attempt)]], np.uint64)
        assert ziggurat_tail._proposals(words)[0][0, 0] == entries(1, i)[0]
