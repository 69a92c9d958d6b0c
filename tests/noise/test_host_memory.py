"""Rows of noise that are held on the host and worked on piece by piece: the CPU for both sides."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from anechoic.noise import NoiseStream, host_memory
from anechoic.noise.rounding import on_device
from tests.marks import each_pair
from tests.noise.streams import KEY, emit, make_stream
from tests.zoo import STRATEGIES

KINDS = ["identity", "banded-mixed", "inverse-mixed", "blt-4", "recurrent", "tree", "toeplitz-root"]
WIDTH, PIECE = 1000, 90


class Sides:
    """Copies are made when they are queued, or, where `late`, not before somebody waits for them."""

    def __init__(self, late):
        self.late, self.queue, self.log, self.queueing = late, [], [], False

    def __enter__(self):
        self.queueing = True

    def __exit__(self, *_):
        self.queueing = False

    def copy(self, target, source):
        assert self.queueing
        self.log.append("copy")
        self.queue.append((target, source))
        if not self.late:
            self.run()

    def run(self):
        while self.queue:
            target, source = self.queue.pop(0)
            target.copy_(source)

    def streams(self, device):
        class Here:
            def wait_stream(here, other):
                assert other is beside
                self.log.append("device waits")
                self.run()

        class Beside:
            def wait_stream(_, other):
                assert other is here
                self.log.append("copies wait")

            def synchronize(_):
                self.log.append("host waits")
                self.run()

        here, beside = Here(), Beside()
        return here, beside, lambda: self


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def sides(request, monkeypatch):
    made = Sides(request.param)
    monkeypatch.setattr(host_memory, "PIECE", PIECE)
    monkeypatch.setattr(host_memory, "_is_away", lambda *_: True)
    monkeypatch.setattr(host_memory, "_streams", made.streams)
    monkeypatch.setattr(host_memory, "_copy", made.copy)
    return made


def as_on_a_device(stream):
    """The stream, whose arrays take the CPU for a device; memory is an ordinary tensor."""
    floats = getattr(stream.arrays, "floats", stream.arrays)
    floats._on_cpu = stream.arrays._on_cpu = False
    return stream


@pytest.mark.parametrize(("name", "cipher"), each_pair(KINDS, ["AES-256", "ChaCha20"]))
@pytest.mark.few(5)
def test_pieces_make_the_bits_of_memory_on_the_device(name, cipher, sides):
    options = {"precision": "float32", "cipher": cipher, "std": 0.7, "offset": 13, "length": WIDTH}
    expected, ended = emit(make_stream(STRATEGIES[name], 2000, "numpy", **options), count=5)
    found, state = emit(as_on_a_device(make_stream(STRATEGIES[name], 2000, "torch", **options)), count=5)
    assert found.tobytes() == expected.tobytes()
    rows, there = (one.state_dict()["rows"] for one in (state, ended))
    assert np.asarray(rows).tobytes() == np.asarray(there).tobytes()
    assert not sides.queue and bool(sides.log)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.few(4)
def test_pieces_make_the_integers_of_memory_on_the_device(name, sides, monkeypatch):
    monkeypatch.setattr(on_device, "_CHUNK", PIECE + 7)
    options = {"std": 3.0, "grid": 2.0**-30, "key": KEY, "cipher": "ChaCha20"}
    stream = NoiseStream(STRATEGIES[name], 300, **options)
    expected, ended = emit(stream, count=5)
    pinned = as_on_a_device(NoiseStream(STRATEGIES[name], 300, backend="torch", **options))
    found, state = emit(pinned, count=5)
    assert found.tobytes() == expected.tobytes()
    assert not sides.queue
    saved = state.state_dict()
    stored = NoiseStream(STRATEGIES[name], 300, backend="torch", **options)  # resumed without
    assert emit(stored, stored.restore(saved))[0].tobytes() == emit(stream, ended)[0].tobytes()


def test_each_side_waits_for_the_other(sides):
    memory = torch.arange(2.0 * 250).reshape(2, 250)
    expected, rows = memory + 1, ["copy"] * 2
    for part, here in host_memory.pieces(memory, 250, 10**6, memory.device):
        assert here.shape == (2, part.stop - part.start)
        here += 1
    assert torch.equal(memory, expected)
    step = ["device waits", *rows, "copies wait", *rows]
    last = ["device waits", "copies wait", *rows, "host waits"]
    assert sides.log == ["copies wait", *rows, *step, *step, *last]


def test_an_error_leaves_no_copy_behind(sides):
    memory = torch.zeros(2, 250)
    found = host_memory.pieces(memory, 250, 10**6, memory.device)
    next(found)
    with pytest.raises(RuntimeError):
        found.throw(RuntimeError)
    assert not sides.queue and sides.log[-1] == "host waits"


@pytest.mark.parametrize("options", [{}, {"backend": "torch"}, {"grid": 2.0**-20}])
def test_without_a_cuda_device_it_is_refused(options):
    with pytest.raises(ValueError, match=r"memory='pinned' keeps rows on the host.*use memory='store', or"):
        NoiseStream(STRATEGIES["blt-4"], 5, memory="pinned", **options)
