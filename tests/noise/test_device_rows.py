"""What runs on a device, run on the CPU as if it were one: the bits of NumPy."""

import numpy as np
import pytest
import torch

from anechoic.noise import NoiseStream, device_rows
from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.device_rows import draws_on_device, fill_on_device, words_on_device
from anechoic.noise.gaussian import AES, CHACHA, FreshRow
from tests.marks import each_once
from tests.noise.streams import KEY, emit
from tests.zoo import STRATEGIES

CPU = torch.device("cpu")

# Words and variates


@pytest.mark.parametrize("start", [0, 5, 8, 2**35 - 7, 2**40 + 3, 2**62 + 1])
def test_words_are_those_of_the_cipher(start):
    stream = ChaChaCounter(KEY)
    found = words_on_device(stream, start, 203, CPU)
    assert found.dtype == torch.int64 and found.is_contiguous()
    np.testing.assert_array_equal(found.numpy().view(np.uint64), stream.words(start, 203))


@pytest.mark.parametrize(("dtype", "scale"), each_once([torch.float32, torch.float64], [1.0, 0.7, 1e-30]))
def test_rows_are_those_of_numpy(dtype, scale, monkeypatch):
    monkeypatch.setattr(device_rows, "_CHUNK", 1000)
    row, found = FreshRow(KEY, 7, CHACHA), torch.empty(9001, dtype=dtype)
    expected = np.empty(9001, found.numpy().dtype)
    row.fill(expected, 2**33 + 5, scale)
    fill_on_device(row, found, 2**33 + 5, scale)
    assert found.numpy().tobytes() == expected.tobytes()


def test_entries_of_the_rest_come_from_their_own_words(monkeypatch):
    row, found = FreshRow(KEY, 7, CHACHA), torch.empty(5000, dtype=torch.float64)
    asked, ours = [], FreshRow.rest

    def rest(self, coordinates):
        asked.extend(coordinates.tolist())
        return ours(self, coordinates)

    monkeypatch.setattr(FreshRow, "rest", rest)
    fill_on_device(row, found, 40, 1.0)
    indices = row.words.words(40, 5000) % np.uint64(2048)
    assert asked == (np.flatnonzero(indices >= 2045) + 40).tolist() and asked


def test_rows_by_aes_are_not_made_on_a_device():
    assert not draws_on_device(AES, torch.device("cuda"))
    with pytest.raises(ValueError, match="only rows by ChaCha20"):
        fill_on_device(FreshRow(KEY, 0), torch.empty(3), 0, 1.0)


def test_a_device_that_makes_other_bits_is_noticed(monkeypatch, caplog):
    assert draws_on_device(CHACHA, CPU)
    assert not draws_on_device(CHACHA, torch.device("mps")) and not draws_on_device(
        CHACHA, torch.device("meta")
    )
    ours = device_rows.words_on_device
    monkeypatch.setattr(device_rows, "words_on_device", lambda *given: ours(*given) ^ (1 << 50))
    assert not device_rows._gives_plain_bits.__wrapped__(CPU)
    assert "other bits than the CPU" in caplog.text


# Streams


@pytest.mark.parametrize("grid", [None, 2.0**-20])
@pytest.mark.parametrize(
    ("name", "memory", "cipher", "drawn"),
    [
        ("identity", "store", CHACHA, True),
        ("inverse-mixed", "regenerate", CHACHA, True),
        ("identity", "store", AES, False),
        ("banded-mixed", "store", CHACHA, False),
        ("blt-4", "store", CHACHA, False),
        ("tree", "store", AES, False),
    ],
)
def test_rows_of_a_device_are_those_of_numpy(name, memory, cipher, drawn, grid, monkeypatch):
    """Drawn there where rows are floats without memory, moved there elsewhere; and a run moves back."""
    monkeypatch.setattr(device_rows, "_CHUNK", 100)
    made, fill = [], device_rows.fill_on_device
    monkeypatch.setattr(device_rows, "fill_on_device", lambda *given: made.append(1) or fill(*given))
    options = {"std": 2.0, "grid": grid, "key": KEY, "cipher": cipher, "memory": memory, "offset": 3}
    expected, _ = emit(NoiseStream(STRATEGIES[name], 333, **options))
    here = NoiseStream(STRATEGIES[name], 333, backend="torch", **options)
    there = NoiseStream(STRATEGIES[name], 333, backend="torch", **options)
    getattr(there.arrays, "floats", there.arrays)._on_cpu = False  # the CPU in the place of a device
    rows, state = emit(here, count=3)
    assert not made
    more, state = emit(there, there.restore(state.state_dict()), count=2)
    assert bool(made) == (drawn and grid is None)
    rest, _ = emit(here, here.restore(state.state_dict()))
    assert np.concatenate([rows, more, rest]).tobytes() == expected.tobytes()
