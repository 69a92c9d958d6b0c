"""An observer who knows most of a row's noise cannot compute the rest: no linear relation to be found.

The bits of a Mersenne Twister are linear functions of its 19,937 bits of state. Someone who knows enough of
a row's noise (where the gradient is zero, say) gets back some bits of each output, finds the relation that
every later bit satisfies and takes the remaining noise off. The observer here needs to know nothing of the
generator but that: from the known bits alone the shortest linear recurrence is found, and it predicts.
"""

import numpy as np
import pytest

from anechoic.noise.gaussian import FreshRow
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


def twister_bits(count):
    """The top bit of the words of a Mersenne Twister: one linear function of its state, step after step."""
    words = np.random.RandomState(7).randint(0, 2**32, size=count, dtype=np.uint32)
    return (words >> np.uint32(31)).astype(int).tolist()


def sign_bits(count):
    """The signs of a row, as an observer of its entries sees them."""
    row = np.empty(count)
    FreshRow(KEY, 0).fill(row, 0)
    return (row < 0).astype(int).tolist()


def index_bits(count):
    """The true bits of the words, which an observer of float64 entries would get from divisors."""
    return (FreshRow(KEY, 0).words.words(0, count) & np.uint64(1)).astype(int).tolist()


KNOWN = 2 * 19937 + 64


@pytest.mark.slow
def test_the_attack_reads_a_mersenne_twister():
    bits = twister_bits(KNOWN + 300)
    length, _ = shortest_recurrence(bits[:KNOWN])
    assert length == 19937
    assert predictions(bits, KNOWN) == bits[KNOWN:]


@pytest.mark.slow
@pytest.mark.parametrize("of", [sign_bits, index_bits])
def test_the_attack_learns_nothing_from_ours(of):
    bits = of(KNOWN + 300)
    length, _ = shortest_recurrence(bits[:KNOWN])
    assert abs(length - KNOWN / 2) < 40  # as for coins: the recurrence is as long as it can be
    right = sum(a == b for a, b in zip(predictions(bits, KNOWN), bits[KNOWN:], strict=True))
    assert abs(right - 150) < 4.5 * np.sqrt(300) / 2
