"""Masks are the cipher's keystream, all of it, and the cipher depends on all of the key."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from anechoic.federated.secure_sum.ring import add_masks

KEYS = [bytes([one]) * 32 for one in range(1, 4)]


def keystream(key, size):
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


@pytest.mark.parametrize("kind", ["<u4", "<u8"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 2**14 - 1, 2**14, 2**15, 2**15 + 1, 3 * 2**15 + 7])
def test_sums_of_masks_are_sums_of_keystreams(kind, length):
    words = np.arange(length, dtype=kind)
    expected = words.copy()
    masks = list(zip(KEYS, (1, -1, 1), strict=True))
    for key, sign in masks:
        stream = np.frombuffer(keystream(key, words.nbytes), kind)
        expected = expected + stream if sign > 0 else expected - stream
    add_masks(words, masks)
    assert (words == expected).all()


def test_a_mask_and_its_opposite_cancel():
    words = np.arange(100_001, dtype="<u4")
    add_masks(words, [(KEYS[0], 1), (KEYS[1], -1)])
    add_masks(words, [(KEYS[0], -1), (KEYS[1], 1)])
    assert (words == np.arange(100_001)).all()


def mask_of(key, length=256):
    words = np.zeros(length, "<u4")
    add_masks(words, [(key, 1)])
    return words


def test_every_bit_of_the_key_matters():
    """Keys that agree in their first, or last, 32 bits, or differ in one bit only, make unrelated masks."""
    key = bytes(range(32))
    found = [mask_of(key)]
    for bit in range(256):
        found.append(mask_of((int.from_bytes(key, "big") ^ 1 << bit).to_bytes(32, "big")))
    for index, one in enumerate(found):
        assert all((one == other).sum() < 5 for other in found[:index:16])
    assert len({one.tobytes() for one in found}) == 257


@pytest.mark.parametrize("kind", ["<u4", "<u8"])
def test_every_bit_of_a_mask_is_a_fair_coin(kind):
    words = np.zeros(20_000, kind)
    add_masks(words, [(KEYS[2], 1)])
    bits = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1)
    ones = bits.sum(axis=0)
    statistic = ((ones - 10_000) ** 2 / 5_000).sum()  # sum of squares of standard normal numbers
    assert stats.chi2.sf(statistic, len(ones)) > 1e-6 and stats.chi2.cdf(statistic, len(ones)) > 1e-6
    pairs = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(pairs).pvalue > 1e-6
