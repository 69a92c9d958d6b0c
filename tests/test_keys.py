"""Keys and what is derived from them."""

import hashlib

import pytest

from anechoic.keys import checked_key, derive_each
from anechoic.noise import derive, new_key
from tests.noise.streams import KEY


def test_new_keys_have_32_bytes_and_differ():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33, b"x" * 64])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(ValueError, match=rf"{len(key)} bytes.*exactly 32.*new_key") as caught:
        checked_key(key)
    assert key == b"" or key.decode() not in str(caught.value)


@pytest.mark.parametrize("key", [7, "x" * 32, None, [0] * 32, 2**255])
def test_a_key_that_is_not_bytes_is_refused(key):
    with pytest.raises(ValueError, match=rf"{type(key).__name__}.*exactly 32 bytes.*new_key"):
        derive(key, "noise", size=8)


def test_the_encoding_is_the_documented_one():
    # written out by hand: a change of it changes every stream of every saved key
    message = b"anechoic.derive.1\0" + KEY
    message += (5).to_bytes(8, "little") + b"noise"
    message += (40).to_bytes(8, "little") + (2).to_bytes(8, "little")
    message += (3).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little")
    assert derive(KEY, "noise", 3, 2**64 - 1, size=40) == hashlib.shake_256(message).digest(40)


def test_every_bit_of_the_key_matters():
    outputs = {derive(KEY, "noise", 0, size=32)}
    for bit in range(256):
        flipped = (int.from_bytes(KEY, "little") ^ (1 << bit)).to_bytes(32, "little")
        outputs.add(derive(flipped, "noise", 0, size=32))
    assert len(outputs) == 257


def test_argument_lists_do_not_run_into_one_another():
    numbers = [(), (0,), (0, 0), (1,), (256,), (1, 0), (0, 1)]
    lists = [
        *(("noise", one) for one in numbers),
        ("nois", (101,)),
        ("noise\0", ()),
        ("sampling", ()),
        ("", ()),
    ]
    assert len({derive(KEY, domain, *numbers, size=32) for domain, numbers in lists}) == len(lists)


@pytest.mark.parametrize("number", [-1, 2**64, 1.5, True, "3"])
def test_numbers_out_of_range_are_refused(number):
    with pytest.raises(ValueError, match="number="):
        derive(KEY, "noise", number, size=8)


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(ValueError, match="size="):
        derive(KEY, "noise", size=size)


def test_keys_derived_together_are_those_derived_alone():
    numbers = range(2**64 - 3, 5, -(2**62))
    assert derive_each(KEY, "noise", numbers, size=16) == [
        derive(KEY, "noise", number, size=16) for number in numbers
    ]
    with pytest.raises(ValueError, match="below"):
        derive_each(KEY, "noise", range(2**64 - 1, 2**64 + 1), size=16)
    with pytest.raises(ValueError, match="number"):
        derive_each(KEY, "noise", range(3, -2, -1), size=16)
