"""What runs on a device, run on the CPU as if it were one: the bits of NumPy, rounded or not."""

import numpy as np
import pytest
import torch

from anechoic.errors import GuaranteeError
from anechoic.noise import NoiseStream, device_rows
from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.device_rows import fill_on_device, made_here, words_on_device
from anechoic.noise.gaussian import AES, CHACHA, FreshRow
from anechoic.noise.rounding import base, on_device
from tests.marks import each_once
from tests.noise.streams import KEY, emit, make_stream
from tests.zoo import STRATEGIES

CPU = torch.device("cpu")
KINDS = [
    *("identity", "output", "banded-mixed", "toeplitz-root", "dense", "inverse-mixed", "blt-4", "recurrent"),
    *("smooth", "tree", "recursive-blt", "full-tree-cut-wide", "normalised(recursive-blt)"),
    *("normalised(restarted(blt-4))", "restarted(normalised(banded-2))"),
]


@pytest.fixture
def small_pieces(monkeypatch):
    """Chunks of a few columns, so that rows meet their boundaries."""
    monkeypatch.setattr(device_rows, "_CHUNK", 100)
    monkeypatch.setattr(on_device, "_CHUNK", 90)


def as_on_a_device(stream):
    """The stream, whose arrays take the CPU for a device."""
    floats = getattr(stream.arrays, "floats", stream.arrays)
    floats._on_cpu = False
    stream.arrays._on_cpu = not floats.draws(stream.cipher)
    if stream.grid is None:
        stream.arrays._on_cpu = False
    return stream


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
    assert not made_here(AES, torch.device("cuda"))
    with pytest.raises(ValueError, match="only rows by ChaCha20"):
        fill_on_device(FreshRow(KEY, 0), torch.empty(3), 0, 1.0)


def test_a_device_that_makes_other_bits_is_noticed(monkeypatch, caplog):
    assert made_here(CHACHA, CPU)
    assert not made_here(CHACHA, torch.device("mps")) and not made_here(CHACHA, torch.device("meta"))
    ours = device_rows.words_on_device
    monkeypatch.setattr(device_rows, "words_on_device", lambda *given: ours(*given) ^ (1 << 50))
    assert not device_rows._gives_plain_bits.__wrapped__(CPU)
    assert "other bits than the CPU" in caplog.text


# Streams


@pytest.mark.parametrize(("name", "precision"), each_once(KINDS, ["float32", "float64"]))
@pytest.mark.few(5)
def test_floats_of_a_device_are_those_of_numpy(name, precision, small_pieces):
    options = {"precision": precision, "cipher": CHACHA, "std": 0.7}
    expected, ended = emit(make_stream(STRATEGIES[name], 333, "numpy", **options))
    stream = as_on_a_device(make_stream(STRATEGIES[name], 333, "torch", **options))
    found, state = emit(stream)
    assert found.tobytes() == expected.tobytes()
    saved = np.asarray(state.state_dict()["rows"])
    assert saved.tobytes() == ended.state_dict()["rows"].tobytes()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.few(5)
def test_integers_of_a_device_are_those_of_numpy(name, small_pieces):
    options = {"std": 3.0, "grid": 2.0**-30, "key": KEY, "cipher": CHACHA}
    plain = NoiseStream(STRATEGIES[name], 200, **options)
    stream = as_on_a_device(NoiseStream(STRATEGIES[name], 200, backend="torch", **options))
    one, other = plain.init(), stream.init()
    for _ in range(plain.n):
        row, one = plain.next(one)
        found, other = stream.next(other)
        assert found.dtype == torch.int64
        np.testing.assert_array_equal(found.numpy(), row)
        used = plain.filter.used(one.step)  # memory behind that holds sums that are made ahead, on the CPU
        columns = stream.init()._memory.shape[1] if used else 0
        np.testing.assert_array_equal(other._memory[:used].numpy(), one._memory[:used])
        assert columns in (0, 200 + base.PAD)


@pytest.mark.parametrize("name", ["banded-mixed", "inverse-mixed", "blt-4", "recursive-blt"])
def test_what_float64_leaves_open_is_decided_on_the_cpu(name, small_pieces, monkeypatch):
    """A bound a million times too wide sends many entries there, and none comes back as another."""
    options = {"std": 3.0, "grid": 2.0**-20, "key": KEY, "cipher": CHACHA}
    expected, _ = emit(NoiseStream(STRATEGIES[name], 200, **options))
    bound, counted = on_device.error_bound, []
    monkeypatch.setattr(on_device, "error_bound", lambda *given: min(1e-2, 1e6 * bound(*given)))
    stream = as_on_a_device(NoiseStream(STRATEGIES[name], 200, backend="torch", **options))
    state, rows = stream.init(), []
    for _ in range(stream.n):
        row, state = stream.next(state)
        rows.append(row.numpy().copy())
        counted.append(stream.arrays.exactly)
    assert sum(counted) > 5
    np.testing.assert_array_equal(np.array(rows), expected)


def test_grids_too_fine_for_float64_are_refused_there_too():
    options = {"std": 3.0, "grid": 2.0**-49, "key": KEY, "cipher": CHACHA}
    stream = as_on_a_device(NoiseStream(STRATEGIES["inverse-mixed"], 99, backend="torch", **options))
    with pytest.raises(GuaranteeError, match="fewer grid_bits"):
        emit(stream)


@pytest.mark.parametrize("grid", [None, 2.0**-20])
@pytest.mark.parametrize("name", ["banded-mixed", "inverse-mixed", "blt-4", "recursive-blt"])
def test_a_run_moves_between_the_cpu_and_a_device(name, grid, small_pieces):
    options = {"key": KEY, "cipher": CHACHA, "grid": grid, "std": 2.0, "backend": "torch"}
    whole, _ = emit(NoiseStream(STRATEGIES[name], 150, **options))
    here = NoiseStream(STRATEGIES[name], 150, **options)
    there = as_on_a_device(NoiseStream(STRATEGIES[name], 150, **options))
    rows, state = emit(here, count=3)
    more, state = emit(there, there.restore(state.state_dict()), count=2)
    rest, _ = emit(here, here.restore(state.state_dict()))
    assert np.concatenate([rows, more, rest]).tobytes() == whole.tobytes()


def test_rows_by_aes_go_through_the_cpu_on_a_device():
    expected, _ = emit(make_stream(STRATEGIES["blt-4"], 99, "numpy", precision="float32"))
    found, _ = emit(as_on_a_device(make_stream(STRATEGIES["blt-4"], 99, "torch", precision="float32")))
    assert found.tobytes() == expected.tobytes()
    rounded = as_on_a_device(NoiseStream(STRATEGIES["blt-4"], 9, backend="torch", grid=2.0**-20, key=KEY))
    assert isinstance(rounded.init()._memory, np.ndarray)


def test_integers_made_again_on_a_device_are_those_of_numpy(small_pieces):
    options = {"std": 3.0, "grid": 2.0**-30, "key": KEY, "cipher": CHACHA, "offset": 3}
    expected, _ = emit(NoiseStream(STRATEGIES["inverse-mixed"], 200, **options))
    options |= {"backend": "torch", "memory": "regenerate"}
    found, _ = emit(as_on_a_device(NoiseStream(STRATEGIES["inverse-mixed"], 200, **options)))
    np.testing.assert_array_equal(found, expected)


def test_rows_made_again_are_those_of_numpy():
    options = {"precision": "float32", "cipher": CHACHA, "memory": "regenerate"}
    expected, _ = emit(make_stream(STRATEGIES["inverse-mixed"], 99, "numpy", **options))
    found, _ = emit(as_on_a_device(make_stream(STRATEGIES["inverse-mixed"], 99, "torch", **options)))
    assert found.tobytes() == expected.tobytes()
