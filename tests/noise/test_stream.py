"""The contract of a stream: its rows are those of std * C^-1 Z, once each, and never more than n of them."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError
from anechoic.noise import NoiseStream
from anechoic.noise.numpy_arrays import NumpyColumns
from anechoic.noise.recurrence import Recurrence
from anechoic.strategies import BLT, BandedToeplitz, FullTree, Identity, Restarted, Toeplitz, Tree
from anechoic.workloads import prefix_sum
from tests.marks import in_turn
from tests.noise.streams import BACKENDS, emit, make_stream
from tests.zoo import STRATEGIES

ROOT = Toeplitz.square_root(prefix_sum(64)).coefficients


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_horizon_of_a_billion_steps_costs_nothing(backend):
    stream = make_stream(BLT(10**9, [0.2, 0.1], [0.9, 0.5]), 3, backend)
    rows, _ = emit(stream, count=6)
    fresh = np.array([np.asarray(stream.fresh(t)) for t in range(6)])
    np.testing.assert_allclose(rows, BLT(6, [0.2, 0.1], [0.9, 0.5]).solve(fresh), rtol=1e-12)


# Memory


@in_turn(
    ("name", "rows"),
    [
        ("identity", 0),
        ("banded-1", 0),
        ("dense-diagonal", 0),
        ("banded-one-step", 0),
        ("blt-1", 0),
        ("toeplitz-root-1", 0),
        ("restarted-singles(blt-1)", 0),
        ("output", 2),
        ("output-momentum", 3),
        ("banded-2", 2),
        ("banded-trailing-zero", 2),
        ("dense-banded", 3),
        ("dense", 9),
        ("restarted(dense)", 9),
        ("blt-4", 4),
        ("normalised(blt-4)", 4),
    ],
)
def test_memory_is_bounded_by_window_steps_and_buffers(name, rows):
    stream = make_stream(STRATEGIES[name], 10, "numpy", precision="float32")
    assert stream.memory_bytes == rows * 10 * 4
    assert stream.init().state_dict()["rows"].shape == (0, 10)


@pytest.mark.parametrize(
    ("tree", "rows"),
    [(Tree(1), 0), (Tree(2), 2), (Tree(7), 3), (Tree(8), 4), (Tree(9), 4), (Tree(81, 3), 5), (Tree(3, 4), 0),
     (FullTree(1024), 11), (FullTree(10**9), 30), (FullTree(3, 2, 1024), 3), (Restarted(Tree(4), 99), 3)],
    ids=str,
)  # fmt: skip
def test_memory_of_a_tree_is_logarithmic(tree, rows):
    assert make_stream(tree, 10, "numpy", precision="float32").memory_bytes == rows * 10 * 4


@pytest.mark.parametrize("name", ["restarted(banded-2)", "restarted(blt-4)", "restarted(output)"])
def test_at_a_restart_nothing_of_the_past_is_saved(name):
    stream = make_stream(STRATEGIES[name], 10, "numpy")
    _, state = emit(stream, count=STRATEGIES[name].base.n - 1)
    assert len(state.state_dict()["rows"]) > 0
    _, state = emit(stream, state, count=1)
    assert len(state.state_dict()["rows"]) == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["identity", "banded-1", "output", "banded-mixed", "blt-4", "dense"])
def test_the_emitted_row_belongs_to_the_caller(name, backend):
    """A new one, or memory that was given."""
    stream = make_stream(STRATEGIES[name], 9, backend)
    expected, _ = emit(stream)
    for out in (None, stream.arrays.empty(9)):
        state = stream.init()
        for t in range(stream.n):
            row, state = stream.next(state, out=out)
            assert out is None or row is out
            np.testing.assert_array_equal(np.asarray(row), expected[t])
            row[...] = float("nan")


def test_long_windows_are_passed_over_once_in_a_group(monkeypatch):
    calls = []
    look_ahead = NumpyColumns.look_ahead

    def counted(self, weights, used, slots):
        calls.append((len(used), len(slots)))
        look_ahead(self, weights, used, slots)

    monkeypatch.setattr(NumpyColumns, "look_ahead", counted)
    emit(make_stream(BandedToeplitz(150, ROOT[:64]), 3, "numpy"))
    assert calls == [(min(t, 64), min(8, 150 - t)) for t in range(8, 150, 8)]
    calls.clear()
    emit(make_stream(BandedToeplitz(40, ROOT[:7]), 3, "numpy"))
    assert not calls


def test_given_memory_that_does_not_fit_is_refused_and_the_state_lives_on():
    stream = make_stream(STRATEGIES["banded-2"], 4, "numpy")
    state = stream.init()
    frozen = np.empty(4)
    frozen.setflags(write=False)
    for out in (np.empty(5), np.empty(4, np.float32), np.empty((4, 1)), np.empty(8)[::2], frozen, [0.0] * 4):
        with pytest.raises(ValueError, match="out must be"):
            stream.next(state, out=out)
    assert not state.consumed
    stream.next(state)
    stream = make_stream(STRATEGIES["banded-2"], 4, "torch", precision="float32")
    state = stream.init()
    with torch.inference_mode():
        inference = torch.empty(4)
    wrong = [torch.empty(5), torch.empty(4, dtype=torch.float64), torch.empty(8)[::2], inference]
    wrong += [torch.empty(4, requires_grad=True), torch.empty(4, device="meta"), np.empty(4, np.float32)]
    for out in wrong:
        with pytest.raises(ValueError, match="out must be"):
            stream.next(state, out=out)
    stream.next(state)


# Each row once, none beyond n


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["identity", "banded-2", "blt-4", "restarted-cut(banded-2)", "banded-one-step"]
)
def test_past_the_horizon_is_an_error(name, backend):
    stream = make_stream(STRATEGIES[name], 3, backend)
    _, state = emit(stream)
    for _ in range(2):
        with pytest.raises(HorizonError, match=rf"all {stream.n} noise rows.*more steps"):
            stream.next(state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["identity", "banded-2", "blt-4", "output"])
def test_a_consumed_state_is_an_error(name, backend):
    stream = make_stream(STRATEGIES[name], 3, backend)
    state = stream.init()
    _, after = stream.next(state)
    assert (state.consumed, after.consumed) == (True, False)
    with pytest.raises(DesynchronizedError, match="used for row 0 already"):
        stream.next(state)
    with pytest.raises(DesynchronizedError, match="used for row 0 already"):
        state.state_dict()
    stream.next(after)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "moment"),
    [("banded-mixed", "draw"), ("banded-mixed", "add"), ("tree-wide", "assign"), ("blt-4", "feed_back")],
)
def test_an_interrupted_step_leaves_no_usable_state(name, moment, backend, monkeypatch):
    stream = make_stream(STRATEGIES[name], 5, backend)
    _, state = emit(stream, count=4)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NumpyColumns, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.next(state)
    with pytest.raises(DesynchronizedError):
        stream.next(state)


def test_a_state_of_another_stream_is_refused():
    one, other = (make_stream(STRATEGIES["banded-2"], 3, "numpy") for _ in range(2))
    state = one.init()
    with pytest.raises(ValueError, match="another stream"):
        other.next(state)
    one.next(state)


def test_a_state_is_neither_copied_nor_pickled():
    state = make_stream(STRATEGIES["banded-2"], 3, "numpy").init()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            attempt(state)


# Arguments


@in_turn(
    ("arguments", "options", "message"),
    [
        ((np.eye(3), 2), {}, "must be a Strategy"),
        ((Identity(3), 0), {}, "dimension=0"),
        ((Identity(3), 2.0), {}, "dimension=2.0"),
        ((Identity(3), 2), {"std": 0.0}, "std=0.0"),
        ((Identity(3), 2), {"std": -1.0}, "std=-1.0"),
        ((Identity(3), 2), {"std": float("nan")}, "std=nan"),
        ((Identity(3), 2), {"std": float("inf")}, "std=inf"),
        ((Identity(3), 2), {"key": b"short"}, "5 bytes"),
        ((Identity(3), 2), {"key": 7}, "int"),
        ((Identity(3), 2), {"offset": -1}, "offset=-1"),
        ((Identity(3), 2), {"offset": 2}, "length=0"),
        ((Identity(3), 2), {"length": 0}, "length=0"),
        ((Identity(3), 2), {"offset": 1, "length": 2}, "offset=1 and length=2 go beyond the 2 entries"),
        ((Identity(3), 2), {"backend": "jax"}, "backend='jax'"),
        ((Identity(3), 2), {"device": "cuda"}, "backend='torch'"),
        ((Identity(3), 2), {"cipher": "ChaCha8"}, "cipher='ChaCha8' is unknown: choose one of 'AES-256'"),
        ((Identity(3), 2), {"dtype": np.float16}, "float32 or float64"),
        ((Identity(3), 2), {"dtype": torch.float32}, "float32 or float64"),
        ((Identity(3), 2), {"backend": "torch", "dtype": torch.bfloat16}, "float32 or float64"),
        ((Identity(3), 2), {"backend": "torch", "dtype": np.float32}, "float32 or float64"),
        ((SimpleNamespace(n=3, recurrence=lambda: Recurrence(3)), 2), {}, "Recurrence is not a kind"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        NoiseStream(*arguments, **options)


@pytest.mark.parametrize("std", [1e-42, 1e39])
def test_noise_that_single_precision_cannot_hold_is_refused(std):
    # cast to float32 these would be rows without fresh noise, or infinite ones
    for name in ("identity", "banded-mixed", "output", "blt-4"):
        stream = make_stream(STRATEGIES[name], 3, "numpy", precision="float32", std=std)
        with pytest.raises(GuaranteeError, match="beyond the range of float32"):
            stream.next(stream.init())
        emit(make_stream(STRATEGIES[name], 3, "numpy", precision="float64", std=std))


def test_the_key_is_kept_out_of_sight():
    stream = NoiseStream(Identity(3), 2, key=b"k" * 32)
    state = stream.next(stream.init())[1]
    assert stream.key == b"k" * 32 and stream.key not in pickle.dumps(state.state_dict())
    assert "kkkk" not in repr(stream) + repr(state) + repr(state.state_dict()) + repr(stream.identity)
    assert b"k".hex() * 32 not in repr(state.state_dict())


def test_without_a_key_streams_differ():
    one, other = (NoiseStream(Identity(3), 8) for _ in range(2))
    assert one.key != other.key
    assert not np.array_equal(one.fresh(0), other.fresh(0))
