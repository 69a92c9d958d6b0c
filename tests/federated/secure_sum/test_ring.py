"""The ring: exact sums, exact norms, and no jump that a client that lies could use."""

import numpy as np
import pytest

from anechoic.federated.secure_sum.ring import (
    checked_vector,
    decode,
    encode,
    ring_bits,
    word_type,
)

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("clients", "grid_bits", "bits"),
    [(2, 0, 32), (1024, 20, 32), (1025, 20, 64), (2, 29, 32), (3, 29, 64), (2, 61, 64), (4, 60, 64)],
)
def test_the_narrowest_ring_holds_the_largest_sum(clients, grid_bits, bits):
    assert ring_bits(clients, grid_bits) == bits
    # all clients at the bound, on either side
    for sign in (1, -1):
        words = np.zeros(1, word_type(bits))
        for _ in range(clients):
            words += encode(np.array([sign * 2**grid_bits]), bits)
        assert decode(words)[0] == sign * clients * 2**grid_bits


@pytest.mark.parametrize(("clients", "grid_bits", "most"), [(3, 61, 60), (100, 60, 55), (2, 62, 61)])
def test_a_sum_that_fits_no_ring_is_refused_with_what_would(clients, grid_bits, most):
    with pytest.raises(ValueError, match=rf"{clients} \* 2\*\*{grid_bits}.*at most {most}\b"):
        ring_bits(clients, grid_bits)
    assert ring_bits(clients, most) == 64
    with pytest.raises(ValueError):
        ring_bits(clients, most + 1)


def folded(word, bits):
    """The definition: distance from 0 along the circle, turned back at a quarter of it."""
    signed = word if word < 2 ** (bits - 1) else word - 2**bits
    size = min(abs(signed), 2 ** (bits - 1) - abs(signed))
    return size if signed >= 0 else -size


@pytest.mark.parametrize("bits", [32, 64])
def test_decoding_is_the_fold_written_out(bits):
    near = [centre * 2 ** (bits - 3) + offset for centre in range(8) for offset in (-2, -1, 0, 1, 2)]
    anywhere = RNG.integers(0, 2**bits - 1, 100, np.uint64, endpoint=True).tolist()
    words = [word % 2**bits for word in near + anywhere]
    found = decode(np.array(words, word_type(bits)))
    assert found.dtype == np.int64
    assert found.tolist() == [folded(word, bits) for word in words]


@pytest.mark.parametrize("bits", [32, 64])
def test_no_client_moves_the_sum_further_than_its_vector_whatever_the_others_send(bits):
    honest = np.array([1, -1, 3, 2**16, -(2**16)] * 8)
    lies = np.concatenate([np.arange(8) * 2 ** (bits - 3) for _ in range(5)]).astype(np.uint64)
    for offset in range(-4, 5):
        others = (lies + np.uint64(offset % 2**64)).astype(word_type(bits))
        moved = decode(others + encode(honest, bits)) - decode(others)
        assert (np.abs(moved) <= np.abs(honest)).all()


def test_the_bound_on_the_norm_is_sharp():
    at_the_bound = np.array([3 * 2**10, 4 * 2**10])  # 5 * 2**10
    with pytest.raises(ValueError, match=r"2-norm exceeds 2\*\*12"):
        checked_vector(at_the_bound, 2, 12)
    assert checked_vector(np.array([0, -(2**12)]), 2, 12) is not None
    with pytest.raises(ValueError, match="2-norm"):
        checked_vector(np.array([1, 2**12]), 2, 12)
    with pytest.raises(ValueError, match="2-norm"):  # 1 in 2**60 above the bound: below what a float64 shows
        checked_vector(np.array([1, 2**30]), 2, 30)
    for smallest in (-(2**63), -(2**32)):  # their squares are 0 modulo 2**64
        with pytest.raises(ValueError, match="2-norm"):
            checked_vector(np.array([smallest, 0]), 2, 10)


@pytest.mark.parametrize(
    "vector", [np.zeros(3), np.zeros(2, np.int32), np.zeros((3, 1), np.int64), np.zeros(2, np.int64)]
)
def test_other_types_and_shapes_are_refused(vector):
    with pytest.raises(ValueError, match=r"int64 vectors of shape \(3,\)"):
        checked_vector(vector, 3, 10)
