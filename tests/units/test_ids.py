"""Ids as built-in integers, texts and bytes: the same unit as before, and nothing lost."""

import enum

import numpy as np
import pytest

from anechoic.units.ids import DIGEST, digest_of, plain_id, secret_of


class Colour(enum.StrEnum):
    RED = "red"


IDS = [
    7,
    -7,
    10**5000,
    "7",
    "",
    "\ud800",
    b"7",
    b"",
    b"\0\xff",
    np.int64(7),
    np.uint8(7),
    np.str_("7"),
    Colour.RED,
]


@pytest.mark.parametrize("unit", IDS, ids=range(len(IDS)))
def test_the_plain_id_is_the_same_unit(unit):
    plain = plain_id(unit)
    assert type(plain) in (int, str, bytes) and plain == unit
    secret = secret_of(bytes(32))
    assert digest_of(plain, secret) == digest_of(unit, secret) and len(digest_of(unit, secret)) == DIGEST


@pytest.mark.parametrize("unit", [None, 1.5, True, np.True_, (1,), np.datetime64("2020")])
def test_the_rest_is_none(unit):
    with pytest.raises(ValueError, match="must be an integer, text or bytes"):
        plain_id(unit)


def test_digests_need_the_key():
    assert digest_of("ann", secret_of(bytes(32))) != digest_of("ann", secret_of(bytes([1] * 32)))
