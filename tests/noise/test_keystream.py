"""The generator: AES-256 in counter mode, readable at any place, under a subkey for every address."""

import numpy as np
import pytest

from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.keystream import AesCounter, keystream
from tests.noise.streams import KEY

# NIST SP 800-38A, F.5.5 (CTR-AES256.Encrypt)
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
NIST_PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHER = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)
NIST_STREAM = bytes(a ^ b for a, b in zip(NIST_PLAIN, NIST_CIPHER, strict=True))


def test_it_is_the_published_counter_mode():
    stream = AesCounter(NIST_KEY)
    assert stream.read(NIST_COUNTER, 4) == NIST_STREAM
    assert stream.read(NIST_COUNTER + 2, 1) == NIST_STREAM[32:48]


def test_scattered_blocks_are_those_of_the_published_counter_mode():
    high, low = np.full(3, NIST_COUNTER >> 64, np.uint64), NIST_COUNTER % 2**64
    found = AesCounter(NIST_KEY).at(high, np.array([low + 3, low, low + 1], np.uint64))
    assert found.astype("<u8").tobytes() == NIST_STREAM[48:] + NIST_STREAM[:32]


@pytest.mark.parametrize("stream", [keystream(KEY, "noise", 4), ChaChaCounter(KEY)])
def test_every_slice_is_that_of_the_whole(stream):
    whole = stream.words(0, 301)
    for start in (0, 1, 2, 7, 8, 9, 100):
        for count in (0, 1, 2, 3, 7, 8, 9, 200):
            np.testing.assert_array_equal(stream.words(start, count), whole[start : start + count])
    assert stream.read(3, 5) == stream.read(0, 8)[3 * 8 * stream.block_words :]
    np.testing.assert_array_equal(stream.words(2**60 + 3, 9), stream.words(2**60, 12)[3:])


def test_addresses_do_not_share_bytes():
    addresses = [("noise", 0), ("noise", 1), ("noise", 0, 0), ("sampling", 0), ("nois", 0), ("noise",)]
    found = {keystream(key, *address).read(0, 1) for address in addresses for key in (KEY, bytes(32))}
    assert len(found) == 2 * len(addresses)


@pytest.mark.parametrize("stream", [keystream(KEY, "noise"), ChaChaCounter(KEY)])
@pytest.mark.parametrize("block", [-1, 2**128])
def test_blocks_beyond_the_counter_are_refused(block, stream):
    with pytest.raises(ValueError, match="block="):
        stream.read(block, 1)
