"""The second cipher: RFC 8439's block function three times over, and streams that name it."""

import numpy as np
import pytest

from anechoic.keys import derive
from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.exact_variate import HEIGHT, PLACE, WORDS, FurtherDraws
from anechoic.noise.gaussian import AES, CHACHA, CIPHERS, FreshRow, fresh_rows
from tests.noise.streams import KEY

# RFC 8439, section 2.3.2: key, nonce 00 00 00 09 00 00 00 4a 00 00 00 00, counter 1
RFC_KEY = bytes(range(32))
RFC_NUMBER = int.from_bytes(bytes.fromhex("01000000 00000009 0000004a 00000000"), "little")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)
# appendix A.1: test vectors 1 to 5, as (key, counter and nonce, first 16 bytes)
RFC_MORE = [
    ("00" * 32, "00" * 16, "76b8e0ada0f13d90405d6ae55386bd28"),
    ("00" * 32, "01" + "00" * 15, "9f07e7be5551387a98ba977c732d080d"),
    ("00" * 31 + "01", "01" + "00" * 15, "3aeb5224ecf849929b9d828db1ced4dd"),
    ("00ff" + "00" * 30, "02" + "00" * 15, "72d54dfbf12ec44b362692df94137f32"),
    ("00" * 32, "00" * 15 + "02", "c2c64d378cd536374ae204b9ef933fcd"),
]


def arithmetic(stream, first, count):
    """Blocks from `first` on by NumPy's arithmetic."""
    numbers = [first + place for place in range(count)]
    high = np.array([number >> 64 for number in numbers], np.uint64)
    low = np.array([number % 2**64 for number in numbers], np.uint64)
    return stream.at(high, low).astype("<u8").tobytes()


def test_it_is_the_published_block_function():
    stream = ChaChaCounter(RFC_KEY)
    assert stream.read(RFC_NUMBER, 1) == RFC_BLOCK
    assert arithmetic(stream, RFC_NUMBER, 1) == RFC_BLOCK
    for key, number, block in RFC_MORE:
        stream, place = ChaChaCounter(bytes.fromhex(key)), int.from_bytes(bytes.fromhex(number), "little")
        assert stream.read(place, 1)[:16].hex() == block
        assert arithmetic(stream, place, 1)[:16].hex() == block


@pytest.mark.parametrize("first", [0, 1, 2**31 - 2, 2**32 - 3, 2**64 - 3, 2**96 + 2**63 - 1, 2**128 - 5])
def test_arithmetic_makes_the_blocks_of_the_library(first):
    stream = ChaChaCounter(KEY)
    assert stream.read(first, 5) == arithmetic(stream, first, 5)  # over the ends of counters too


def test_a_reader_goes_on_where_it_stopped():
    stream, first = ChaChaCounter(KEY), 2**32 - 4
    read, found = stream.reader(first), b""
    for size in (16, 64, 32, 160, 48, 256):  # blocks are cut, and the counter of a nonce ends within
        buffer = bytearray(size + 15)
        read(bytes(size), memoryview(buffer))
        found += bytes(buffer[:size])
    assert found == stream.read(first, 9)


# Addresses


def test_ciphers_have_subkeys_of_their_own():
    subkeys = {derive(KEY, domain, 3, size=32) for _, *domains in CIPHERS.values() for domain in domains}
    assert len(subkeys) == 2 * len(CIPHERS)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_no_two_numbers_of_a_coordinate_share_words(cipher):
    made = CIPHERS[cipher][0]
    asked = []

    class Watched(made):
        def at(self, high, low):
            asked.extend(zip(high.tolist(), low.tolist(), strict=True))
            return super().at(high, low)

    details, places = FurtherDraws(Watched(KEY)), np.array([5, 2**40])
    words = details.proposals(places, 1, 7)
    assert len(set(words.reshape(-1).tolist())) == 2 * 7 * 4
    for attempt in range(1, 8):  # one at a time, or from another one on: the same
        np.testing.assert_array_equal(details.proposals(places, attempt, 1)[:, 0], words[:, attempt - 1])
        np.testing.assert_array_equal(details.proposals(places, attempt, 2)[:, 0], words[:, attempt - 1])
        assert details.words(2**40, attempt) == words[1, attempt - 1].tolist()
    kinds = {low >> 24 & 0xFF for _, low in asked}
    assert kinds == {WORDS}
    asked.clear()
    for attempt in range(8):
        for purpose in (PLACE, HEIGHT):
            details.digits(5, attempt, purpose, 64 * made.block_words + 1)
    assert len(set(asked)) == len(asked) == 8 * 2 * 2
    assert WORDS not in {low >> 24 & 0xFF for _, low in asked}


# Rows


def test_a_row_is_within_its_enclosures_and_is_that_of_many_at_once():
    row = np.empty(4000)
    FreshRow(KEY, 3, CHACHA).fill(row, 100)
    for place in [*range(0, 4000, 401), *np.flatnonzero(np.abs(row) > 3)[:6].tolist()]:
        low, exponent = FreshRow(KEY, 3, CHACHA).enclosure(100 + place, 60)
        assert abs(row[place] - low * 2.0**-exponent) <= 2.0**-48
    together = fresh_rows(KEY, range(2, 5), 101, 77, CHACHA)
    np.testing.assert_array_equal(together[1], row[1:78])
    other = np.empty(4000)
    FreshRow(KEY, 3, AES).fill(other, 100)
    assert not np.any(row == other)


# Streams
