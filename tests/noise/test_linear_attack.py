"""An observer who knows most of a row's noise cannot compute the rest: no linear relation to be found.

The bits of a Mersenne Twister are linear functions of its 19,937 bits of state. Someone who knows enough of
a row's noise (where the gradient is zero, say) gets back some bits of each output, finds the relation that
every later bit satisfies and takes the remaining noise off. The observer here needs to know nothing of the
generator but that: from the known bits alone the shortest linear recurrence is found, and it predicts.
"""

import numpy as np
import pytest

from anechoic.noise.gaussian import FreshRow
from anechoic.noise.ziggurat import INDEX_BITS, RECTANGLES, layers
from tests.noise.streams import KEY


def shortest_recurrence(bits):
    """Length of the shortest linear recurrence over GF(2) of the bits, and its taps (Berlekamp, Massey).

    Polynomials and the bits so far, the latest first, are integers, so that a step is a shift and a sum.
    """
    current, previous, length, since, past = 1, 1, 0, 1, 0
    for place, bit in enumerate(bits):
        past = past << 1 | bit
        if (current & past).bit_count() % 2 == 0:
            since += 1
        elif 2 * length <= place:
            current, previous, length, since = current ^ previous << since, current, place + 1 - length, 1
        else:
            current, since = current ^ previous << since, since + 1
    return length, current


def predictions(bits, known):
    """The bits from `known` on, each as the recurrence of the first `known` gives it from those before."""
    _, taps = shortest_recurrence(bits[:known])
    past, found = 0, []
    for place, bit in enumerate(bits):
        if place >= known:
            found.append((taps & past << 1).bit_count() % 2)
        past = past << 1 | bit
    return found


def recovered_words(row):
    """For entries of a row, the word that it could have come from if it came from the widest rectangle."""
    return np.floor((row / layers().widths[0] + 1) / 2 * 2**20).astype(np.int64)


def twister_bits(count):
    """The top bit of the words of a Mersenne Twister: one linear function of its state, step after step."""
    words = np.random.RandomState(7).randint(0, 2**32, size=count, dtype=np.uint32)
    return (words >> np.uint32(31)).astype(int).tolist()


def noise_bits(count, of):
    """A bit of each entry of a row, as an observer of the entries can compute it."""
    row = np.empty(count)
    FreshRow(KEY, 0).fill(row, 0)
    return of(row)


def sign_bits(row):
    return (row < 0).astype(int).tolist()


def place_bits(row):
    """A bit of the place within the widest rectangle that could have made the entry."""
    return (recovered_words(row) & 1).tolist()


def index_bits(row):
    """The true bits of the words, which an observer of float64 entries would get from divisors."""
    return (FreshRow(KEY, 0).words.words(0, len(row)) & np.uint64(1)).astype(int).tolist()


KNOWN = 2 * 19937 + 64


@pytest.mark.slow
def test_the_attack_reads_a_mersenne_twister():
    bits = twister_bits(KNOWN + 300)
    length, _ = shortest_recurrence(bits[:KNOWN])
    assert length == 19937
    assert predictions(bits, KNOWN) == bits[KNOWN:]


@pytest.mark.slow
@pytest.mark.parametrize("of", [sign_bits, place_bits, index_bits])
def test_the_attack_learns_nothing_from_ours(of):
    bits = noise_bits(KNOWN + 300, of)
    length, _ = shortest_recurrence(bits[:KNOWN])
    assert abs(length - KNOWN / 2) < 40  # as for coins: the recurrence is as long as it can be
    right = sum(a == b for a, b in zip(predictions(bits, KNOWN), bits[KNOWN:], strict=True))
    assert abs(right - 150) < 4.5 * np.sqrt(300) / 2


def xorshift_bits(count):
    """A small linear generator of 64 bits of state, for the same test in short."""
    state, found = 0x9E3779B97F4A7C15, []
    for _ in range(count):
        state ^= state << 13 & (2**64 - 1)
        state ^= state >> 7
        state ^= state << 17 & (2**64 - 1)
        found.append(state >> 63)
    return found


def rank(rows):
    """Rank over GF(2) of integers as rows of bits."""
    pivots = {}
    for row in rows:
        while row:
            top = row.bit_length()
            if top not in pivots:
                pivots[top] = row
                break
            row ^= pivots[top]
    return len(pivots)


@pytest.mark.slow
def test_words_of_neighbouring_coordinates_and_steps_are_independent_over_gf2():
    # rows: the words of one step beside each other; a linear generator of 1,024 bits could not have full rank
    size, words = 1600, 25
    found = [
        int.from_bytes(FreshRow(KEY, step).words.words(0, words).astype("<u8").tobytes(), "little")
        for step in range(size)
    ]
    assert rank(found) >= size - 8
    state, linear = xorshift_bits(size * 200), []
    for start in range(0, len(state), 200):
        linear.append(int("".join(map(str, state[start : start + 200])), 2))
    assert rank(linear) <= 64
    assert RECTANGLES < 2**INDEX_BITS
