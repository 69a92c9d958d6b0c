"""Shamir's sharing against interpolation written out."""

from fractions import Fraction
from itertools import combinations

import pytest

from anechoic.federated.secure_sum.shamir import PRIME, SHARE_BYTES, join, split

SECRETS = [bytes(32), b"\xff" * 32, bytes(31) + b"\x01", b"\x01" + bytes(31), bytes(range(32))]


def is_prime(number, bases=range(2, 60)):
    """Miller and Rabin's test: a composite number passes one random base with a chance below 1/4."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def value_at_zero(shares):
    """Lagrange's interpolation over the rationals, brought into the field at the end."""
    total = 0
    for seat, share in shares.items():
        weight = Fraction(1)
        for other in shares:
            if other != seat:
                weight *= Fraction(-other, seat - other)
        value = int.from_bytes(share, "big")
        total += value * weight.numerator * pow(weight.denominator, -1, PRIME)
    return total % PRIME


def test_the_field_is_the_first_that_holds_every_secret():
    assert is_prime(PRIME) and not any(is_prime(number) for number in range(2**256 + 1, PRIME))
    assert PRIME.bit_length() <= 8 * SHARE_BYTES


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    ("threshold", "seats"), [(1, [3]), (2, [1, 2]), (3, [1, 2, 5, 9]), (5, [1, 2, 3, 4, 7])]
)
def test_every_subset_of_the_threshold_gives_the_secret(secret, threshold, seats):
    shares = dict(zip(seats, split(secret, threshold, seats), strict=True))
    for size in range(threshold, len(seats) + 1):
        for chosen in combinations(seats, size):
            some = {seat: shares[seat] for seat in chosen}
            assert join(some) == secret
            assert value_at_zero(some) == int.from_bytes(secret, "big")


def test_fewer_shares_fit_every_secret():
    """Any two shares of three lie on a polynomial through any third value at 0: they say nothing of it."""
    shares = split(SECRETS[-1], 3, [1, 2, 3])
    assert join({1: shares[0], 2: shares[1]}) != SECRETS[-1]
    counts = [0, 0]
    for _ in range(400):  # the first bit below the top of a share is a fair coin, whatever the secret
        for index, secret in enumerate((SECRETS[0], SECRETS[1])):
            counts[index] += split(secret, 2, [1, 2])[0][1] >> 7
    assert all(abs(count - 200) < 5 * 10 for count in counts)


def test_shares_differ_from_call_to_call():
    assert split(SECRETS[0], 2, [1, 2]) != split(SECRETS[0], 2, [1, 2])


def test_a_wrong_share_gives_another_secret_or_none():
    shares = split(SECRETS[-1], 2, [1, 2, 3])
    wrong = (int.from_bytes(shares[0], "big") ^ 1).to_bytes(SHARE_BYTES, "big")
    assert join({1: wrong, 2: shares[1]}) != SECRETS[-1]
    # the constant polynomial 2**256 is an element of the field, but no secret of 32 bytes
    assert join({1: (2**256).to_bytes(SHARE_BYTES, "big")}) is None
